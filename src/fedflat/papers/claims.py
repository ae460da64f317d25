"""What a paper claims, as comparisons of cells, checked against our numbers.

Two means m₁ and m₂ over seeds with standard errors e₁ and e₂ (of a single seed, the paper's ±) are told apart where
they differ by more than 2 √(e₁² + e₂² + f²), f being 0.5 points for accuracies and 5 % of the larger mean otherwise.
A claim

- holds where it is so in every comparison that was run,
- does not hold here where one is decided the other way,
- is undecided where none is, but some are too close to tell.

Rivals that diverged here are named and not compared. What is never reached takes infinitely many rounds. "As released"
means the best with what the released code does, and its rivals as the papers have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedflat.papers.catalogue import find_table
from fedflat.papers.measures import MEASURES
from fedflat.papers.render import own
from fedflat.papers.table import Cell
from fedflat.papers.values import Ours, Stored

HOLDS, DOES_NOT, UNDECIDED, NOT_RUN, NOT_HERE = (
    "holds",
    "does not hold here",
    "undecided",
    "not run yet",
    "cannot be run here",
)


class Compared(NamedTuple):
    """Two cells with our numbers; by how much the first is better, and how much that may be by chance."""

    one: Cell
    other: Cell
    ours: Ours
    theirs: Ours

    @property
    def lead(self) -> float:
        """Positive where the first is better."""
        if self.ours.mean == self.theirs.mean:
            return 0.0
        return (1 if MEASURES[self.one.measure].higher else -1) * (self.ours.mean - self.theirs.mean)

    @property
    def chance(self) -> float:
        """2 √(e₁² + e₂² + f²)."""
        largest = max((abs(ours.mean) for ours in (self.ours, self.theirs) if math.isfinite(ours.mean)), default=0.0)
        unknown = 0.5 if MEASURES[self.one.measure].unit == "%" else 0.05 * largest
        return 2 * math.hypot(_error(self.one, self.ours), _error(self.other, self.theirs), unknown)


def _error(cell: Cell, ours: Ours) -> float:
    """The standard error of our mean, the paper's ± where there is one seed only."""
    seeds = len(ours.values)
    return ours.std / math.sqrt(seeds) if seeds > 1 else cell.spread or 0.0


@dataclass(frozen=True)
class Claim:
    """In every chosen column of a table, `best` is better than each of `than` (all other rows unless given)."""

    text: str
    table: str
    columns: str  # a pattern as of --cells
    best: str
    than: tuple[str, ...] = ()
    margin: float = 0.0
    variant: str = ""  # of `best`

    def released(self) -> Claim:
        """The same of the released code."""
        return replace(self, text=f"{self.text}, as released", variant="released")

    def pairs(self) -> list[tuple[Cell, Cell]]:
        """Every cell of `best` beside each that it shall beat."""
        table = find_table(self.table)
        pool = [cell for cell in (*table.cells, *table.variants) if cell.variant == self.variant]
        chosen = [cell for cell in pool if cell.method == self.best and cell.matches([self.columns])]
        return [(cell, other) for cell in chosen for other in table.rivals(cell) if self._rival(other)]

    def _rival(self, other: Cell) -> bool:
        return not other.unavailable and (not self.than or other.method in self.than)

    def check(self, stored: Stored) -> str:
        """Whether it holds here; a comparison without both numbers, at all rounds, is left out."""
        every = self.compared(stored)
        lost = dict.fromkeys(c.other.method for c in every if c.theirs.diverged)
        found = self._answer([c for c in every if not c.theirs.diverged])
        return f"{found}; {', '.join(lost)} diverged" if lost else found

    def _answer(self, compared: list[Compared]) -> str:
        total = len(self.pairs())
        if not compared:
            return NOT_RUN if total else NOT_HERE
        against = sum(c.lead - self.margin < -c.chance for c in compared)
        close = sum(abs(c.lead - self.margin) <= c.chance for c in compared)
        if against or close:
            few = f"{against or close} of {len(compared)} comparisons"
            return f"{DOES_NOT} ({few} fail)" if against else f"{UNDECIDED} ({few} too close)"
        return HOLDS if len(compared) == total else f"{HOLDS} where run ({len(compared)} of {total} comparisons)"

    def compared(self, stored: Stored) -> list[Compared]:
        """The pairs of which both have numbers after all rounds."""
        numbers = [(one, other, stored.ours(one), stored.ours(other)) for one, other in self.pairs()]
        known = [Compared(one, other, a, b) for one, other, a, b in numbers if a and b]
        return [c for c in known if stored.comparable(c.one, c.ours) and stored.comparable(c.other, c.theirs)]

    def figures(self, stored: Stored) -> str:
        """In each column that was run, our number of `best` and that of its strongest rival."""
        nearest: dict[str, Compared] = {}
        for compared in self.compared(stored):
            known = nearest.get(compared.one.name)
            if not compared.theirs.diverged and (known is None or compared.lead < known.lead):
                nearest[compared.one.name] = compared
        return "; ".join(_beside(compared) for compared in nearest.values())


def _beside(compared: Compared) -> str:
    """lda-0.1: fedsol 62.05 ± 1.57 (3 seeds), fedntd 56.74 (1 seed)."""
    one, other, ours, theirs = compared
    numbers = f"{one.method} {own(one, ours)}, {other.method} {own(other, theirs)}"
    return f"{' '.join(one.group[1:] or one.group)}: {numbers}"
