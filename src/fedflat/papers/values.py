"""Our numbers for a cell, from what is stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedflat.core.local_training import count_traffic
from fedflat.methods.fedavg import FedAvg
from fedflat.papers.cells import experiment, key
from fedflat.papers.record import Record, read_all
from fedflat.papers.table import Cell
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import mean_std

SIZE = 1000  # parameters of the model on which messages are counted


class Ours(NamedTuple):
    """One value per seed, in the paper's unit, and the rounds they took; `diverged` counts seeds without a model."""

    values: list[float]
    rounds: int
    diverged: int = 0

    @property
    def mean(self) -> float:
        """Over seeds."""
        return mean_std(self.values)[0]

    @property
    def std(self) -> float:
        """Over seeds; 0 for one."""
        return mean_std(self.values)[1] if math.isfinite(self.mean) else 0.0


def as_printed(cell: Cell) -> dict[str, Any]:
    """No changes to a cell's settings."""
    return {}


class Stored:
    """The records of a results folder; `changes` says in which fields of Experiment they differ from the paper."""

    def __init__(self, folder: Path, changes: Callable[[Cell], dict[str, Any]] = as_printed) -> None:
        self.folder, self.changes = folder, changes
        self.records: dict[str, dict[int, Record]] = {}  # by key and rounds
        for record in read_all(folder):
            same = self.records.setdefault(record.key, {})
            same[record.rounds] = same[record.rounds].merged(record) if record.rounds in same else record

    def experiment(self, cell: Cell, **more: Any) -> Experiment:
        """What stands for a cell here."""
        return experiment(cell, **{**self.changes(cell), **more})

    def comparable(self, cell: Cell, ours: Ours) -> bool:
        """Whether our number was trained with the settings and all the rounds of the paper's."""
        return ours.rounds >= cell.setting["rounds"] and key(self.experiment(cell)) == key(experiment(cell))

    def record(self, trained: Experiment) -> Record | None:
        """What is stored of an experiment: all its rounds, or else as many as there are."""
        found = self.records.get(key(trained), {})
        return found.get(trained.rounds) or found.get(max(found, default=0))

    def ours(self, cell: Cell) -> Ours | None:
        """Our numbers for a cell, None where there are none."""
        trained = self.experiment(cell)
        if cell.unavailable:
            return None
        if cell.measure == "models":
            return Ours([models(trained)], trained.rounds)
        record = self.record(trained)
        if record is None:
            return None
        if cell.measure in ("rounds", "sent"):
            return self._until_fedavg(cell, record)
        found = [record.numbers(seed).get(cell.measure) for seed in record.seeds]
        values = [value for value in found if value is not None]
        lost = sum(bool(seed.get("diverged")) for seed in record.seeds.values())
        return Ours(values, record.rounds, lost) if values else None

    def _until_fedavg(self, cell: Cell, record: Record) -> Ours | None:
        """Rounds until FedAvg's final accuracy, or the models sent by then; infinite where a seed is not there."""
        if isinstance(cell.setting["method"], FedAvg):
            return Ours([record.rounds], record.rounds)
        goal = self.record(self.experiment(cell, method=FedAvg()))
        if goal is None or goal.rounds != record.rounds:
            return None
        target = mean_std([v for s in goal.seeds if (v := goal.numbers(s).get("last100")) is not None])[0]
        firsts = [first_reaching(record.seeds[s]["curve"], target) for s in record.seeds]
        factor = models(self.experiment(cell)) / 100 if cell.measure == "sent" else 1.0
        return Ours([factor * first for first in firsts], record.rounds)


def first_reaching(curve: Sequence[Sequence[float]], target: float) -> float:
    """The first stored round whose accuracy is `target` or more, infinity where there is none."""
    return next((round for round, accuracy in curve if accuracy >= target), math.inf)


def models(trained: Experiment) -> float:
    """Models that a client receives and sends in a round, counted on messages; scalars beside them are not."""
    sent = count_traffic(trained.method, torch.zeros(SIZE))
    return float(round((sent.down + sent.up) / SIZE / 4))
