"""All tables by name; from a cell to its experiment, and from an experiment back to the cells with its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedflat.data.catalogue import DATASETS
from fedflat.errors import UserError, near_miss
from fedflat.reproduce import fedgf_tables, fedgloss_tables, fedsol_tables
from fedflat.reproduce.table import PaperTable, TableCell
from fedflat.runs.config import experiment_from_dict, experiment_to_dict
from fedflat.runs.experiment import Experiment

FEDSOL_TABLES = (
    fedsol_tables.TABLE1,
    fedsol_tables.TABLE2,
    fedsol_tables.TABLE3,
    *fedsol_tables.TABLES,
    *fedsol_tables.FIGURES,
)


FEDGF_TABLES = (fedgf_tables.TABLE1, *fedgf_tables.TABLES)


FEDGLOSS_TABLES = (fedgloss_tables.TABLE3, *fedgloss_tables.TABLES, *fedgloss_tables.FIGURES)


def _number(table: PaperTable) -> tuple[bool, int]:
    """Tables before figures, in the order of their numbers."""
    place = table.name.partition("/")[2]
    return place.startswith("figure"), int(place.removeprefix("table").removeprefix("figure"))


TABLES = {
    table.name: table
    for paper in (FEDSOL_TABLES, FEDGF_TABLES, FEDGLOSS_TABLES)
    for table in sorted(paper, key=_number)
}


MAIN_TABLES = ("fedsol/table2", "fedgloss/table3", "fedgf/table1")  # what is trained for several is stored under these


def find_table(name: str) -> PaperTable:
    """A table by its name, such as fedsol/table2."""
    if name not in TABLES:
        raise UserError(f"reproduce {name}: unknown table{near_miss(name, TABLES)}; tables are {', '.join(TABLES)}")
    return TABLES[name]


# fields that do not change what is trained
TRAINING_FIELDS = ("seeds", "eval_every", "probes", "probe_every", "checkpoint_every", "engine", "device", "precision")


PARTITION = ("partition", "alpha", "shards", "partition_seed")


PAPERS = {"fedsol": "FedSOL", "fedgf": "FedGF", "fedgloss": "FedGloSS"}


def cell_experiment(cell: TableCell, **changes: Any) -> Experiment:
    """What a cell was trained with."""
    return Experiment(**{**cell.setting, **changes})


def on_other_dataset(cell: TableCell, dataset: str) -> dict[str, Any]:
    """What changes for a quick try on another data set: its own model, and fewer clients where it is small."""
    small = {} if dataset in DATASETS else {"clients": 20, "cohort": min(cell.setting["cohort"], 5)}
    return {"dataset": dataset, "model": "auto", **small}


def experiment_key(experiment: Experiment, without: tuple[str, ...] = ("rounds",)) -> str:
    """What is trained, as text: equal for experiments with equal settings, whatever their seeds and rounds."""
    left_out = {*TRAINING_FIELDS, *without}
    text = json.dumps({n: v for n, v in experiment_to_dict(experiment).items() if n not in left_out}, sort_keys=True)
    return json.dumps(json.loads(text, parse_int=float))  # 10 and 10.0 are the same setting


def every_cell() -> list[TableCell]:
    """The cells of all tables, their variants after them; the main tables first."""
    tables = [TABLES[name] for name in dict.fromkeys([*MAIN_TABLES, *TABLES])]
    return [cell for table in tables for cell in (*table.cells, *table.variants)]


@cache
def cells_by_experiment() -> dict[str, list[TableCell]]:
    """Cells by what they train, in the order of the papers."""
    found: dict[str, list[TableCell]] = {}
    for cell in every_cell():
        found.setdefault(experiment_key(cell_experiment(cell)), []).append(cell)
    return found


def cell_source(cell: TableCell) -> str:
    """Where a number is printed: FedSOL Table 2."""
    paper, _, place = cell.table.partition("/")
    kind = "Table" if place.startswith("table") else "Figure"
    return f"{PAPERS[paper]} {kind} {place.removeprefix(kind.lower())}"


def printed_accuracy(config: Mapping[str, Any]) -> tuple[str, float] | None:
    """Source and printed accuracy of a cell with the settings of a run's config.yaml, None where there is none."""
    try:
        given = experiment_from_dict(config, "config")
        found = cells_by_experiment().get(experiment_key(given), [])
    except (UserError, TypeError, AttributeError):
        return None
    for cell in found:
        full = cell.setting["rounds"] == given.rounds and not cell.variant
        if full and cell.printed is not None and cell.measure in ("final", "last100"):
            return cell_source(cell), cell.printed
    return None


def first_cell_like(cell: TableCell) -> TableCell:
    """The first cell that is trained alike: its name is the name of what is stored."""
    return cells_by_experiment()[experiment_key(cell_experiment(cell))][0]


def chance_accuracy(cell: TableCell) -> float:
    """Accuracy of guessing, in percent."""
    dataset = cell.setting["dataset"]
    return 100 / (DATASETS[dataset].classes if dataset in DATASETS else 10)
