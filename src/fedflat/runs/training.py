"""`Training`: an experiment that is being trained, round by round, and what is evaluated and saved in between."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedflat.core.local_training import count_traffic
from fedflat.core.method_check import explain_method_errors
from fedflat.core.state import send_to_device
from fedflat.core.task import Batch, Task
from fedflat.engine.processes import SINGLE_PROCESS, ProcessGroup
from fedflat.engine.rounds import (
    CohortJob,
    Engine,
    TrainedCohort,
    Trial,
    cohort_jobs,
    evaluate,
    evaluation_task,
    train_cohorts,
    update_servers,
)
from fedflat.methods import METHODS
from fedflat.methods.running_averages import with_server_statistics
from fedflat.own_code import short_own_code
from fedflat.probes import ProbeRunner
from fedflat.runs.build import BuiltRun, build_attack
from fedflat.runs.build_engine import build_engine, client_state_device
from fedflat.runs.checkpoint import trial_tensors
from fedflat.runs.client_evaluation import evaluate_on_clients
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder
from fedflat.runs.result import Result, clients_per_round, privacy_of_simulation, software_versions, summarise_history
from fedflat.runs.shared_folder import SharedFolder
from fedflat.runs.threads import choose_threads

CHECKPOINT_SHARE = 20  # saving checkpoints may take about one part in this many of the time
EXPECTED_ROUNDS = 50  # rounds for which an engine is told the clients' numbers of steps


def metrics_row(task: Task, trial: Trial, test: Batch, played: int, seconds: float) -> dict[str, Any]:
    """Evaluate a trial's model and return a row of metrics.jsonl; a number that is not finite is None.

    Args:
        task: the model.
        trial: the trial.
        test: the samples.
        played: rounds that were trained.
        seconds: time that was spent.
    """
    loss, metrics = evaluate(with_server_statistics(task, trial.server), trial.server.params, test)
    values = {task.metric: metrics[task.metric], **metrics, "loss": loss}  # the main metric comes first
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {"round": played, "seed": trial.seed} | finite | {"seconds": round(seconds, 3)}


def expected_steps(experiment: Experiment, built: BuiltRun) -> list[list[int]]:
    """Return the numbers of local steps of the clients of all seeds, for each of the first rounds.

    How many rounds the experiment has does not matter, so that a short run tries out, and compiles, the step of a long
    one.
    """
    return [steps_in_round(experiment, built, round) for round in range(EXPECTED_ROUNDS)]


def steps_in_round(experiment: Experiment, built: BuiltRun, round: int) -> list[int]:
    """Return the number of local steps of every client of every seed that replies in a round."""
    cohorts = [(seed, built.participation.replying(seed, round)) for seed in experiment.seeds]
    return [n for seed, cohort in cohorts for n in built.client_data.lengths([seed] * len(cohort), round, cohort)]


def occupied_rounds(rounds: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """Return the rounds in which somebody trains; one round of one client with one step if there is none."""
    return [steps for steps in rounds if steps] or [[1]]


class Training:
    """An experiment that is being trained: the state of every seed, the metrics so far and the round it has reached.

    Args:
        experiment: the experiment.
        built: its data and models.
        folder: the run's folder, whose checkpoint is continued if it has one; None to write nothing.
        engine: trains the clients; that of the experiment unless given. A federation, or experiments that are trained
            together, have their own.
        trials: the states of all seeds before the first round; built from the experiment unless given.
        processes: the processes that train together.
        test: the samples for evaluation, if they are shared with other experiments.
    """

    def __init__(
        self,
        experiment: Experiment,
        built: BuiltRun,
        folder: RunFolder | SharedFolder | None,
        engine: Engine | None = None,
        trials: list[Trial] | None = None,
        processes: ProcessGroup = SINGLE_PROCESS,
        test: Batch | None = None,
    ) -> None:
        self.experiment, self.built, self.folder, self.processes = experiment, built, folder, processes
        self.engine = engine or self._build_engine()
        self.trials = trials or self._new_trials()
        self.test = test or built.client_data.test()
        self.evaluator = evaluation_task(built.task, self.test.y.device)
        self.probe_runner = ProbeRunner(
            experiment.probes, experiment.probing, built.method, built.task, built.client_data, self.test
        )
        self.aggregation, self.attack = experiment.aggregation(), build_attack(experiment, len(built.client_rows))
        self.history: list[dict[str, Any]] = []
        self.keeps_local_models = False  # they need memory until the next round
        self.adds_weight_decay = False  # also one of 0, where experiments that train beside this one have one
        self.last_cohort: tuple[CohortJob, TrainedCohort] | None = None  # of the first seed
        self.round, self.seconds, self.steps = 0, 0.0, 0
        threads = self._restore()
        torch.set_num_threads(choose_threads(experiment, built, ranks=processes.size, before=threads))
        self._saved_round, self._next_save = self.round, 0.0  # no checkpoint is due before `seconds` is _next_save

    def _build_engine(self) -> Engine:
        engine = build_engine(self.experiment, self.built, self.processes)
        engine.prepare(occupied_rounds(expected_steps(self.experiment, self.built)))
        return engine

    def _new_trials(self) -> list[Trial]:
        device = client_state_device([(self.experiment, self.built)], self.engine, self.processes.size)
        return self.built.trials(self.experiment, device)

    def rounds(self) -> Iterator[int]:
        """Train the remaining rounds and give the number of each. What the caller does in between is not timed."""
        while not self.done:
            began = time.perf_counter() - self.seconds
            self.play_round()
            self.after_round(time.perf_counter() - began)
            self.seconds = time.perf_counter() - began
            yield self.round

    @property
    def is_evaluated(self) -> bool:
        """Whether the models were evaluated after the last round."""
        return bool(self.history) and self.history[-1]["round"] == self.round

    @property
    def is_saved(self) -> bool:
        """Whether the checkpoint is that of the last round."""
        return self.folder is not None and self._saved_round == self.round

    @property
    def newest(self) -> list[dict[str, Any]]:
        """The rows of the last evaluation, one per seed; empty before the first."""
        return self.history[-len(self.trials) :]

    @property
    def done(self) -> bool:
        """Whether all rounds are trained, or every seed has diverged (its last loss is not finite)."""
        last = self.newest
        return self.round >= self.experiment.rounds or (bool(last) and all(row["loss"] is None for row in last))

    def play_round(self) -> None:
        """Train one round of every seed."""
        self.processes.set_round(self.round + 1)
        self.last_cohort = None
        for exchange in range(self.experiment.method.exchanges):
            with explain_method_errors(self.experiment.method):
                jobs = self.begin_exchange(exchange)
                trained = train_cohorts(self.built.method, self.engine, jobs)
                self.finish_exchange(trained)
            if self.keeps_local_models:
                self.last_cohort = jobs[0], trained[0]
        self.end_round()

    def begin_exchange(self, exchange: int) -> list[CohortJob]:
        """Return the jobs of one exchange of this round for the engine, one per seed."""
        experiment, who, r = self.experiment, self.built.participation, self.round
        cohorts = [who.replying(seed, r) for seed in experiment.seeds]
        optimiser = experiment.optimiser_at(r, self.built.initial_params[0], self.adds_weight_decay)
        weights = [self._weights(c) for c in cohorts]
        rest = (cohorts, weights, who.population, optimiser, who.expected_size, self.aggregation, self.attack)
        jobs = cohort_jobs(self.built.method, self.trials, r, exchange, *rest)
        jobs = [job._replace(optimiser=who.with_client_lrs(optimiser, experiment.lr, job.clients)) for job in jobs]
        self.probe_runner.begin(self.trials, jobs)
        return jobs

    def finish_exchange(self, trained: Sequence[TrainedCohort]) -> None:
        """Update the server of every seed with what its cohort sent."""
        self.probe_runner.end(trained)
        update_servers(self.built.method, self.trials, trained)

    def end_round(self) -> None:
        """Count the round and its local steps."""
        self.steps += sum(steps_in_round(self.experiment, self.built, self.round)) * self.experiment.method.exchanges
        self.round += 1

    def after_round(self, seconds: float) -> None:
        """Evaluate and save a checkpoint if they are due; `seconds` is the time of training so far."""
        experiment, self.seconds = self.experiment, seconds
        if experiment.evaluates(self.round):
            self._log_evaluation()
        due = self.round - self._saved_round >= experiment.checkpoint_every and seconds >= self._next_save
        if self.folder and due:
            self._save_checkpoint()

    def _weights(self, clients: list[int]) -> Tensor:
        """The averaging weights of a cohort, not normalised."""
        sizes = [len(self.built.client_rows[client]) for client in clients]
        values = sizes if self.experiment.weights == "examples" else [1] * len(sizes)
        return send_to_device(values, self.built.client_data.y.device, self.built.client_data.dtype)

    def _log_evaluation(self) -> None:
        """Evaluate every seed, and write the rows with what the probes have measured to metrics.jsonl."""
        rows, probes = self.evaluate(), self.probe_runner.measure(self.trials, self.history)
        rows = [row | measured for row, measured in zip(rows, probes, strict=True)]
        self.history += rows
        if self.folder:
            self.folder.log(rows)

    def evaluate(self) -> list[dict[str, Any]]:
        """Evaluate every seed on rank 0, and return the rows on all ranks."""
        trials, played, seconds = self.trials, self.round, self.seconds
        return self.processes.broadcast_value(
            lambda: [metrics_row(self.evaluator, trial, self.test, played, seconds) for trial in trials]
        )

    def _evaluate_on_clients(self) -> dict[str, Any]:
        """Evaluate every seed on single clients on rank 0, and return the fields of Result on all ranks."""
        data, groups = self.built.client_data, self.built.evaluated_clients.groups()
        if not groups:
            return {}
        return self.processes.broadcast_value(lambda: evaluate_on_clients(self.evaluator, self.trials, data, groups))

    def _save_checkpoint(self) -> None:
        """Save a checkpoint. If that took more than a second, wait a while until the next one.

        Several processes do not wait: they would have to agree. A federation, which saves after every round, does not
        wait either: its nodes can go back by one round only.
        """
        before = time.perf_counter()
        self.save()
        spent = time.perf_counter() - before
        if spent > 1 and self.processes.size == 1 and self.experiment.checkpoint_every > 1:
            self._next_save = self.seconds + CHECKPOINT_SHARE * spent

    def save(self) -> None:
        """Write the state of all seeds, and the counters of rounds, seconds and steps, to the checkpoint."""
        assert self.folder
        counters = torch.tensor([self.round, self.seconds, self.steps], dtype=torch.float64)
        threads = torch.tensor(torch.get_num_threads())
        tensors = {f"trial.{t.seed}.{name}": tensor for t in self.trials for name, tensor in t.pack().items()}
        self.folder.save({"counters": counters, "threads": threads, **tensors})
        self._saved_round = self.round

    def _restore(self) -> int | None:
        """Continue from the folder's checkpoint, if it has one, and return with how many threads it was trained."""
        if self.folder is None:
            return None
        tensors = self.folder.load()
        if tensors is None:
            self.folder.rewind(0)
            return None
        counters = zip((int, float, int), tensors["counters"], strict=True)
        self.round, self.seconds, self.steps = (kind(value) for kind, value in counters)
        due = range(self.experiment.eval_every, self.round + 1, self.experiment.eval_every)
        evaluated = [(r, seed) for r in due for seed in self.experiment.seeds]
        self.history = self.folder.rewind(self.round, evaluated, self.built.task.metric)
        for trial in self.trials:
            trial.unpack(trial_tensors(tensors, trial.seed))
        return int(tensors["threads"]) if "threads" in tensors else None

    def conclude(self, privacy: dict[str, Any] | None = None, stopped: str | None = None) -> Result:
        """Return the result; write it and the final checkpoint to the folder. Evaluate the last round if it was not.

        Args:
            privacy: what differential privacy guarantees, if it is not that of a simulation of these rounds.
            stopped: why training ended before its last round, if it did.
        """
        if not self.is_evaluated:
            self._log_evaluation()
        experiment, seeds = self.experiment, list(self.experiment.seeds)
        clients = len(self.built.client_rows)
        sent = count_traffic(self.built.method, self.built.initial_params[0])
        result = Result(
            method=short_own_code(METHODS.name_of(type(experiment.method))),
            seeds=seeds,
            rounds=self.round,
            seconds=round(self.seconds, 3),
            client_steps_per_second=round(self.steps / max(self.seconds, 1e-9), 1),
            bytes_down_per_client_round=sent.down,
            bytes_up_per_client_round=sent.up,
            parameters=self.built.task.size,
            versions=software_versions(self.processes.size),
            history=self.history,
            privacy=privacy or privacy_of_simulation(experiment.method, seeds, self.round, self.built.participation),
            clients=clients,
            stopped=stopped,
            **clients_per_round(self.built.participation, seeds, self.round),
            metric=self.built.task.metric,
            higher_is_better=self.built.task.higher_is_better,
            **summarise_history(self.history, seeds, self.built.task.main_metric()),
            **self._evaluate_on_clients(),
        )
        if self.folder:
            self.save()
            self.folder.finish(result.to_json())
        return result
