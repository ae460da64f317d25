"""What is left to train of a table, and what can be trained together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedflat.data.prepared import prepared_path
from fedflat.data.sets import SETS
from fedflat.experiments.experiment import Experiment
from fedflat.papers.cells import PARTITION, elsewhere, key, training
from fedflat.papers.extras import wanted
from fedflat.papers.table import Cell
from fedflat.papers.values import Stored


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a table is to be reproduced."""

    results: Path = Path("results")
    runs: Path = Path("runs/reproduce")
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int | None = None
    dataset: str | None = None
    engine: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: str = "auto"
    data_note: str = ""
    deadline: float = float("inf")  # of time.monotonic()

    def changes(self, cell: Cell) -> dict[str, Any]:
        """Fields of Experiment that differ from the paper's on purpose."""
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        return {**rounds, **({} if self.dataset is None else elsewhere(cell, self.dataset))}

    def stored(self) -> Stored:
        """What there is under these changes."""
        return Stored(self.results, self.changes)

    def name(self, cell: Cell) -> str:
        """The name under which a cell is stored; changes are part of it."""
        rounds = self.rounds if self.rounds != cell.setting["rounds"] else None
        marks = [f"@{self.dataset}"] * bool(self.dataset) + [f"@rounds-{rounds}"] * bool(rounds)
        return " ".join([training(cell).name, *marks])

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


class Job(NamedTuple):
    """A cell and what is missing of it."""

    cell: Cell
    experiment: Experiment


def prepared(cell: Cell, dataset: str | None = None) -> bool:
    """Whether the data of a cell are here."""
    name = dataset or cell.setting["dataset"]
    return name not in SETS or prepared_path(name).exists()


def missing_seeds(cell: Cell, stored: Stored, request: Request) -> tuple[int, ...]:
    """The seeds of which something is missing that any table asks for."""
    trained = stored.experiment(cell)
    record = stored.record(trained)
    if record is None or record.rounds != trained.rounds:
        return request.seeds
    measures = {"final", *wanted(cell)}
    return tuple(seed for seed in request.seeds if not measures <= record.numbers(seed).keys())


def jobs(cells: Sequence[Cell], stored: Stored, request: Request) -> list[Job]:
    """One job for everything that is trained once, of cells that can be trained here and are not complete."""
    found: dict[str, Job] = {}
    how = {"engine": request.engine, "device": request.device, "precision": request.precision}
    for cell in cells:
        seeds = missing_seeds(cell, stored, request)
        if seeds and cell.measure != "models" and not cell.unavailable and prepared(cell, request.dataset):
            trained = stored.experiment(cell, seeds=seeds, **how)
            found.setdefault(key(trained), Job(cell, trained))
    return list(found.values())


def groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that differ in nothing but the partition and the seeds."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(key(job.experiment, without=PARTITION), []).append(job)
    return list(found.values())


def estimate(group: Sequence[Job], stored: Stored, hardware: str) -> float | None:
    """Seconds from stored runs of the same method, model and data on this hardware; None where there are none."""
    same = ("method", "model", "dataset", "cohort", "local_epochs", "batch_size")
    first = group[0].experiment
    rates = [
        run["seconds"] / run["rounds"] / run["lanes"]
        for records in stored.by_key.values()
        for record in records
        if all(record.config[name] == _plain(first)[name] for name in same)
        for run in record.runs
        if run["versions"]["hardware"] == hardware and run["rounds"] >= 100  # shorter ones mostly start up
    ]
    lanes = sum(len(job.experiment.seeds) for job in group)
    return min(rates) * first.rounds * lanes if rates else None


def _plain(experiment: Experiment) -> dict[str, Any]:
    from fedflat.experiments.config import to_dict

    return to_dict(experiment)
