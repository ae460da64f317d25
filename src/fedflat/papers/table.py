"""A table of a paper as data: its numbers as printed, and what each of its cells was trained with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Words = tuple[str, ...]
Meaning = Callable[[Words], dict[str, Any]]  # a cell's words as fields of Experiment


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
}


@dataclass(frozen=True)
class Cell:
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
        """Column and row without the row's last word, which is the method."""
        return (*self.column.split(), *self.row.split()[:-1])

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
class Table:
    """A table or figure; `spread` says what its ± is taken over."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    note: str = ""
    spread: str = "seeds"
    variants: tuple[Cell, ...] = field(default=())

    def rivals(self, cell: Cell) -> list[Cell]:
        """The cells that a cell is compared with: their names differ in the last word."""
        return [other for other in self.cells if other.group == cell.group and other.words != cell.words]

    def beside(self, other: Table) -> Table:
        """This table with the cells of another part of it."""
        return replace(self, cells=self.cells + other.cells, variants=self.variants + other.variants)


Change = Callable[[Cell], dict[str, Any] | None]  # fields of Experiment in which a variant of a cell differs


def table(
    name: str,
    title: str,
    meaning: Meaning,
    columns: Sequence[str],
    rows: str,
    measure: str = "final",
    note: str = "",
    spread: str = "seeds",
    unavailable: str = "",
    variants: Mapping[str, Change] | None = None,
) -> Table:
    """A table from the text of its rows: a name, then one value per column, as printed (. where there is none).

    A column's last word may name its measure. Values are 51.48(3.41), 51.48±3.41, 51.48, X (did not converge) or ?
    (no number printed).
    """
    cells = []
    for row, values in grid(rows, len(columns)):
        for column, value in zip(columns, values, strict=True):
            if value != ".":
                cells.append(_cell(name, column, row, value, measure, meaning, unavailable))
    others = [
        replace(cell, setting={**cell.setting, **change}, variant=variant)
        for variant, vary in (variants or {}).items()
        for cell in cells
        if (change := vary(cell))
    ]
    return Table(name, title, tuple(cells), note, spread, tuple(others))


def grid(text: str, columns: int) -> Iterator[tuple[str, list[str]]]:
    """The rows of a table's text."""
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split()
        if len(words) <= columns:
            raise ValueError(f"{columns} columns, but: {line}")
        yield " ".join(words[:-columns]), words[-columns:]


def _cell(name: str, column: str, row: str, value: str, measure: str, meaning: Meaning, unavailable: str) -> Cell:
    *words, last = [*column.split(), *row.split()]
    named = [word for word in [*words, last] if word in MEASURES]
    rest = tuple(word for word in [*words, last] if word not in MEASURES)
    number, spread = _value(value)
    used = named[-1] if named else measure
    return Cell(name, column, row, meaning(rest), used, number, spread, value == "X", unavailable)


def _value(text: str) -> tuple[float | None, float | None]:
    """A number and its ±."""
    if text in ("X", "?"):
        return None, None
    number, *spread = re.split(r"[(±]", text.rstrip(")"))
    return float(number), float(spread[0]) if spread and spread[0] != "Failed" else None


PARTITIONS = {"lda": ("lda", "alpha"), "alpha": ("dirichlet", "alpha"), "shards": ("shards", "shards")}
NUMBERS = {"cohort": int, "epochs": int, "lr": float}
FIELDS = {"epochs": "local_epochs"}


def read_words(words: Words, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of Experiment from words such as cifar10, lda-0.1, shards-2, alpha-0, cohort-5; others are passed over."""
    found: dict[str, Any] = {}
    for word in words:
        kind, _, number = word.rpartition("-")
        if word in known:
            found |= known[word]
        elif kind in PARTITIONS:
            partition, option = PARTITIONS[kind]
            found |= {"partition": partition, option: float(number) if option == "alpha" else int(number)}
        elif kind in NUMBERS:
            found[FIELDS.get(kind, kind)] = NUMBERS[kind](number)
    return found
