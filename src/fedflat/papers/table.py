"""A table of a paper as data: its numbers as printed, and what each of its cells was trained with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from fedflat.papers.measures import MEASURES

Words = tuple[str, ...]


Meaning = Callable[[Words], dict[str, Any]]  # a cell's words as fields of Experiment


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
class Table:
    """A table or figure; `spread` says what its ± is taken over."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    note: str = ""
    spread: str = "seeds"
    variants: tuple[Cell, ...] = field(default=())

    def rivals(self, cell: Cell) -> list[Cell]:
        """The cells that a cell is compared with: all but the method is the same."""
        return [other for other in self.cells if other.group == cell.group and other.method != cell.method]

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
    unavailable: Mapping[str, str] | None = None,
    variants: Mapping[str, Change] | None = None,
) -> Table:
    """A table from the text of its rows: a name, then one value per column, as printed (. where there is none).

    Values are 51.48(3.41), 51.48±3.41, 51.48, X or 10.00(X) (did not converge), - (not reached) or ? (not printed). A
    word of the column or row may name the measure. `unavailable` says why cells with a word (* for all) cannot be had.
    """
    cells = []
    for row, values in grid(rows, len(columns)):
        for column, value in zip(columns, values, strict=True):
            if value != ".":
                cells.append(_cell(name, column, row, value, measure, meaning, unavailable or {}))
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


def _cell(
    name: str, column: str, row: str, value: str, measure: str, meaning: Meaning, unavailable: Mapping[str, str]
) -> Cell:
    words = [*column.split(), *row.split()]
    used = next((word for word in words if word in MEASURES), measure)
    rest = tuple(word for word in words if word not in MEASURES)
    never = next((unavailable[word] for word in [*words, "*"] if word in unavailable), "")
    return Cell(name, column, row, meaning(rest), used, *_value(value), "X" in value, never)


def _value(text: str) -> tuple[float | None, float | None]:
    """A number and its ±."""
    if text in ("X", "?"):
        return None, None
    if text == "-":
        return math.inf, None
    number, *spread = re.split(r"[(±]", text.rstrip(")"))
    return float(number), float(spread[0]) if spread and spread[0] != "X" else None


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
