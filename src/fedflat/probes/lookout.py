"""Where probes stand: they note what an exchange begins and ends with, and measure when the round is over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedflat.core.task import Batch, Task
from fedflat.data.batches import ClientBatches
from fedflat.engine.rounds import CohortJob, TrainedCohort, Trial
from fedflat.errors import UserError
from fedflat.experiments.experiment import Experiment
from fedflat.probes import PROBES
from fedflat.probes.sight import Sight, Value


class Lookout:
    """The probes of one experiment. From the beginning to the end of a round that they measure, it holds its models."""

    def __init__(self, experiment: Experiment, task: Task, feed: ClientBatches, test: Batch) -> None:
        self.experiment = experiment
        self._setting = (experiment.method, task, feed, test)
        self._before: list[Any] = []  # the servers' states, empty where no probe looks
        self._begun: list[tuple[CohortJob, Any]] = []
        self._ends: list[Tensor] = []

    def begin(self, trials: Sequence[Trial], jobs: Sequence[CohortJob]) -> None:
        """Note what an exchange begins with."""
        if not self.experiment.probing(jobs[0].round + 1):
            return
        if jobs[0].exchange == 0:
            self._before = [trial.server for trial in trials]
        self._begun = [(job, job.states.gather(job.clients)) for job in jobs]

    def end(self, trained: Sequence[TrainedCohort]) -> None:
        """Note what the cohorts end with."""
        if not self._before:
            return
        self._ends = [done.ends for done in trained]
        for (job, _), ends in zip(self._begun, self._ends, strict=True):
            if len(ends) != len(job.clients):
                refuse(self.experiment.probes)

    @torch.no_grad()
    def measure(self, trials: Sequence[Trial], history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What to add to each trial's metrics: {"probes": {probe.measure: value}}, nothing where no probe looks."""
        if not self._before:
            return [{} for _ in trials]
        first = not any("probes" in row for row in history)
        noted = zip(self._before, trials, self._begun, self._ends, strict=True)
        sights = [Sight(*self._setting, before, t.server, *begun, ends, first) for before, t, begun, ends in noted]
        self._before, self._begun, self._ends = [], [], []
        return [{"probes": self._probe(sight)} for sight in sights]

    def _probe(self, sight: Sight) -> dict[str, Any]:
        found = {name: PROBES[name](sight) for name in self.experiment.probes}
        return {f"{name}.{measure}": _plain(v) for name, values in found.items() for measure, v in values.items()}


def _plain(value: Value) -> Any:
    """A value as JSON has it: null where it is not a finite number."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if math.isfinite(value) else None


def refuse(names: Sequence[str]) -> None:
    """Say where probes cannot stand."""
    raise UserError(
        f"--probes {' '.join(names)}: local models are seen only where one process trains them all; "
        "leave probes out under torchrun and on Flower"
    )
