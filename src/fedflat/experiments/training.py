"""One experiment under way, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedflat.core.local_training import SGD, count_traffic
from fedflat.core.state import send_to_device
from fedflat.core.task import Batch
from fedflat.engine.folder import RunFolder
from fedflat.engine.processes import SINGLE_PROCESS, ProcessGroup
from fedflat.engine.rounds import (
    CohortJob,
    Engine,
    TrainedCohort,
    Trial,
    choose_cohort,
    cohort_jobs,
    evaluation_task,
    update_servers,
)
from fedflat.engine.shared_folder import SharedFolder
from fedflat.experiments.assemble import Assembly, home_of, make_engine
from fedflat.experiments.config import method_to_dict
from fedflat.experiments.experiment import Experiment
from fedflat.experiments.metrics import metrics
from fedflat.experiments.result import Result, privacy_of_simulation, summary, versions
from fedflat.probes.lookout import Lookout

RARELY = 20  # checkpoints of large states take at most about one part in so many of the time


Watcher = Callable[[int, list[dict[str, Any]]], None]  # called after each round with the newest metrics


def outlook(experiment: Experiment, assembly: Assembly) -> list[list[int]]:
    """Steps of every seed's clients in the first rounds."""
    return [_lengths(experiment, assembly, round) for round in range(min(experiment.rounds, 50))]


def _cohorts(experiment: Experiment, assembly: Assembly, round: int) -> list[list[int]]:
    """The clients of every seed in a round."""
    return [choose_cohort(seed, round, len(assembly.parts), experiment.cohort) for seed in experiment.seeds]


def _lengths(experiment: Experiment, assembly: Assembly, round: int) -> list[int]:
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
        assembly: Assembly,
        folder: RunFolder | SharedFolder | None,
        engine: Engine | None = None,
        trials: list[Trial] | None = None,
        world: ProcessGroup = SINGLE_PROCESS,
        test: Batch | None = None,
    ) -> None:
        self.experiment, self.assembly, self.folder, self.world = experiment, assembly, folder, world
        self.engine = engine or self._engine()
        self.trials = trials or assembly.trials(experiment, home_of([(experiment, assembly)], self.engine, world.size))
        self.test = test or assembly.feed.test()
        self.evaluator = evaluation_task(assembly.task, self.test.y.device)
        self.lookout = Lookout(experiment, assembly.task, assembly.feed, self.test)
        self.history: list[dict[str, Any]] = []
        self.round, self.seconds, self.steps = 0, 0.0, 0
        self._restore()
        self._saved, self._quiet_until = self.round, 0.0

    def _engine(self) -> Engine:
        """The engine that the experiment names, told what is to come."""
        engine = make_engine(self.experiment, self.assembly, self.world)
        engine.prepare(outlook(self.experiment, self.assembly))
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
        self.lookout.begin(self.trials, jobs)
        return jobs

    def settle(self, trained: Sequence[TrainedCohort]) -> None:
        """Update every trial's server with what its cohort learned."""
        self.lookout.end(trained)
        update_servers(self.experiment.method, self.trials, trained)

    def end_round(self) -> None:
        """Count the round that was played."""
        self.steps += sum(_lengths(self.experiment, self.assembly, self.round)) * self.experiment.method.exchanges
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
        rows = [metrics(self.evaluator, trial, self.test, self.round, self.seconds) for trial in self.trials]
        return [row | more for row, more in zip(rows, self.lookout.measure(self.trials, self.history), strict=True)]

    def _checkpoint(self) -> None:
        """Save; in one process (many must agree) a save that took seconds is not repeated too soon.

        Unless one is asked for after every round: nodes of a federation go back by one round at most.
        """
        before = time.perf_counter()
        self.save()
        self._saved, spent = self.round, time.perf_counter() - before
        if spent > 1 and self.world.size == 1 and self.experiment.checkpoint_every > 1:
            self._quiet_until = self.seconds + RARELY * spent

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
            versions=versions(self.world.size),
            history=self.history,
            privacy=privacy
            or privacy_of_simulation(experiment.method, seeds, self.round, len(self.assembly.parts), experiment.cohort),
            clients=len(self.assembly.parts),
            **summary(self.history, seeds),
        )
        if self.folder:
            self.save()
            self.folder.finish(result.to_json())
        return result
