"""What is left to train of a table, and what can be trained together."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedflat.data.catalogue import DATASETS
from fedflat.data.prepared import prepared_path
from fedflat.methods.fedavg import FedAvg
from fedflat.papers.cells import PARTITION, elsewhere, key, training
from fedflat.papers.extras import probes, wanted
from fedflat.papers.table import Cell
from fedflat.papers.values import Stored
from fedflat.runs.config import dump_experiment
from fedflat.runs.experiment import Experiment

RESERVE = 5.0  # seconds of a budget for writing results


PROBED = 10  # rounds of a run in which probes measure


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
        often = {"checkpoint_every": min(cell.setting["checkpoint_every"], max(1, (self.rounds or 0) // 10))}
        rounds = {} if self.rounds is None else {"rounds": self.rounds, **often}
        return {**rounds, **({} if self.dataset is None else elsewhere(cell, self.dataset))}

    def stored(self) -> Stored:
        """What there is under these changes."""
        return Stored(self.results, self.changes)

    def name(self, cell: Cell) -> str:
        """The name under which a cell is stored; changes are part of it."""
        rounds = self.rounds if self.rounds != cell.setting["rounds"] else None
        marks = [f"@{self.dataset}"] * bool(self.dataset) + [f"@rounds-{rounds}"] * bool(rounds)
        return " ".join([training(cell).name, *marks])

    def folder(self, job: Job) -> Path:
        """The run folder of a job: another one for every configuration."""
        digest = hashlib.sha256(dump_experiment(job.experiment).encode()).hexdigest()[:8]
        stored = training(job.cells[0])
        return self.runs / stored.table / f"{'_'.join(stored.words)}-{digest}"

    def left(self) -> float:
        """Seconds until the deadline, less what writing takes."""
        return self.deadline - time.monotonic() - RESERVE

    def fits(self, seconds: float) -> bool:
        """Whether what is thought to take so long ends in time."""
        return 1.05 * seconds <= self.left()


class Job(NamedTuple):
    """Cells that are trained alike, and the experiment with what is missing of them."""

    cells: list[Cell]
    experiment: Experiment

    @property
    def label(self) -> str:
        """The first cell's words."""
        return " ".join(self.cells[0].words)


def prepared(cell: Cell, dataset: str | None = None) -> bool:
    """Whether the data of a cell are here."""
    name = dataset or cell.setting["dataset"]
    return name not in DATASETS or prepared_path(name).exists()


def missing_seeds(cells: Sequence[Cell], stored: Stored, request: Request) -> tuple[int, ...]:
    """The seeds of which something is missing that these cells, trained alike, ask for."""
    trained = stored.experiment(cells[0])
    record = stored.record(trained)
    if record is None or record.rounds != trained.rounds:
        return request.seeds
    measures = {"final", *wanted(cells), *(cell.measure for cell in cells if "." in cell.measure)}
    return tuple(seed for seed in request.seeds if not measures <= record.numbers(seed).keys())


def goals(cells: Sequence[Cell]) -> list[Cell]:
    """FedAvg's cells, whose final accuracies others are to reach."""
    racing = [cell for cell in cells if cell.measure in ("rounds", "sent")]
    return [replace(c, row="fedavg", measure="last100", setting={**c.setting, "method": FedAvg()}) for c in racing]


def jobs(cells: Sequence[Cell], stored: Stored, request: Request) -> list[Job]:
    """One job for everything that is trained once, of cells that can be trained here and are not complete."""
    found: dict[str, list[Cell]] = {}
    for cell in [*cells, *goals(cells)]:
        if cell.measure != "models" and not cell.unavailable and prepared(cell, request.dataset):
            found.setdefault(key(stored.experiment(cell)), []).append(cell)
    how = {"engine": request.engine, "device": request.device, "precision": request.precision}
    lacking = [(alike, missing_seeds(alike, stored, request)) for alike in found.values()]
    return [Job(alike, stored.experiment(alike[0], seeds=seeds, **how)) for alike, seeds in lacking if seeds]


def groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that differ in nothing but the partition and the seeds; all of a group take the probes that any asks for."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(key(job.experiment, without=PARTITION), []).append(job)
    return [_probing(group) for group in found.values()]


def _probing(group: list[Job]) -> list[Job]:
    asked = {probe for job in group for probe in probes(job.cells)}
    every = max(1, group[0].experiment.rounds // PROBED)
    fields: dict[str, Any] = {"probes": tuple(sorted(asked)), "probe_every": every, "eval_every": math.gcd(every, 10)}
    return [job._replace(experiment=replace(job.experiment, **fields)) if asked else job for job in group]
