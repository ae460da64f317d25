"""What a paper claims, as comparisons of cells, checked against our numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fedflat.papers.catalogue import find_table
from fedflat.papers.measures import MEASURES
from fedflat.papers.table import Cell
from fedflat.papers.values import Stored

HOLDS, DOES_NOT, NOT_RUN, NOT_HERE = "holds", "does not hold here", "not run yet", "cannot be run here"


@dataclass(frozen=True)
class Claim:
    """In every chosen column of a table, `best` is better than each of `than` (all other rows unless given)."""

    text: str
    table: str
    columns: str  # a pattern as of --cells
    best: str
    than: tuple[str, ...] = ()
    margin: float = 0.0

    def pairs(self) -> list[tuple[Cell, Cell]]:
        """Every cell of `best` beside each that it shall beat."""
        table = find_table(self.table)
        chosen = [c for c in table.cells if c.method == self.best and c.matches([self.columns])]
        return [(cell, other) for cell in chosen for other in table.rivals(cell) if self._rival(other)]

    def _rival(self, other: Cell) -> bool:
        return not other.unavailable and (not self.than or other.method in self.than)

    def check(self, stored: Stored) -> str:
        """Whether it holds here; a comparison without both numbers, at all rounds, is left out."""
        pairs = self.pairs()
        known = [lead > self.margin for one, other in pairs if (lead := _lead(one, other, stored)) is not None]
        if not all(known):
            return f"{DOES_NOT} ({known.count(False)} of {len(known)} comparisons fail)"
        if not known:
            return NOT_RUN if pairs else NOT_HERE
        return HOLDS if len(known) == len(pairs) else f"{HOLDS} where run ({len(known)} of {len(pairs)} comparisons)"

    def figures(self, stored: Stored) -> str:
        """In each column that was run, our number of `best` and that of its strongest rival."""
        nearest: dict[str, tuple[float, Cell, Cell]] = {}
        for one, other in self.pairs():
            lead = _lead(one, other, stored)
            if lead is not None and (one.name not in nearest or lead < nearest[one.name][0]):
                nearest[one.name] = (lead, one, other)
        return "; ".join(_beside(one, other, stored) for _, one, other in nearest.values())


def _lead(one: Cell, other: Cell, stored: Stored) -> float | None:
    """By how much one cell's number is better than another's; None where one is missing. What diverged is beaten."""
    ours, theirs = stored.ours(one), stored.ours(other)
    if ours is None or theirs is None or not (stored.comparable(one, ours) and stored.comparable(other, theirs)):
        return None
    sign = 1 if MEASURES[one.measure].higher else -1
    return sign * (ours.mean - theirs.mean)


def _beside(one: Cell, other: Cell, stored: Stored) -> str:
    """lda-0.1 fedsol 62.05, fedntd 56.74."""
    numbers = [f"{cell.method} {_short(ours.mean)}" for cell in (one, other) if (ours := stored.ours(cell))]
    return f"{' '.join(one.group[1:] or one.group)}: {', '.join(numbers)}"


def _short(number: float) -> str:
    """Four digits, or all of a larger number before the point."""
    return f"{number:.4g}" if number < 10_000 else f"{number:.0f}"
