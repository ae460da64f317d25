"""Whether our number is the paper's.

With p ± σ_p printed and m ± σ_m ours (over seeds), the allowed distance is 2 √(σ_p² + σ_m² + f²), where f is 0.5 points
for accuracies (about the standard error of 10,000 test images) and 5 % of p for other measures: the share of error
that neither ± knows of. A ± over clients, as in FedSOL's Table 9, does not count as σ_p.

- within 2 sd: |m − p| is at most that.
- same ranking: it is more, but against every rival (same column) that has a number, m is on the side where the paper
  has it; rivals whose printed numbers are no further apart than the allowed distance do not count, nor those that
  diverged here, and one must.
- not reproduced: it is more, and a rival is on the other side.
- outside, no rival yet: it is more, and no rival that counts has a number.
- fails too, trains here: for what the paper prints as not converging; up to 1.5 times the accuracy of guessing fails.

An accuracy that is not reached (Tables of rounds) is reproduced where ours is not reached either.

No verdict without a printed number, without ours, or after fewer rounds than the paper's.
"""

from __future__ import annotations

import math

from fedflat.papers.cells import chance
from fedflat.papers.measures import MEASURES
from fedflat.papers.table import Cell, Table
from fedflat.papers.values import Ours, Stored

WITHIN, RANKING, NOT, OUTSIDE = "within 2 sd", "same ranking", "not reproduced", "outside, no rival yet"


FAILS, TRAINS = "fails too", "trains here"


def allowed(cell: Cell, ours: Ours | None, spread: str = "seeds") -> float:
    """How far from the printed number ours may be."""
    assert cell.printed is not None
    unknown = 0.5 if MEASURES[cell.measure].unit == "%" else 0.05 * abs(cell.printed)
    printed = cell.spread or 0.0 if spread == "seeds" else 0.0
    return 2 * math.hypot(printed, ours.std if ours else 0.0, unknown)


def verdict(table: Table, cell: Cell, stored: Stored) -> str:
    """What our number says about the printed one; '' where nothing can be said."""
    ours = stored.ours(cell)
    if ours is None or not stored.comparable(cell, ours):
        return ""
    if cell.failed:
        return FAILS if ours.diverged or ours.mean <= 1.5 * chance(cell) else TRAINS
    if cell.printed is None:
        return ""
    if math.isinf(cell.printed) or math.isinf(ours.mean):
        return WITHIN if cell.printed == ours.mean else NOT
    if abs(ours.mean - cell.printed) <= allowed(cell, ours, table.spread):
        return WITHIN
    sides = _sides(table, cell, ours, stored)
    return OUTSIDE if not sides else RANKING if all(sides) else NOT


def _sides(table: Table, cell: Cell, ours: Ours, stored: Stored) -> list[bool]:
    """For every rival that counts, whether we stand to it as the paper does."""
    assert cell.printed is not None
    sides = []
    for rival in table.rivals(cell):
        theirs = stored.ours(rival)
        if rival.printed is None or theirs is None or theirs.diverged or not stored.comparable(rival, theirs):
            continue
        gap = cell.printed - rival.printed
        if math.isfinite(gap) and abs(gap) > max(allowed(cell, None, table.spread), allowed(rival, None, table.spread)):
            sides.append((ours.mean - theirs.mean) * gap > 0)
    return sides
