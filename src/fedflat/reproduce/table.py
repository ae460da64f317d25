"""A table of a paper as data: its numbers as printed, what they measure, and what each cell was trained with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class Measure(NamedTuple):
    """What a number says."""

    text: str
    unit: str = ""
    higher: bool = True  # whether more is better


MEASURES = {
    "final": Measure("accuracy in the last round", "%"),
    "last100": Measure("mean accuracy over the last 100 rounds", "%"),
    "half": Measure("mean accuracy over the last 100 rounds of the first half", "%"),
    "rounds": Measure("rounds until FedAvg's final accuracy", higher=False),
    "sent": Measure("hundreds of models sent per client until FedAvg's final accuracy", higher=False),
    "models": Measure("models sent per client and round", higher=False),
    "lambda1": Measure("largest Hessian eigenvalue λ1", higher=False),
    "ratio": Measure("λ1 / λ5", higher=False),
    "lpf": Measure("loss under Gaussian noise", higher=False),
    "discrepancy": Measure("flatness discrepancy Δ_F", higher=False),
    "lambda-local": Measure("λ1 of local models on their own data, mean over clients", higher=False),
    "lambda-global": Measure("λ1 of local models on all data, mean over clients", higher=False),
    "tuned-1": Measure("mean accuracy of clients after 1 epoch of fine-tuning", "%"),
    "tuned-5": Measure("mean accuracy of clients after 5 epochs of fine-tuning", "%"),
    "knn-1": Measure("the same with kNN-Per, 1 epoch", "%"),
    "knn-5": Measure("the same with kNN-Per, 5 epochs", "%"),
    "alone": Measure("mean accuracy of clients that train alone", "%"),
    "plot": Measure("drawn, not a number"),
    "latency": Measure("seconds of a local step", higher=False),
    "drift.global_local": Measure("mean distance of local models from the global one", higher=False),
    "drift.local_local": Measure("mean distance of local models from each other", higher=False),
    "proximal.loss": Measure("proximal loss of local models", higher=False),
    "proximal.cosine": Measure("cosine of the update and the proximal gradient"),
    "forgetting.after": Measure("mean accuracy of local models on all classes, as a fraction"),
    "classes.accuracy": Measure("accuracy on the worst class, as a fraction"),
    "norm.model": Measure("length of the global model", higher=False),
    "fedgf.c": Measure("FedGF's c"),
    "fedgloss.delta": Measure("change of the perturbation between rounds, δ_ε", higher=False),
}


Words = tuple[str, ...]


Meaning = Callable[[Words], dict[str, Any]]  # a cell's words as fields of Experiment


@dataclass(frozen=True)
class TableCell:
    """One number of a table: `column` and `row` name it, `setting` are fields of Experiment, with the method."""

    table: str
    column: str
    row: str
    setting: Mapping[str, Any]
    measure: str
    printed: float | None = None
    spread: float | None = None  # the printed ±
    failed: bool = False  # printed as not converging
    unavailable: str = ""
    variant: str = ""

    @property
    def words(self) -> Words:
        """What follows the table in the cell's name."""
        return tuple(" ".join([self.column, self.row, self.variant]).split())

    @property
    def group(self) -> Words:
        """The cell's words but for the method, which is the last of the row's that names no measure."""
        before, _, after = self.row.rpartition(self.method)
        return (*self.column.split(), *before.split(), *after.split())

    @property
    def method(self) -> str:
        """The word for the method."""
        return next(word for word in reversed(self.row.split()) if word not in MEASURES)

    @property
    def name(self) -> str:
        """The cell's identity: fedsol/table2 cifar10 lda-0.1 fedavg."""
        return " ".join([self.table, *self.words])

    def matches(self, patterns: Sequence[str]) -> bool:
        """Whether all words of one of the patterns match words of the cell, in order; none given match every cell."""
        return not patterns or any(_in_order(pattern.split(), self.words) for pattern in patterns)


def _in_order(patterns: Sequence[str], words: Sequence[str]) -> bool:
    left = iter(words)
    return all(any(fnmatchcase(word, pattern) for word in left) for pattern in patterns)


