"""Measurements during training, by the names that `--probes` takes. They never change what is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.data.batches import ClientBatches
from fedflat.engine.rounds import CohortJob, TrainedCohort, Trial
from fedflat.errors import UserError, near_miss
from fedflat.probes.methods import (
    probe_communication,
    probe_cost,
    probe_fedgf,
    probe_fedgloss,
    probe_fedgloss_exact,
    probe_strength,
)
from fedflat.probes.models import probe_classes, probe_drift, probe_forgetting, probe_norm, probe_proximal
from fedflat.probes.probe import Probe, ProbeValue, RoundView

PROBES: dict[str, Probe] = {
    "drift": probe_drift,
    "forgetting": probe_forgetting,
    "classes": probe_classes,
    "proximal": probe_proximal,
    "lambda": probe_strength,
    "norm": probe_norm,
    "fedgf": probe_fedgf,
    "fedgloss": probe_fedgloss,
    "fedgloss-exact": probe_fedgloss_exact,
    "communication": probe_communication,
    "cost": probe_cost,
}


def check_probe_names(names: Sequence[str]) -> None:
    """Refuse names that no probe has."""
    for name in names:
        if name not in PROBES:
            raise UserError(f"--probes {name}: unknown{near_miss(name, PROBES)}; probes are {', '.join(PROBES)}")


class ProbeRunner:
    """Runs the probes called `names` in every round r, counted from 1, for which `due(r)` is true.

    It holds the models of such a round from the round's beginning to its end.
    """

    def __init__(
        self,
        names: Sequence[str],
        due: Callable[[int], bool],
        method: Method,
        task: Task,
        batches: ClientBatches,
        test: Batch,
    ) -> None:
        self._names, self._due = names, due
        self._setting = (method, task, batches, test)
        self._before: list[Any] = []  # the servers' states, empty where no probe looks
        self._begun: list[tuple[CohortJob, Any]] = []
        self._ends: list[Tensor] = []

    def begin(self, trials: Sequence[Trial], jobs: Sequence[CohortJob]) -> None:
        """Note what an exchange begins with."""
        if not self._due(jobs[0].round + 1):
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
                refuse_probes(self._names)

    @torch.no_grad()
    def measure(self, trials: Sequence[Trial], history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What to add to each trial's metrics: {"probes": {probe.measure: value}}, nothing where no probe looks."""
        if not self._before:
            return [{} for _ in trials]
        first = not any("probes" in row for row in history)
        noted = zip(self._before, trials, self._begun, self._ends, strict=True)
        views = [RoundView(*self._setting, before, t.server, *begun, ends, first) for before, t, begun, ends in noted]
        self._before, self._begun, self._ends = [], [], []
        return [{"probes": self._probe(view)} for view in views]

    def _probe(self, view: RoundView) -> dict[str, Any]:
        found = {name: PROBES[name](view) for name in self._names}
        return {f"{name}.{measure}": _plain(v) for name, values in found.items() for measure, v in values.items()}


def _plain(value: ProbeValue) -> Any:
    """A value as JSON has it: null where it is not a finite number."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if math.isfinite(value) else None


def refuse_probes(names: Sequence[str]) -> None:
    """Say where probes cannot stand."""
    raise UserError(
        f"--probes {' '.join(names)}: local models are seen only where one process trains them all; "
        "leave probes out under torchrun and on Flower"
    )
