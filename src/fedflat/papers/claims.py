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
        known = [held for one, other in pairs if (held := _better(one, other, stored, self.margin)) is not None]
        if not all(known):
            return f"{DOES_NOT} ({known.count(False)} of {len(known)} comparisons fail)"
        if not known:
            return NOT_RUN if pairs else NOT_HERE
        return HOLDS if len(known) == len(pairs) else f"{HOLDS} where run ({len(known)} of {len(pairs)} comparisons)"


def _better(one: Cell, other: Cell, stored: Stored, margin: float) -> bool | None:
    """Whether one cell's number beats another's; None where one is missing. What diverged is beaten."""
    ours, theirs = stored.ours(one), stored.ours(other)
    if ours is None or theirs is None or not (stored.comparable(one, ours) and stored.comparable(other, theirs)):
        return None
    sign = 1 if MEASURES[one.measure].higher else -1
    return sign * (ours.mean - theirs.mean) > margin