@dataclass(frozen=True)
class PaperTable:
    """A table or figure; `spread` says what its ± is taken over."""

    name: str
    title: str
    cells: tuple[TableCell, ...]
    note: str = ""
    spread: str = "seeds"
    variants: tuple[TableCell, ...] = field(default=())

    def rivals(self, cell: TableCell) -> list[TableCell]:
        """The cells that a cell is compared with: all but the method is the same."""
        return [other for other in self.cells if other.group == cell.group and other.method != cell.method]

    def beside(self, other: PaperTable) -> PaperTable:
        """This table with the cells of another part of it."""
        return replace(self, cells=self.cells + other.cells, variants=self.variants + other.variants)


Change = Callable[[TableCell], dict[str, Any] | None]  # fields of Experiment in which a variant of a cell differs


def make_table(
    name: str,
    title: str,
    meaning: Meaning,
    columns: Sequence[str],
    rows: str,
    measure: str = "final",
    note: str = "",
    spread: str = "seeds",
    unavailable: Mapping[str, str] | None = None,
    variants: Mapping[str, Change] | None = None,
) -> PaperTable:
    """A table from the text of its rows: a name, then one value per column, as printed (. where there is none).

    Values are 51.48(3.41), 51.48±3.41, 51.48, X or 10.00(X) (did not converge), - (not reached) or ? (not printed). A
    word of the column or row may name the measure. `unavailable` says why cells with a word (* for all) cannot be had.
    """
    cells = []
    for row, values in read_rows(rows, len(columns)):
        for column, value in zip(columns, values, strict=True):
            if value != ".":
                cells.append(_cell(name, column, row, value, measure, meaning, unavailable or {}))
    others = [
        replace(cell, setting={**cell.setting, **change}, variant=variant)
        for variant, vary in (variants or {}).items()
        for cell in cells
        if (change := vary(cell))
    ]
    return PaperTable(name, title, tuple(cells), note, spread, tuple(others))


def read_rows(text: str, columns: int) -> Iterator[tuple[str, list[str]]]:
    """The rows of a table's text."""
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split()
        if len(words) <= columns:
            raise ValueError(f"{columns} columns, but: {line}")
        yield " ".join(words[:-columns]), words[-columns:]


def _cell(
    name: str, column: str, row: str, value: str, measure: str, meaning: Meaning, unavailable: Mapping[str, str]
) -> TableCell:
    words = [*column.split(), *row.split()]
    used = next((word for word in words if word in MEASURES), measure)
    rest = tuple(word for word in words if word not in MEASURES)
    never = next((unavailable[word] for word in [*words, "*"] if word in unavailable), "")
    return TableCell(name, column, row, meaning(rest), used, *_value(value), "X" in value, never)


def _value(text: str) -> tuple[float | None, float | None]:
    """A number and its ±."""
    if text in ("X", "?"):
        return None, None
    if text == "-":
        return math.inf, None
    number, *spread = re.split(r"[(±]", text.rstrip(")"))
    return float(number), float(spread[0]) if spread and spread[0] != "X" else None


PARTITION_WORDS = {"lda": ("lda", "alpha"), "alpha": ("dirichlet", "alpha"), "shards": ("shards", "shards")}


NUMBERS = {"cohort": int, "epochs": int, "lr": float}


FIELDS = {"epochs": "local_epochs"}


def read_words(words: Words, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of Experiment from words such as cifar10, lda-0.1, shards-2, alpha-0, cohort-5; others are passed over."""
    found: dict[str, Any] = {}
    for word in words:
        kind, _, number = word.rpartition("-")
        if word in known:
            found |= known[word]
        elif kind in PARTITION_WORDS:
            partition, option = PARTITION_WORDS[kind]
            found |= {"partition": partition, option: float(number) if option == "alpha" else int(number)}
        elif kind in NUMBERS:
            found[FIELDS.get(kind, kind)] = NUMBERS[kind](number)
    return found
