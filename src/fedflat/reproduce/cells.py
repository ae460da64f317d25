"""All tables by name. From a cell to its experiment, and from an experiment to the cells with its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fedflat.data.catalogue import DATASETS
from fedflat.errors import UserError, near_miss
from fedflat.reproduce import (
    fedgf_tables,
    fedgloss_figures,
    fedgloss_tables,
    fedsol_figures,
    fedsol_tables,
    flsam_tables,
)
from fedflat.reproduce.table import PaperTable, TableCell
from fedflat.runs.config import experiment_from_dict, experiment_to_dict
from fedflat.runs.experiment import Experiment

PAPERS = {"fedsol": "FedSOL", "fedgf": "FedGF", "fedgloss": "FedGloSS", "flsam": "FL-SAM"}
FEDSOL_TABLES = (
    fedsol_tables.TABLE1,
    fedsol_tables.TABLE2,
    fedsol_tables.TABLE3,
    *fedsol_tables.TABLES,
    *fedsol_figures.FIGURES,
)
FEDGF_TABLES = (fedgf_tables.TABLE1, *fedgf_tables.TABLES)
FEDGLOSS_TABLES = (fedgloss_tables.TABLE3, *fedgloss_tables.TABLES, *fedgloss_figures.FIGURES)

# fields of Experiment that do not change what is trained
TRAINING_FIELDS = (
    *("seeds", "eval_every", "probes", "probe_every", "checkpoint_every"),
    *("engine", "device", "precision", "threads"),
)
PARTITION = ("partition", "alpha", "shards", "long_tail", "partition_seed")
FREE_PROBES = {"drift", "norm", "fedgf", "fedgloss"}  # cost nothing: used as soon as any table asks for them
ANALYSIS_NUMBERS = {  # measure: what `fedflat analyse` measures, and the name of the number there
    "lambda1": ("hessian", "lambda1"),
    "ratio": ("hessian", "lambda1_over_lambda5"),
    "lpf": ("lpf", "lpf"),
    "discrepancy": ("discrepancy", "discrepancy"),
    "lambda-local": ("local", "mean_lambda_local"),
    "lambda-global": ("local", "mean_lambda_global"),
}
PERSONAL_SCHEMES = {"tuned": "-FT", "knn": "kNN-Per", "alone": "local-only"}  # measure: part of the scheme's name


def _order(table: PaperTable) -> tuple[bool, int]:
    """Sort key: tables before figures, each in the order of their numbers."""
    number = table.name.partition("/")[2]
    return number.startswith("figure"), int(number.removeprefix("table").removeprefix("figure"))


ORDERED = [table for paper in (FEDSOL_TABLES, FEDGF_TABLES, FEDGLOSS_TABLES) for table in sorted(paper, key=_order)]
TABLES = {table.name: table for table in [*ORDERED, flsam_tables.CIFAR10]}
MAIN_TABLES = ("fedsol/table2", "fedgloss/table3", "fedgf/table1")  # results of several tables are stored under these


def find_table(name: str) -> PaperTable:
    """Return a table by its name, such as fedsol/table2. Raise UserError if there is none."""
    if name not in TABLES:
        problem = f"unknown table{near_miss(name, TABLES)}; tables are {', '.join(TABLES)}"
        raise UserError(None, f"reproduce {name}", problem)
    return TABLES[name]


def cell_experiment(cell: TableCell, **changes: Any) -> Experiment:
    """Return the experiment of a cell, with `changes` to its fields."""
    return Experiment(**{**cell.setting, **changes})


def on_other_dataset(cell: TableCell, dataset: str) -> dict[str, Any]:
    """Return the fields that change for a quick try on another data set.

    The model is chosen for the data set; data sets that are not the papers' are small and get 20 clients.
    """
    small = {} if dataset in DATASETS else {"clients": 20, "cohort": min(cell.setting["cohort"], 5)}
    return {"dataset": dataset, "model": "auto", **small}


def experiment_key(experiment: Experiment, without: tuple[str, ...] = ("rounds",)) -> str:
    """Return a text that is equal for experiments with equal settings.

    Args:
        experiment: the experiment.
        without: fields that do not count, besides TRAINING_FIELDS (seeds, engine, device, …), which never do.
    """
    left_out = {*TRAINING_FIELDS, *without}
    text = json.dumps({n: v for n, v in experiment_to_dict(experiment).items() if n not in left_out}, sort_keys=True)
    return json.dumps(json.loads(text, parse_int=float))  # 10 and 10.0 are the same setting


def every_cell() -> list[TableCell]:
    """Return the cells of all tables, main tables first; a table's variants follow its cells."""
    tables = [TABLES[name] for name in dict.fromkeys([*MAIN_TABLES, *TABLES])]
    return [cell for table in tables for cell in (*table.cells, *table.variants)]


