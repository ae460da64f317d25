"""Measurements during training, by the names that the option `probes` takes. They never change what is trained."""

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
from fedflat.probes.clients import probe_alignment, probe_class_forgetting, probe_clients, probe_sharpness
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
    "sharpness": probe_sharpness,
    "clients": probe_clients,
    "alignment": probe_alignment,
    "class-forgetting": probe_class_forgetting,
    "lambda": probe_strength,
    "norm": probe_norm,
    "fedgf": probe_fedgf,
    "fedgloss": probe_fedgloss,
    "fedgloss-exact": probe_fedgloss_exact,
    "communication": probe_communication,
    "cost": probe_cost,
}
PROBES_OF_CLASSES = ("classes", "class-forgetting", "proximal")


def check_probe_names(names: Sequence[str]) -> None:
    """Raise UserError if a name is not that of a probe."""
    for name in names:
        if name not in PROBES:
            raise UserError("probes", name, f"unknown{near_miss(name, PROBES)}; probes are {', '.join(PROBES)}")


def check_probes_without_classes(names: Sequence[str], task: str) -> None:
    """Raise UserError if a probe compares classes; `task` is one that has none."""
    if found := [name for name in names if name in PROBES_OF_CLASSES]:
        raise UserError("probes", found[0], f"compares classes, which the task {task} does not have")


def refuse_probes(names: Sequence[str]) -> None:
    """Raise UserError where probes cannot work: one process does not have all local models."""
    problem = "local models are seen only where one process trains them all"
    raise UserError("probes", tuple(names), f"{problem}; leave probes out under torchrun and on Flower")


class ProbeRunner:
    """Runs probes at the end of rounds. From the start of such a round to its end it holds the round's models.

    Call `begin` before and `end` after every exchange, and `measure` after the round.

    Args:
        names: the names of the probes.
        due: whether the probes run in a round, counted from 1.
        method: the method that is trained.
        task: the model and its loss.
        client_data: the clients' training samples.
        test: the test samples.
    """

    def __init__(
        self,
        names: Sequence[str],
        due: Callable[[int], bool],
        method: Method,
        task: Task,
        client_data: ClientBatches,
        test: Batch,
    ) -> None:
        self._names, self._due = names, due
        self._fixed = (method, task, client_data, test)  # the first fields of every RoundView
        self._servers_before: list[Any] = []  # one for each trial; empty in rounds without probes
        self._begun: list[tuple[CohortJob, Any]] = []  # each cohort's job, and its clients' states before it
        self._local_models: list[Tensor] = []

    def begin(self, trials: Sequence[Trial], jobs: Sequence[CohortJob]) -> None:
        """Keep the servers' and clients' states before an exchange."""
        if not self._due(jobs[0].round + 1):
            return
        if jobs[0].exchange == 0:
            self._servers_before = [trial.server for trial in trials]
        self._begun = [(job, job.states.gather(job.clients) if job.clients else ()) for job in jobs]

    def end(self, trained: Sequence[TrainedCohort]) -> None:
        """Keep the local models after an exchange. Raises UserError if this process does not have all of them."""
        if not self._servers_before:
            return
        self._local_models = [cohort.ends for cohort in trained]
        for (job, _), models in zip(self._begun, self._local_models, strict=True):
            if len(models) != len(job.clients):
                refuse_probes(self._names)

    @torch.no_grad()
    def measure(self, trials: Sequence[Trial], history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return what to add to each trial's row of metrics: {"probes": {"PROBE.MEASURE": value}}.

        It is {} if none is due or no client replied.

        Args:
            trials: the trials after the round.
            history: the rows of metrics so far, which tell whether probes have measured before.
        """
        if not self._servers_before:
            return [{} for _ in trials]
        first = not any("probes" in row for row in history)
        rounds = zip(self._servers_before, trials, self._begun, self._local_models, strict=True)
        views = [
            RoundView(*self._fixed, before, trial.server, job, states, models, first)
            for before, trial, (job, states), models in rounds
        ]
        self._servers_before, self._begun, self._local_models = [], [], []
        return [{"probes": self._run_probes(view)} if view.job.clients else {} for view in views]

    def _run_probes(self, view: RoundView) -> dict[str, Any]:
        values = {name: PROBES[name](view) for name in self._names}
        return {f"{name}.{key}": _json_value(v) for name, measured in values.items() for key, v in measured.items()}


def _json_value(value: ProbeValue) -> Any:
    """Return a value for JSON, with None for numbers that are not finite."""
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value if math.isfinite(value) else None
