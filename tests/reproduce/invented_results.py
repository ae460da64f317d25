"""Invented results for tests, stored as training would store them."""

from __future__ import annotations

from pathlib import Path

from fedflat.reproduce.cells import cell_experiment, find_table
from fedflat.reproduce.results import StoredRecord, write_record
from fedflat.reproduce.table import TableCell
from fedflat.runs.config import experiment_to_dict


def find_cell(name: str) -> TableCell:
    """Return a cell by its full name."""
    table = find_table(name.split()[0])
    return next(cell for cell in (*table.cells, *table.variants) if cell.name == name)


def store(
    folder: Path,
    name: str,
    *values: float,
    rounds: int | None = None,
    diverged: bool = False,
    curve: list[list[float]] | None = None,
    data: str = "CIFAR-10",
) -> None:
    """Store one value per seed, under the cell's own measure."""
    cell = find_cell(name)
    experiment = cell_experiment(cell)
    seeds = {
        str(seed): {"numbers": {cell.measure: value}, "diverged": diverged, "curve": curve or [], "run": 0}
        for seed, value in enumerate(values)
    }
    run = {"seeds": list(range(len(values))), "rounds": 100, "seconds": 50.0, "together": 1, "precision": "tf32"}
    run |= {"data": data, "versions": {"hardware": "h"}}
    write_record(folder, StoredRecord(name, experiment_to_dict(experiment), rounds or experiment.rounds, seeds, [run]))
