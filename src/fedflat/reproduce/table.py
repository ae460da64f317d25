"""A table of a paper as data: the printed numbers, what they measure, and the settings of each cell."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Words = tuple[str, ...]
SettingFromWords = Callable[[Words], dict[str, Any]]  # from a cell's words to fields of Experiment


class Measure(NamedTuple):
    """What a number measures."""

    text: str
    unit: str = ""
    higher: bool = True  # whether a higher number is better


MEASURES = {
    "final": Measure("accuracy in the last round", "%"),
    "last50": Measure("mean accuracy over the last 50 rounds", "%"),
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
    "seconds": Measure("seconds of a round", higher=False),
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


@dataclass(frozen=True)
class TableCell:
    """One number of a table.

    Args:
        table: the table's name, such as fedsol/table2.
        column, row: words that name the cell.
        setting: fields of Experiment, with the method.
        measure: what the number measures, a key of MEASURES.
        printed: the printed number; infinite for "not reached", None if there is none.
        spread: the printed ±.
        failed: the paper says that training does not converge.
        unavailable: why the number cannot be had here; '' if it can.
        variant: name of the variant; '' for the paper's own settings.
    """

    table: str
    column: str
    row: str
    setting: Mapping[str, Any]
    measure: str
    printed: float | None = None
    spread: float | None = None
    failed: bool = False
    unavailable: str = ""
    variant: str = ""

    @property
    def words(self) -> Words:
        """The words of column, row and variant."""
        return tuple(" ".join([self.column, self.row, self.variant]).split())

    @property
    def group(self) -> Words:
        """The words of column and row without the method. Cells of one group are compared with each other."""
        before, _, after = self.row.rpartition(self.method)
        return (*self.column.split(), *before.split(), *after.split())

    @property
    def method(self) -> str:
        """The word for the method: the last word of the row that is not a measure."""
        return next(word for word in reversed(self.row.split()) if word not in MEASURES)

    @property
    def name(self) -> str:
        """The unique name: fedsol/table2 cifar10 lda-0.1 fedavg."""
        return " ".join([self.table, *self.words])

    def matches(self, patterns: Sequence[str]) -> bool:
        """Return whether the cell's words match one of the patterns.

        The words of a pattern must match words of the cell in order. Without patterns every cell matches.
        """
        return not patterns or any(_match_in_order(pattern.split(), self.words) for pattern in patterns)


def _match_in_order(patterns: Sequence[str], words: Sequence[str]) -> bool:
    left = iter(words)
    return all(any(fnmatchcase(word, pattern) for word in left) for pattern in patterns)


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper.

    Args:
        name: such as fedsol/table2.
        title: what it shows.
        cells: its numbers.
        note: remarks for the reader.
        spread: over what its ± is taken, "seeds" or "clients".
        variants: the same cells with settings that differ from the paper's text, such as the released code's.
    """

    name: str
    title: str
    cells: tuple[TableCell, ...]
    note: str = ""
    spread: str = "seeds"
    variants: tuple[TableCell, ...] = ()

    def rivals(self, cell: TableCell) -> list[TableCell]:
        """Return the cells of the same group with other methods: of the same variant if there are, else the paper's."""
        others = [other for other in self.cells if other.group == cell.group and other.method != cell.method]
        varied = {(other.column, other.row): other for other in self.variants if other.variant == cell.variant}
        return [varied.get((other.column, other.row), other) for other in others]

    def joined(self, other: PaperTable) -> PaperTable:
        """Return this table with the cells of another part of it."""
        return replace(self, cells=self.cells + other.cells, variants=self.variants + other.variants)


VariantChange = Callable[[TableCell], dict[str, Any] | None]  # fields of Experiment that a variant changes in a cell


def make_table(
    name: str,
    title: str,
    setting: SettingFromWords,
    columns: Sequence[str],
    rows: str,
    measure: str = "final",
    note: str = "",
    spread: str = "seeds",
    unavailable: Mapping[str, str] | None = None,
    variants: Mapping[str, VariantChange] | None = None,
) -> PaperTable:
    """Return the table that is written as text.

    Args:
        name, title, note, spread: as in PaperTable.
        setting: returns fields of Experiment for a cell's words without the measure.
        columns: the columns' words. A word of a column or row may name the measure.
        rows: one line per row: its words, then one value per column as printed: 51.48(3.41), 51.48±3.41 or 51.48;
            X or 10.00(X) if training did not converge, - if an accuracy was not reached, ? if no number is printed,
            . if there is no such cell.
        measure: the measure of cells that name none.
        unavailable: by a cell's word (* for all cells), why the number cannot be had here.
        variants: by name, the change of settings; None from it means that the cell has no such variant.
    """
    cells = []
    for row, values in read_rows(rows, len(columns)):
        for column, value in zip(columns, values, strict=True):
            if value != ".":
                cells.append(_cell(name, column, row, value, measure, setting, unavailable or {}))
    varied = [
        replace(cell, setting={**cell.setting, **change}, variant=variant)
        for variant, change_of in (variants or {}).items()
        for cell in cells
        if (change := change_of(cell))
    ]
    return PaperTable(name, title, tuple(cells), note, spread, tuple(varied))


def read_rows(text: str, columns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield name and values of each row of a table's text."""
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split()
        if len(words) <= columns:
            raise ValueError(f"{columns} columns, but: {line}")
        yield " ".join(words[:-columns]), words[-columns:]


def _cell(
    name: str,
    column: str,
    row: str,
    value: str,
    measure: str,
    setting: SettingFromWords,
    unavailable: Mapping[str, str],
) -> TableCell:
    words = [*column.split(), *row.split()]
    own_measure = next((word for word in words if word in MEASURES), measure)
    others = tuple(word for word in words if word not in MEASURES)
    reason = next((unavailable[word] for word in [*words, "*"] if word in unavailable), "")
    return TableCell(name, column, row, setting(others), own_measure, *_read_value(value), "X" in value, reason)


def _read_value(text: str) -> tuple[float | None, float | None]:
    """Return a printed number and its ±."""
    if text in ("X", "?"):
        return None, None
    if text == "-":
        return math.inf, None
    number, *spread = re.split(r"[(±]", text.rstrip(")"))
    return float(number), float(spread[0]) if spread and spread[0] != "X" else None


PARTITION_WORDS = {
    "lda": ("lda", "alpha"),
    "dir": ("lda-equal", "alpha"),
    "alpha": ("dirichlet", "alpha"),
    "shards": ("shards", "shards"),
}
NUMBER_WORDS = {"cohort": ("cohort", int), "epochs": ("local_epochs", int), "lr": ("lr", float)}


def read_words(words: Words, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return fields of Experiment for a cell's words.

    Args:
        words: such as cifar10, lda-0.1, shards-2, alpha-0, cohort-5, epochs-1, lr-0.05.
        known: the fields of further words. Words that are not known are ignored.
    """
    fields: dict[str, Any] = {}
    for word in words:
        kind, _, number = word.rpartition("-")
        if word in known:
            fields |= known[word]
        elif kind in PARTITION_WORDS:
            partition, option = PARTITION_WORDS[kind]
            fields |= {"partition": partition, option: float(number) if option == "alpha" else int(number)}
        elif kind in NUMBER_WORDS:
            field, read = NUMBER_WORDS[kind]
            fields[field] = read(number)
    return fields
