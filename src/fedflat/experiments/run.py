"""Train an experiment from start, or from where it was interrupted, to its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedflat.engine.contract import Engine
from fedflat.engine.evaluate import evaluate
from fedflat.engine.folder import RunFolder
from fedflat.engine.place import find_place, restarts
from fedflat.engine.rounds import Trial, cohort, play
from fedflat.engine.shared_folder import SharedFolder, open_folder
from fedflat.engine.world import ALONE, World, joined
from fedflat.experiments.assemble import Assembly, assemble, make_engine
from fedflat.experiments.config import dump, method_to_dict
from fedflat.experiments.experiment import Experiment
from fedflat.experiments.result import Result, summary, versions
from fedflat.experiments.traffic import traffic
from fedflat.local import SGD
from fedflat.privacy import spent
from fedflat.transfer import send

Watcher = Callable[[int, list[dict[str, Any]]], None]  # called after each round with the newest metrics


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, watch: Watcher | None = None
) -> Result:
    """Train `experiment`. With `out`, leave a run folder there; `resume` continues an interrupted one.

    Under torchrun all processes train together, and all get the result; only rank 0 needs and touches `out`. Processes
    that torchrun had to start again resume.
    """
    with joined(find_place(experiment.engine), experiment.device) as world:
        assembly = assemble(experiment)
        for start in assembly.starts:
            world.spread(start)
        folder = open_folder(world, Path(out), dump(experiment), resume or restarts() > 0) if out is not None else None
        try:
            training = Training(experiment, assembly, folder, world=world)
            return training.finish(watch or (lambda round, rows: None))
        finally:
            if folder:
                folder.close()


class Training:
    """One experiment under way: trials, metrics so far, and the round they have reached.

    `engine` and `trials` replace those that the experiment names, where clients are not simulated here.
    """

    def __init__(
        self,
        experiment: Experiment,
        assembly: Assembly,
        folder: RunFolder | SharedFolder | None,
        engine: Engine | None = None,
        trials: list[Trial] | None = None,
        world: World = ALONE,
    ) -> None:
        self.experiment, self.assembly, self.folder, self.world = experiment, assembly, folder, world
        self.engine = engine or make_engine(experiment, assembly, world)
        self.engine.prepare([self._lengths(r) for r in range(min(experiment.rounds, 50))])
        self.trials = trials or assembly.trials(experiment)
        self.test = assembly.feed.test()
        self.history: list[dict[str, Any]] = []
        self.round, self.seconds, self.steps = 0, 0.0, 0
        self._restore()

    def finish(self, watch: Watcher) -> Result:
        """Play the remaining rounds and write the result."""
        experiment, watch_start = self.experiment, time.perf_counter()
        before, last_saved = self.seconds, self.round
        while self.round < experiment.rounds and not self._all_diverged():
            self.play_round()
            self.seconds = before + time.perf_counter() - watch_start
            if self.round % experiment.eval_every == 0 or self.round == experiment.rounds:
                self._measure()
            if self.folder and self.round - last_saved >= experiment.checkpoint_every:
                self._save()
                last_saved = self.round
            watch(self.round, self.history[-len(self.trials) :])
        return self._conclude()

    def play_round(self) -> None:
        """One round of every trial."""
        experiment, feed, r = self.experiment, self.assembly.feed, self.round
        population, cohorts = len(self.assembly.parts), self._cohorts(r)
        self.world.reached(r + 1)
        lr = send(experiment.lr * experiment.lr_decay**r, feed.y.device, feed.dtype)
        sgd = SGD(lr, experiment.momentum, experiment.weight_decay)
        weights = [self._weights(c) for c in cohorts]
        play(experiment.method, self.engine, self.trials, r, cohorts, weights, population, sgd)
        self.steps += sum(self._lengths(r)) * experiment.method.exchanges
        self.round += 1

    def _cohorts(self, round: int) -> list[list[int]]:
        """The clients of every seed in a round."""
        size, population = self.experiment.cohort, len(self.assembly.parts)
        return [cohort(seed, round, population, size) for seed in self.experiment.seeds]

    def _lengths(self, round: int) -> list[int]:
        """Steps of every seed's clients in a round."""
        seeds, clients = self.experiment.seeds, self._cohorts(round)
        return [
            n for s, c in zip(seeds, clients, strict=True) for n in self.assembly.feed.lengths([s] * len(c), round, c)
        ]

    def _weights(self, clients: list[int]) -> Tensor:
        """Averaging weights of a cohort, not normalised."""
        sizes = [len(self.assembly.parts[client]) for client in clients]
        values = sizes if self.experiment.weights == "examples" else [1] * len(sizes)
        return send(values, self.assembly.feed.y.device, self.assembly.feed.dtype)

    def _measure(self) -> None:
        """Evaluate every trial, on rank 0, and log."""
        rows = self.world.share(self._evaluate)
        self.history += rows
        if self.folder:
            self.folder.log(rows)

    def _evaluate(self) -> list[dict[str, Any]]:
        """Metrics of every trial; a loss that is not finite is recorded as null."""
        rows = []
        for trial in self.trials:
            loss, accuracy = evaluate(self.assembly.task, trial.server.params, self.test)
            finite = loss if math.isfinite(loss) else None
            rows.append({"round": self.round, "seed": trial.seed, "accuracy": accuracy, "loss": finite})
        return [row | {"seconds": round(self.seconds, 3)} for row in rows]

    def _all_diverged(self) -> bool:
        """Nothing left to train: every seed's last loss is not finite."""
        last = self.history[-len(self.trials) :]
        return bool(last) and all(row["loss"] is None for row in last)

    def _save(self) -> None:
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
        self.history = self.folder.rewind(self.round)
        for trial in self.trials:
            prefix = f"trial.{trial.seed}."
            device = self.assembly.feed.y.device
            trial.unpack({n.removeprefix(prefix): t.to(device) for n, t in named.items() if n.startswith(prefix)})

    def _spent(self) -> dict[str, Any] | None:
        """The privacy that the seed with the busiest client has spent."""
        seeds, size, population = self.experiment.seeds, self.experiment.cohort, len(self.assembly.parts)
        cohorts = [[cohort(seed, r, population, size) for r in range(self.round)] for seed in seeds]
        found = [spent(self.experiment.method, each, population, sampled=True) for each in cohorts]
        return max((each for each in found if each), key=lambda each: each["epsilon"] or 0.0, default=None)

    def _conclude(self) -> Result:
        """The result, also written to the folder with the final checkpoint and the report."""
        experiment = self.experiment
        sent = traffic(experiment.method, self.assembly.starts[0])
        result = Result(
            method=method_to_dict(experiment.method)["name"],
            seeds=list(experiment.seeds),
            rounds=self.round,
            seconds=round(self.seconds, 3),
            client_steps_per_second=round(self.steps / max(self.seconds, 1e-9), 1),
            bytes_down_per_client_round=sent.down,
            bytes_up_per_client_round=sent.up,
            parameters=self.assembly.task.size,
            versions=versions(self.world.size),
            history=self.history,
            privacy=self._spent(),
            **summary(self.history, list(experiment.seeds)),
        )
        if self.folder:
            self._save()
            self.folder.finish(result.to_json())
        return result