@cache
def cells_by_experiment() -> dict[str, list[TableCell]]:
    """Return lists of cells with equal settings, by experiment_key; in the order of `every_cell`."""
    cells: dict[str, list[TableCell]] = {}
    for cell in every_cell():
        cells.setdefault(experiment_key(cell_experiment(cell)), []).append(cell)
    return cells


def cells_like(cell: TableCell) -> list[TableCell]:
    """Return the cells of all tables with the settings of `cell`. The first one's name is the stored result's name."""
    return cells_by_experiment()[experiment_key(cell_experiment(cell))]


def wanted_measures(cells: Sequence[TableCell]) -> set[str]:
    """Return the measures of final models that cells with equal settings ask for.

    λ1 costs little and is included if any cell of any table with these settings asks for it.
    """
    cheap = {"lambda1"} & {cell.measure for cell in cells_like(cells[0])}
    return cheap | {m for cell in cells if (m := cell.measure) in ANALYSIS_NUMBERS or _scheme(m) in PERSONAL_SCHEMES}


def wanted_probes(cells: Sequence[TableCell]) -> set[str]:
    """Return the probes that cells with equal settings ask for, and the free ones that any table asks for."""
    free = {_probe(cell.measure) for cell in cells_like(cells[0])} & FREE_PROBES
    return {_probe(cell.measure) for cell in cells if _probe(cell.measure)} | free


def _probe(measure: str) -> str:
    """Return drift for drift.global_local, '' for a measure that is not a probe's."""
    return measure.partition(".")[0] if "." in measure else ""


def _scheme(measure: str) -> str:
    """Return tuned for tuned-5."""
    return measure.partition("-")[0]


def cell_source(cell: TableCell) -> str:
    """Return where a number is printed: FedSOL Table 2, or FL-SAM CIFAR-10 for a table without a number."""
    paper, _, name = cell.table.partition("/")
    kind, number = re.fullmatch(r"(\D+)(\d+)", name).groups()  # type: ignore[union-attr]
    return f"{PAPERS[paper]} {'CIFAR-' if kind == 'cifar' else kind.capitalize() + ' '}{number}"


def printed_accuracy(config: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return source and printed accuracy of a cell with the settings of a run.

    Args:
        config: the content of the run's config.yaml.

    Returns None if no table has these settings.
    """
    try:
        experiment = experiment_from_dict(config)
        key = experiment_key(experiment)
    except (UserError, TypeError, AttributeError):
        return None
    for cell in every_cell():
        if _may_print(cell, experiment) and experiment_key(cell_experiment(cell)) == key:
            assert cell.printed is not None
            return cell_source(cell), cell.printed
    return None


def _may_print(cell: TableCell, experiment: Experiment) -> bool:
    """Return whether a cell prints an accuracy of this data set and method; settings are compared afterwards."""
    if cell.printed is None or cell.variant or cell.measure not in ("final", "last50", "last100"):
        return False
    same = (cell.setting[name] == getattr(experiment, name) for name in ("dataset", "rounds"))
    return all(same) and type(cell.setting["method"]) is type(experiment.method)


def chance_accuracy(cell: TableCell) -> float:
    """Return the accuracy of guessing a class, in percent."""
    dataset = cell.setting["dataset"]
    return 100 / (DATASETS[dataset].classes if dataset in DATASETS else 10)
