"""Train one experiment, from the start or from a checkpoint, to its result."""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType
import math
from typing import Any
import time
from collections.abc import Callable, Sequence
import torch
from torch import Tensor
from pathlib import Path
from fedflat.core.local_training import SGD, count_traffic
from fedflat.core.state import send_to_device
from fedflat.core.task import Batch, Task
from fedflat.engine.memory import explain_out_of_memory
from fedflat.engine.processes import ProcessGroup, SINGLE_PROCESS, find_rank, join_processes, torchrun_restarts
from fedflat.engine.rounds import CohortJob, Engine, TrainedCohort, Trial, choose_cohort, cohort_jobs, evaluate, evaluation_task, update_servers
from fedflat.probes import ProbeRunner, refuse_probes
from fedflat.runs.build import RunParts, build_engine, build_run, client_state_device
from fedflat.runs.config import dump_experiment, method_to_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder
from fedflat.runs.result import Result, privacy_of_simulation, software_versions, summarise_history
from fedflat.runs.shared_folder import SharedFolder, open_folder



WAITING = b"fedflat: interrupted; the round under way ends first and is saved (Ctrl-C again ends at once)\n"


class InterruptAfterRound:
    """Remembers the first Ctrl-C instead of raising it, where Python's own handler would raise it."""

    def __init__(self) -> None:
        self.pressed = False
        main = threading.current_thread() is threading.main_thread()
        self._listens = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def __enter__(self) -> InterruptAfterRound:
        if self._listens:
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.pressed and kind is None:
            raise KeyboardInterrupt

    def _press(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.pressed = True
        os.write(2, WAITING)  # print may be busy where the signal came


def metrics_row(task: Task, trial: Trial, test: Batch, played: int, seconds: float) -> dict[str, Any]:
    """How well a trial's model does after `played` rounds; a loss that is not finite is recorded as null."""
    loss, accuracy = evaluate(task, trial.server.params, test)
    finite = loss if math.isfinite(loss) else None
    return {
        "round": played,
        "seed": trial.seed,
        "accuracy": accuracy,
        "loss": finite,
        "seconds": round(seconds, 3),
    }


CHECKPOINT_SHARE = 20  # checkpoints of large states take at most about one part in so many of the time


Watcher = Callable[[int, list[dict[str, Any]]], None]  # called after each round with the newest metrics


def expected_steps(experiment: Experiment, assembly: RunParts) -> list[list[int]]:
    """Steps of every seed's clients in the first rounds."""
    return [_steps_in_round(experiment, assembly, round) for round in range(min(experiment.rounds, 50))]


def _cohorts(experiment: Experiment, assembly: RunParts, round: int) -> list[list[int]]:
    """The clients of every seed in a round."""
    return [choose_cohort(seed, round, len(assembly.parts), experiment.cohort) for seed in experiment.seeds]


def _steps_in_round(experiment: Experiment, assembly: RunParts, round: int) -> list[int]:
    """Steps of every seed's clients in a round."""
    chosen = zip(experiment.seeds, _cohorts(experiment, assembly, round), strict=True)
    return [n for seed, who in chosen for n in assembly.feed.lengths([seed] * len(who), round, who)]


class Training:
    """One experiment under way: trials, metrics so far, and the round they have reached.

    `engine` and `trials` replace those that the experiment names, where clients are not simulated here or not alone;
    `test` is what they are tested on, where it is shared.
    """

    def __init__(
        self,
        experiment: Experiment,
        assembly: RunParts,
        folder: RunFolder | SharedFolder | None,
        engine: Engine | None = None,
        trials: list[Trial] | None = None,
        world: ProcessGroup = SINGLE_PROCESS,
        test: Batch | None = None,
    ) -> None:
        self.experiment, self.assembly, self.folder, self.world = experiment, assembly, folder, world
        self.engine = engine or self._engine()
        self.trials = trials or assembly.trials(experiment, client_state_device([(experiment, assembly)], self.engine, world.size))
        self.test = test or assembly.feed.test()
        self.evaluator = evaluation_task(assembly.task, self.test.y.device)
        self.probe_runner = ProbeRunner(
            experiment.probes, experiment.probing, experiment.method, assembly.task, assembly.feed, self.test
        )
        self.history: list[dict[str, Any]] = []
        self.round, self.seconds, self.steps = 0, 0.0, 0
        self._restore()
        self._saved, self._quiet_until = self.round, 0.0

    def _engine(self) -> Engine:
        """The engine that the experiment names, told what is to come."""
        engine = build_engine(self.experiment, self.assembly, self.world)
        engine.prepare(expected_steps(self.experiment, self.assembly))
        return engine

    def finish(self, watch: Watcher) -> Result:
        """Play the remaining rounds and write the result."""
        self.play(watch)
        return self.conclude()

    def play(self, watch: Watcher) -> None:
        """Play the remaining rounds."""
        began = time.perf_counter() - self.seconds
        while not self.done:
            self.play_round()
            self.after_round(time.perf_counter() - began)
            watch(self.round, self.newest)

    @property
    def newest(self) -> list[dict[str, Any]]:
        """The last metrics of every trial."""
        return self.history[-len(self.trials) :]

    @property
    def done(self) -> bool:
        """All rounds are played, or nothing is left to train: every seed's last loss is not finite."""
        last = self.newest
        return self.round >= self.experiment.rounds or (bool(last) and all(row["loss"] is None for row in last))

    def play_round(self) -> None:
        """One round of every trial."""
        self.world.reached(self.round + 1)
        for exchange in range(self.experiment.method.exchanges):
            self.settle(self.engine.train(self.ask(exchange)))
        self.end_round()

    def ask(self, exchange: int) -> list[CohortJob]:
        """What one exchange of this round asks of the engine."""
        experiment, feed, r = self.experiment, self.assembly.feed, self.round
        population, cohorts = len(self.assembly.parts), _cohorts(experiment, self.assembly, r)
        lr = send_to_device(experiment.lr * experiment.lr_decay**r, feed.y.device, feed.dtype)
        sgd = SGD(lr, experiment.momentum, experiment.weight_decay)
        weights = [self._weights(c) for c in cohorts]
        jobs = cohort_jobs(experiment.method, self.trials, r, exchange, cohorts, weights, population, sgd)
        self.probe_runner.begin(self.trials, jobs)
        return jobs

    def settle(self, trained: Sequence[TrainedCohort]) -> None:
        """Update every trial's server with what its cohort learned."""
        self.probe_runner.end(trained)
        update_servers(self.experiment.method, self.trials, trained)

    def end_round(self) -> None:
        """Count the round that was played."""
        self.steps += sum(_steps_in_round(self.experiment, self.assembly, self.round)) * self.experiment.method.exchanges
        self.round += 1

    def after_round(self, seconds: float) -> None:
        """Evaluate and checkpoint, where it is time to; `seconds` of training have passed in all."""
        experiment, self.seconds = self.experiment, seconds
        if experiment.evaluates(self.round):
            self._measure()
        if self.folder and self.round - self._saved >= experiment.checkpoint_every and seconds >= self._quiet_until:
            self._checkpoint()

    def _weights(self, clients: list[int]) -> Tensor:
        """Averaging weights of a cohort, not normalised."""
        sizes = [len(self.assembly.parts[client]) for client in clients]
        values = sizes if self.experiment.weights == "examples" else [1] * len(sizes)
        return send_to_device(values, self.assembly.feed.y.device, self.assembly.feed.dtype)

    def _measure(self) -> None:
        """Evaluate every trial, on rank 0, and log."""
        rows = self.world.share(self._evaluate)
        self.history += rows
        if self.folder:
            self.folder.log(rows)

    def _evaluate(self) -> list[dict[str, Any]]:
        """Metrics of every trial, and what probes have measured."""
        rows = [metrics_row(self.evaluator, trial, self.test, self.round, self.seconds) for trial in self.trials]
        return [row | more for row, more in zip(rows, self.probe_runner.measure(self.trials, self.history), strict=True)]

    def _checkpoint(self) -> None:
        """Save; in one process (many must agree) a save that took seconds is not repeated too soon.

        Unless one is asked for after every round: nodes of a federation go back by one round at most.
        """
        before = time.perf_counter()
        self.save()
        self._saved, spent = self.round, time.perf_counter() - before
        if spent > 1 and self.world.size == 1 and self.experiment.checkpoint_every > 1:
            self._quiet_until = self.seconds + CHECKPOINT_SHARE * spent

    def save(self) -> None:
        """Checkpoint all trials and the counters."""
        assert self.folder
        counters = torch.tensor([self.round, self.seconds, self.steps], dtype=torch.float64)
        tensors = {f"trial.{t.seed}.{name}": tensor for t in self.trials for name, tensor in t.pack().items()}
        self.folder.save({"counters": counters, **tensors})

    def _restore(self) -> None:
        """Continue from the folder's checkpoint, if it has one."""
        named = self.folder.load() if self.folder else None
        if self.folder and named is None:
            self.folder.rewind(0)
        if self.folder is None or named is None:
            return
        self.round, self.seconds, self.steps = (
            kind(v) for kind, v in zip((int, float, int), named["counters"], strict=True)
        )
        played = range(1, self.round + 1)
        evaluated = [(r, seed) for r in played if self.experiment.evaluates(r) for seed in self.experiment.seeds]
        self.history = self.folder.rewind(self.round, evaluated)
        for trial in self.trials:
            prefix = f"trial.{trial.seed}."
            trial.unpack({n.removeprefix(prefix): t for n, t in named.items() if n.startswith(prefix)})

    def conclude(self, privacy: dict[str, Any] | None = None) -> Result:
        """The result, also written to the folder with the final checkpoint.

        `privacy` is what was spent where it is not what a simulation of these rounds spends.
        """
        experiment, seeds = self.experiment, list(self.experiment.seeds)
        sent = count_traffic(experiment.method, self.assembly.starts[0])
        result = Result(
            method=method_to_dict(experiment.method)["name"],
            seeds=seeds,
            rounds=self.round,
            seconds=round(self.seconds, 3),
            client_steps_per_second=round(self.steps / max(self.seconds, 1e-9), 1),
            bytes_down_per_client_round=sent.down,
            bytes_up_per_client_round=sent.up,
            parameters=self.assembly.task.size,
            versions=software_versions(self.world.size),
            history=self.history,
            privacy=privacy
            or privacy_of_simulation(experiment.method, seeds, self.round, len(self.assembly.parts), experiment.cohort),
            clients=len(self.assembly.parts),
            **summarise_history(self.history, seeds),
        )
        if self.folder:
            self.save()
            self.folder.finish(result.to_json())
        return result


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, watch: Watcher | None = None
) -> Result:
    """Train `experiment`. With `out`, leave a run folder there; `resume` continues an interrupted one.

    Under torchrun all processes train together, and all get the result; only rank 0 needs and touches `out`. Processes
    that torchrun had to start again resume. Ctrl-C ends a run in a folder after the round under way, which is saved.
    """
    place = find_rank(experiment.engine)
    if place.size > 1 and experiment.probes:
        refuse_probes(experiment.probes)
    with join_processes(place, experiment.device) as world, explain_out_of_memory():
        assembly = build_run(experiment)
        for start in assembly.starts:
            world.spread(start)
        folder = (
            open_folder(world, Path(out), dump_experiment(experiment), resume or torchrun_restarts() > 0)
            if out is not None
            else None
        )
        try:
            training = Training(experiment, assembly, folder, world=world)
            return _train_to_end(training, watch or (lambda round, rows: None))
        finally:
            if folder:
                folder.close()


def _train_to_end(training: Training, watch: Watcher) -> Result:
    """Train to the end. Ctrl-C waits for a round's end and saves it where one process trains; many could not agree."""
    if training.folder is None or training.world.size > 1:
        return training.finish(watch)
    with InterruptAfterRound() as patience:

        def after_round(round: int, rows: list[dict[str, Any]]) -> None:
            watch(round, rows)
            if patience.pressed:
                training.save()
                raise KeyboardInterrupt

        return training.finish(after_round)
