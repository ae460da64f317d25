"""From a cell to its experiment, and from an experiment back to the cells that have its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedflat.data.catalogue import DATASETS
from fedflat.errors import UserError
from fedflat.papers.catalogue import MAIN, TABLES
from fedflat.papers.table import Cell
from fedflat.runs.config import experiment_from_dict, experiment_to_dict
from fedflat.runs.experiment import Experiment

# fields that do not change what is trained
HOW = ("seeds", "eval_every", "probes", "probe_every", "checkpoint_every", "engine", "device", "precision")


PARTITION = ("partition", "alpha", "shards", "partition_seed")


PAPERS = {"fedsol": "FedSOL", "fedgf": "FedGF", "fedgloss": "FedGloSS"}


def experiment(cell: Cell, **changes: Any) -> Experiment:
    """What a cell was trained with."""
    return Experiment(**{**cell.setting, **changes})


def elsewhere(cell: Cell, dataset: str) -> dict[str, Any]:
    """What changes for a quick try on another data set: its own model, and fewer clients where it is small."""
    small = {} if dataset in DATASETS else {"clients": 20, "cohort": min(cell.setting["cohort"], 5)}
    return {"dataset": dataset, "model": "auto", **small}


def key(experiment: Experiment, without: tuple[str, ...] = ("rounds",)) -> str:
    """What is trained, as text: equal for experiments with equal settings, whatever their seeds and rounds."""
    left_out = {*HOW, *without}
    text = json.dumps({n: v for n, v in experiment_to_dict(experiment).items() if n not in left_out}, sort_keys=True)
    return json.dumps(json.loads(text, parse_int=float))  # 10 and 10.0 are the same setting


def every_cell() -> list[Cell]:
    """The cells of all tables, their variants after them; the main tables first."""
    tables = [TABLES[name] for name in dict.fromkeys([*MAIN, *TABLES])]
    return [cell for table in tables for cell in (*table.cells, *table.variants)]


@cache
def alike() -> dict[str, list[Cell]]:
    """Cells by what they train, in the order of the papers."""
    found: dict[str, list[Cell]] = {}
    for cell in every_cell():
        found.setdefault(key(experiment(cell)), []).append(cell)
    return found


def source(cell: Cell) -> str:
    """Where a number is printed: FedSOL Table 2."""
    paper, _, place = cell.table.partition("/")
    kind = "Table" if place.startswith("table") else "Figure"
    return f"{PAPERS[paper]} {kind} {place.removeprefix(kind.lower())}"


def printed(config: Mapping[str, Any]) -> tuple[str, float] | None:
    """Source and printed accuracy of a cell with the settings of a run's config.yaml, None where there is none."""
    try:
        given = experiment_from_dict(config, "config")
        found = alike().get(key(given), [])
    except (UserError, TypeError, AttributeError):
        return None
    for cell in found:
        full = cell.setting["rounds"] == given.rounds and not cell.variant
        if full and cell.printed is not None and cell.measure in ("final", "last100"):
            return source(cell), cell.printed
    return None


def training(cell: Cell) -> Cell:
    """The first cell that is trained alike: its name is the name of what is stored."""
    return alike()[key(experiment(cell))][0]


def chance(cell: Cell) -> float:
    """Accuracy of guessing, in percent."""
    dataset = cell.setting["dataset"]
    return 100 / (DATASETS[dataset].classes if dataset in DATASETS else 10)
