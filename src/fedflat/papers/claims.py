"""The papers' main claims as comparisons of cells, checked against our numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fedflat.papers.catalogue import find_table
from fedflat.papers.measures import MEASURES
from fedflat.papers.table import Cell
from fedflat.papers.values import Stored

HOLDS, DOES_NOT, NOT_RUN = "holds", "does not hold here", "not run yet"


@dataclass(frozen=True)
class Claim:
    """In every chosen column of a table, `best` is better than each of `than` (all other rows unless given)."""

    text: str
    table: str
    columns: str  # a pattern as of --cells
    best: str
    than: tuple[str, ...] = ()
    margin: float = 0.0
    printed: str = HOLDS  # what the table itself says of it

    def pairs(self) -> list[tuple[Cell, Cell]]:
        """Every cell of `best` beside each that it shall beat."""
        table = find_table(self.table)
        chosen = [
            cell for cell in table.cells if cell.matches([f"{self.columns} {self.best}"]) and _last(cell, self.best)
        ]
        return [(cell, other) for cell in chosen for other in table.rivals(cell) if self._rival(other)]

    def _rival(self, other: Cell) -> bool:
        return not other.unavailable and (not self.than or other.words[-1] in self.than)

    def check(self, stored: Stored) -> str:
        """Whether it holds here; a comparison without both numbers, at all rounds, is left out."""
        pairs = self.pairs()
        known = [held for one, other in pairs if (held := _better(one, other, stored, self.margin)) is not None]
        if not all(known):
            return f"{DOES_NOT} ({known.count(False)} of {len(known)} comparisons fail)"
        if not known:
            return NOT_RUN
        return HOLDS if len(known) == len(pairs) else f"{HOLDS} where run ({len(known)} of {len(pairs)} comparisons)"


def _last(cell: Cell, row: str) -> bool:
    return cell.row.split()[-1] == row


def _better(one: Cell, other: Cell, stored: Stored, margin: float) -> bool | None:
    """Whether one cell's number beats another's; None where one is missing. What diverged is beaten."""
    ours, theirs = stored.ours(one), stored.ours(other)
    if ours is None or theirs is None or not (stored.comparable(one, ours) and stored.comparable(other, theirs)):
        return None
    sign = 1 if MEASURES[one.measure].higher else -1
    return sign * (ours.mean - theirs.mean) > margin


CLAIMS = (
    Claim("FedSOL has the best accuracy on CIFAR-10 at α = 0.1", "fedsol/table2", "cifar10 lda-0.1", "fedsol"),
    Claim("FedSOL beats FedAvg in all 18 settings", "fedsol/table2", "*", "fedsol", ("fedavg",)),
    Claim("FedSOL is best at all heterogeneity levels of LDA on CIFAR-10", "fedsol/table2", "cifar10 lda-*", "fedsol"),
    Claim("FedSAM is worse than FedAvg on CIFAR-10 under LDA", "fedsol/table2", "cifar10 lda-*", "fedavg", ("fedsam",)),
    Claim("FedGloSS is best of all methods at α = 0 on CIFAR-10", "fedgloss/table3", "cnn cifar10 alpha-0", "fedgloss"),
    Claim("FedGloSS is best of all methods on the CIFARs", "fedgloss/table3", "* * *", "fedgloss"),
    Claim(
        "FedGloSS with SGD is best of the methods with SGD",
        "fedgloss/table3",
        "* * *",
        "fedgloss-sgd",
        ("fedavg", "fedprox", "feddyn", "scaffold"),
    ),
    Claim("FedGloSS reaches the flattest minima", "fedgloss/table8", "* * *", "fedgloss"),
    Claim(
        "FedGloSS is as good as NaiveFedGloSS at half the exchanges",
        "fedgloss/table6",
        "* last100",
        "fedgloss",
        margin=-1,
    ),
)
