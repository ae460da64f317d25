"""The papers at a glance: verdicts counted by table, one answer for each claim, and why numbers were not reproduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedflat.errors import UserError
from fedflat.reproduce.cells import TABLES, cell_source
from fedflat.reproduce.claims import (
    CLAIMS,
    FAILS,
    NOT_REPRODUCED,
    OUTSIDE,
    RANKING,
    TRAINS,
    WITHIN,
    Claim,
    our_text,
    verdict,
)
from fedflat.reproduce.results import StoredResults
from fedflat.reproduce.table import PaperTable, TableCell
from fedflat.runs.config import parse_yaml

TextRow = tuple[str, ...]
COUNTED = {WITHIN: 0, FAILS: 0, RANKING: 1, NOT_REPRODUCED: 2, TRAINS: 2, OUTSIDE: 3}  # verdict: column of the counts
COUNT_HEADINGS = ("table", "variant", "cells run", "within 2 sd", "same ranking", "not reproduced", "no rival yet")
BELIEVED = ("authors", "released", "")  # variants in the order in which they answer a claim


class CellVerdict(NamedTuple):
    """A cell with a printed number that was trained with all rounds, and what our number says about it."""

    table: PaperTable
    cell: TableCell
    verdict: str
    jpeg: bool


def cell_verdicts(stored: StoredResults) -> list[CellVerdict]:
    """Return the verdict on every cell of every table that has one."""
    found = []
    for table in TABLES.values():
        for cell in (*table.cells, *table.variants):
            if (ours := stored.ours(cell)) and (answer := verdict(table, cell, stored)):
                found.append(CellVerdict(table, cell, answer, ours.jpeg))
    return found


def without_replaced(verdicts: Sequence[CellVerdict]) -> list[CellVerdict]:
    """Leave out cells that were trained on JPEG images if any variant of them was trained on the original ones."""
    original = {_printed_cell(each) for each in verdicts if not each.jpeg}
    return [each for each in verdicts if not each.jpeg or _printed_cell(each) not in original]


def _printed_cell(each: CellVerdict) -> tuple[str, str, str]:
    return each.cell.table, each.cell.column, each.cell.row


def count_rows(verdicts: Sequence[CellVerdict]) -> list[TextRow]:
    """Return a row with the columns COUNT_HEADINGS for each table and variant."""
    groups: dict[tuple[str, str], list[CellVerdict]] = {}
    for each in verdicts:
        groups.setdefault((each.table.name, each.cell.variant), []).append(each)
    return [_count_row(group) for group in groups.values()]


def _count_row(group: Sequence[CellVerdict]) -> TextRow:
    table, first = group[0].table, group[0].cell
    cells = [cell for cell in (*table.cells, *table.variants) if cell.variant == first.variant]
    possible = [cell for cell in cells if (cell.failed or cell.printed is not None) and not cell.unavailable]
    counts = Counter(COUNTED[each.verdict] for each in group)
    run = f"{len(group)} of {len(possible)}"
    return cell_source(first), first.variant or "paper", run, *(str(counts[column]) for column in range(4))


def believed_claim(claim: Claim, stored: StoredResults) -> Claim:
    """Return the claim under the first variant of BELIEVED that was compared, on the original images if possible."""
    compared = [(each, each.comparisons(stored)) for each in map(claim.under, BELIEVED)]
    original = [each for each, comparisons in compared if comparisons and not comparisons[0].ours.jpeg]
    return next(iter([*original, *(each for each, comparisons in compared if comparisons)]), claim)


def claim_rows(stored: StoredResults) -> list[TextRow]:
    """Return table, claim, variant and answer of every claim."""
    return [_claim_row(believed_claim(claim, stored), stored) for claim in CLAIMS]


def _claim_row(claim: Claim, stored: StoredResults) -> TextRow:
    comparisons = claim.comparisons(stored)
    images = " (JPEG images, to be replaced)" if comparisons and comparisons[0].ours.jpeg else ""
    variant = claim.variant or "paper" if comparisons else ""
    return claim.table, claim.text, variant, claim.check(stored) + images


class Cause(NamedTuple):
    """Why numbers differ from the printed ones.

    Args:
        cells: pattern of the words of a cell's name, table first.
        cause: what an experiment has shown; '' if no cause is known.
        excluded: what experiments have excluded, and what was not tried.
    """

    cells: str
    cause: str = ""
    excluded: str = ""

    def matches(self, cell: TableCell) -> bool:
        """Return whether this is about a cell."""
        table, _, words = self.cells.partition(" ")
        return cell.table == table and cell.matches([words])

    @property
    def text(self) -> str:
        """The cause, or what was excluded."""
        return self.cause or f"cause not known; excluded: {self.excluded}"


@cache
def read_causes(results: Path) -> tuple[Cause, ...]:
    """Read causes.yaml of a results folder: a list of mappings with the fields of Cause."""
    path = results / "causes.yaml"
    if not path.exists():
        return ()
    try:
        entries: Any = parse_yaml(path.read_text(encoding="utf-8"))
        return tuple(Cause(**entry) for entry in entries)
    except (ValueError, TypeError) as error:
        raise UserError("results", path, f"not a list of causes ({error})") from None


def cause_rows(verdicts: Sequence[CellVerdict], stored: StoredResults, results: Path) -> list[TextRow]:
    """Return a row for each cell on the original images that was not reproduced: cell, paper, ours, cause."""
    rows: list[TextRow] = []
    for table, cell, answer, jpeg in verdicts:
        ours = stored.ours(cell)
        if ours and not jpeg and answer in (NOT_REPRODUCED, TRAINS):
            printed = "does not converge" if cell.failed else f"{cell.printed:g}"
            text = next((cause.text for cause in read_causes(results) if cause.matches(cell)), "no cause found yet")
            rows.append((f"{table.name} {' '.join(cell.words)}", printed, our_text(cell, ours), text))
    return rows
