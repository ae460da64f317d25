"""Train an experiment, from the start or from a checkpoint, to its result."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from fedflat.core.local_training import SGD, count_traffic
from fedflat.core.state import send_to_device
from fedflat.core.task import Batch, Task
from fedflat.engine.memory import explain_out_of_memory
from fedflat.engine.processes import SINGLE_PROCESS, ProcessGroup, find_rank, join_processes, torchrun_restarts
from fedflat.engine.rounds import (
    CohortJob,
    Engine,
    TrainedCohort,
    Trial,
    choose_cohort,
    cohort_jobs,
    evaluate,
    evaluation_task,
    update_servers,
)
from fedflat.probes import ProbeRunner, refuse_probes
from fedflat.runs.build import BuiltRun, build_engine, build_run, client_state_device
from fedflat.runs.config import dump_experiment, method_to_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder, trial_tensors
from fedflat.runs.result import Result, privacy_of_simulation, software_versions, summarise_history
from fedflat.runs.shared_folder import SharedFolder, open_folder

CHECKPOINT_SHARE = 20  # saving checkpoints may take about one part in this many of the time
EXPECTED_ROUNDS = 50  # rounds for which an engine is told the clients' numbers of steps
INTERRUPT_NOTICE = b"fedflat: interrupted; the round under way ends first and is saved (a second time ends at once)\n"
Watcher = Callable[[int, list[dict[str, Any]]], None]  # called after each round with its number and the newest metrics


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after a round that is saved; `exit_code` is 130 for Ctrl-C, else 143 as of SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 130 if number == signal.SIGINT else 143


class InterruptAfterRound:
    """A context in which the first Ctrl-C, SIGTERM or SIGHUP only sets `signal`. The second one ends as usual.

    Schedulers such as Slurm send SIGTERM some time before they kill a job. Signals that somebody else handles are left
    alone, and so are all in threads other than the main one.
    """

    def __init__(self) -> None:
        self.signal = 0  # the signal's number, 0 if none has come
        main = threading.current_thread() is threading.main_thread()
        usual = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL}
        known = {getattr(signal, name): handler for name, handler in usual.items() if hasattr(signal, name)}
        self._handlers = {n: handler for n, handler in known.items() if main and signal.getsignal(n) is handler}

    def __enter__(self) -> InterruptAfterRound:
        for number in self._handlers:
            signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if self.signal and kind is None:
            raise Interrupted(self.signal)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self._restore()
        self.signal = number
        os.write(2, INTERRUPT_NOTICE)  # print is not safe in a signal handler


def metrics_row(task: Task, trial: Trial, test: Batch, played: int, seconds: float) -> dict[str, Any]:
    """Evaluate a trial's model and return a row of metrics.jsonl; a loss that is not finite is None.

    Args:
        task: the model.
        trial: the trial.
        test: the samples.
        played: rounds that were trained.
        seconds: time that was spent.
    """
    loss, accuracy = evaluate(task, trial.server.params, test)
    finite_loss = loss if math.isfinite(loss) else None
    values = {"round": played, "seed": trial.seed, "accuracy": accuracy, "loss": finite_loss}
    return values | {"seconds": round(seconds, 3)}


def expected_steps(experiment: Experiment, built: BuiltRun) -> list[list[int]]:
    """Return the numbers of local steps of the clients of all seeds, for each of the first rounds."""
    return [_steps_in_round(experiment, built, round) for round in range(min(experiment.rounds, EXPECTED_ROUNDS))]


def _cohorts(experiment: Experiment, built: BuiltRun, round: int) -> list[list[int]]:
    """The cohort of every seed in a round."""
    clients, size, sampling = len(built.client_rows), experiment.cohort, experiment.sampling
    return [choose_cohort(seed, round, clients, size, sampling) for seed in experiment.seeds]


def _steps_in_round(experiment: Experiment, built: BuiltRun, round: int) -> list[int]:
    """The number of local steps of every client of every seed in a round."""
    cohorts = zip(experiment.seeds, _cohorts(experiment, built, round), strict=True)
    return [n for seed, cohort in cohorts for n in built.client_data.lengths([seed] * len(cohort), round, cohort)]


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
            experiment.probes, experiment.probing, experiment.method, built.task, built.client_data, self.test
        )
        self.history: list[dict[str, Any]] = []
        self.round, self.seconds, self.steps = 0, 0.0, 0
        self._restore()
        self._saved_round, self._next_save = self.round, 0.0  # no checkpoint is due before `seconds` is _next_save

    def _build_engine(self) -> Engine:
        engine = build_engine(self.experiment, self.built, self.processes)
        engine.prepare(expected_steps(self.experiment, self.built))
        return engine

    def _new_trials(self) -> list[Trial]:
        device = client_state_device([(self.experiment, self.built)], self.engine, self.processes.size)
        return self.built.trials(self.experiment, device)

    def finish(self, watch: Watcher) -> Result:
        """Train the remaining rounds and return the result."""
        self.play(watch)
        return self.conclude()

    def play(self, watch: Watcher) -> None:
        """Train the remaining rounds; `watch` is called after each."""
        began = time.perf_counter() - self.seconds
        while not self.done:
            self.play_round()
            self.after_round(time.perf_counter() - began)
            watch(self.round, self.newest)

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
        for exchange in range(self.experiment.method.exchanges):
            self.finish_exchange(self.engine.train(self.begin_exchange(exchange)))
        self.end_round()

    def begin_exchange(self, exchange: int) -> list[CohortJob]:
        """Return the jobs of one exchange of this round for the engine, one per seed."""
        experiment, client_data, r = self.experiment, self.built.client_data, self.round
        population, cohorts = len(self.built.client_rows), _cohorts(experiment, self.built, r)
        lr = send_to_device(experiment.lr * experiment.lr_decay**r, client_data.y.device, client_data.dtype)
        sgd = SGD(lr, experiment.momentum, experiment.weight_decay)
        weights = [self._weights(c) for c in cohorts]
        jobs = cohort_jobs(experiment.method, self.trials, r, exchange, cohorts, weights, population, sgd)
        self.probe_runner.begin(self.trials, jobs)
        return jobs

    def finish_exchange(self, trained: Sequence[TrainedCohort]) -> None:
        """Update the server of every seed with what its cohort sent."""
        self.probe_runner.end(trained)
        update_servers(self.experiment.method, self.trials, trained)

    def end_round(self) -> None:
        """Count the round and its local steps."""
        self.steps += sum(_steps_in_round(self.experiment, self.built, self.round)) * self.experiment.method.exchanges
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
        """Evaluate every seed on rank 0, and write the rows to metrics.jsonl."""
        rows = self.processes.broadcast_value(self._evaluate)
        self.history += rows
        if self.folder:
            self.folder.log(rows)

    def _evaluate(self) -> list[dict[str, Any]]:
        """The rows of every seed, with what the probes have measured."""
        rows = [metrics_row(self.evaluator, trial, self.test, self.round, self.seconds) for trial in self.trials]
        probes = self.probe_runner.measure(self.trials, self.history)
        return [row | measured for row, measured in zip(rows, probes, strict=True)]

    def _save_checkpoint(self) -> None:
        """Save a checkpoint. If that took more than a second, wait a while until the next one.

        Several processes do not wait: they would have to agree. A federation, which saves after every round, does not
        wait either: its nodes can go back by one round only.
        """
        before = time.perf_counter()
        self.save()
        self._saved_round, spent = self.round, time.perf_counter() - before
        if spent > 1 and self.processes.size == 1 and self.experiment.checkpoint_every > 1:
            self._next_save = self.seconds + CHECKPOINT_SHARE * spent

    def save(self) -> None:
        """Write the state of all seeds, and the counters of rounds, seconds and steps, to the checkpoint."""
        assert self.folder
        counters = torch.tensor([self.round, self.seconds, self.steps], dtype=torch.float64)
        tensors = {f"trial.{t.seed}.{name}": tensor for t in self.trials for name, tensor in t.pack().items()}
        self.folder.save({"counters": counters, **tensors})

    def _restore(self) -> None:
        """Continue from the folder's checkpoint, if it has one."""
        if self.folder is None:
            return
        tensors = self.folder.load()
        if tensors is None:
            self.folder.rewind(0)
            return
        counters = zip((int, float, int), tensors["counters"], strict=True)
        self.round, self.seconds, self.steps = (kind(value) for kind, value in counters)
        played = range(1, self.round + 1)
        evaluated = [(r, seed) for r in played if self.experiment.evaluates(r) for seed in self.experiment.seeds]
        self.history = self.folder.rewind(self.round, evaluated)
        for trial in self.trials:
            trial.unpack(trial_tensors(tensors, trial.seed))

    def conclude(self, privacy: dict[str, Any] | None = None) -> Result:
        """Return the result; write it and the final checkpoint to the folder.

        Args:
            privacy: what differential privacy guarantees, if it is not that of a simulation of these rounds.
        """
        experiment, seeds = self.experiment, list(self.experiment.seeds)
        clients = len(self.built.client_rows)
        sent = count_traffic(experiment.method, self.built.initial_params[0])
        result = Result(
            method=method_to_dict(experiment.method)["name"],
            seeds=seeds,
            rounds=self.round,
            seconds=round(self.seconds, 3),
            client_steps_per_second=round(self.steps / max(self.seconds, 1e-9), 1),
            bytes_down_per_client_round=sent.down,
            bytes_up_per_client_round=sent.up,
            parameters=self.built.task.size,
            versions=software_versions(self.processes.size),
            history=self.history,
            privacy=privacy
            or privacy_of_simulation(
                experiment.method, seeds, self.round, clients, experiment.cohort, experiment.sampling
            ),
            clients=clients,
            **summarise_history(self.history, seeds),
        )
        if self.folder:
            self.save()
            self.folder.finish(result.to_json())
        return result


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, watch: Watcher | None = None
) -> Result:
    """Train an experiment and return its result.

    Under torchrun or srun all processes train together, and all get the result; only rank 0 reads and writes `out`.
    Ctrl-C ends a run that has a folder after the round under way, which is saved; a second Ctrl-C ends it at once.

    Args:
        experiment: what to train.
        out: the folder for configuration, metrics, checkpoints and result; nothing is written if None.
        resume: whether to continue an interrupted run in `out`. Processes that torchrun starts again always do.
        watch: called after each round with its number, from 1, and the rows of the last evaluation.

    Raises:
        UserError: an option cannot be used, or the folder belongs to another run.
    """
    rank = find_rank(experiment.engine)
    if rank.size > 1 and experiment.probes:
        refuse_probes(experiment.probes)
    with join_processes(rank, experiment.device) as processes, explain_out_of_memory():
        built = build_run(experiment)
        for start in built.initial_params:
            processes.broadcast(start)
        resume = resume or torchrun_restarts() > 0
        folder = None if out is None else open_folder(processes, Path(out), dump_experiment(experiment), resume)
        try:
            training = Training(experiment, built, folder, processes=processes)
            return _train_to_end(training, watch or (lambda round, rows: None))
        finally:
            if folder:
                folder.close()


def _train_to_end(training: Training, watch: Watcher) -> Result:
    """Train the remaining rounds. In one process with a folder, Ctrl-C or SIGTERM first saves the round under way."""
    if training.folder is None or training.processes.size > 1:
        return training.finish(watch)
    with InterruptAfterRound() as interrupt:

        def watch_and_interrupt(round: int, rows: list[dict[str, Any]]) -> None:
            watch(round, rows)
            if interrupt.signal:
                training.save()
                raise Interrupted(interrupt.signal)

        return training.finish(watch_and_interrupt)
