"""The main claims of the papers, as comparisons of cells, checked against our numbers.

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

from fedflat.reproduce.cells import find_table
from fedflat.reproduce.results import OurValue, StoredResults, our_text
from fedflat.reproduce.table import MEASURES, TableCell

HOLDS, DOES_NOT, UNDECIDED, NOT_RUN, NOT_HERE = (
    "holds",
    "does not hold here",
    "undecided",
    "not run yet",
    "cannot be run here",
)


class ComparedCells(NamedTuple):
    """Two cells with our numbers; by how much the first is better, and how much that may be by chance."""

    one: TableCell
    other: TableCell
    ours: OurValue
    theirs: OurValue

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


def _error(cell: TableCell, ours: OurValue) -> float:
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

    def pairs(self) -> list[tuple[TableCell, TableCell]]:
        """Every cell of `best` beside each that it shall beat."""
        table = find_table(self.table)
        pool = [cell for cell in (*table.cells, *table.variants) if cell.variant == self.variant]
        chosen = [cell for cell in pool if cell.method == self.best and cell.matches([self.columns])]
        return [(cell, other) for cell in chosen for other in table.rivals(cell) if self._rival(other)]

    def _rival(self, other: TableCell) -> bool:
        return not other.unavailable and (not self.than or other.method in self.than)

    def check(self, stored: StoredResults) -> str:
        """Whether it holds here; a comparison without both numbers, at all rounds, is left out."""
        every = self.compared(stored)
        lost = dict.fromkeys(c.other.method for c in every if c.theirs.diverged)
        found = self._answer([c for c in every if not c.theirs.diverged])
        return f"{found}; {', '.join(lost)} diverged" if lost else found

    def _answer(self, compared: list[ComparedCells]) -> str:
        total = len(self.pairs())
        if not compared:
            return NOT_RUN if total else NOT_HERE
        against = sum(c.lead - self.margin < -c.chance for c in compared)
        close = sum(abs(c.lead - self.margin) <= c.chance for c in compared)
        if against or close:
            few = f"{against or close} of {len(compared)} comparisons"
            return f"{DOES_NOT} ({few} fail)" if against else f"{UNDECIDED} ({few} too close)"
        return HOLDS if len(compared) == total else f"{HOLDS} where run ({len(compared)} of {total} comparisons)"

    def compared(self, stored: StoredResults) -> list[ComparedCells]:
        """The pairs of which both have numbers after all rounds."""
        numbers = [(one, other, stored.ours(one), stored.ours(other)) for one, other in self.pairs()]
        known = [ComparedCells(one, other, a, b) for one, other, a, b in numbers if a and b]
        return [c for c in known if stored.comparable(c.one, c.ours) and stored.comparable(c.other, c.theirs)]

    def figures(self, stored: StoredResults) -> str:
        """In each column that was run, our number of `best` and that of its strongest rival."""
        nearest: dict[str, ComparedCells] = {}
        for compared in self.compared(stored):
            known = nearest.get(compared.one.name)
            if not compared.theirs.diverged and (known is None or compared.lead < known.lead):
                nearest[compared.one.name] = compared
        return "; ".join(_beside(compared) for compared in nearest.values())


def _beside(compared: ComparedCells) -> str:
    """lda-0.1: fedsol 62.05 ± 1.57 (3 seeds), fedntd 56.74 (1 seed)."""
    one, other, ours, theirs = compared
    numbers = f"{one.method} {our_text(one, ours)}, {other.method} {our_text(other, theirs)}"
    return f"{' '.join(one.group[1:] or one.group)}: {numbers}"


FEDSOL_CLAIMS = (
    Claim("FedSOL is best on CIFAR-10 at α = 0.1", "fedsol/table2", "cifar10 lda-0.1", "fedsol"),
    Claim("FedSOL beats FedAvg in all 18 settings", "fedsol/table2", "*", "fedsol", ("fedavg",)),
    Claim("FedSOL is best on CIFAR-10 at every α, if narrowly", "fedsol/table2", "cifar10 lda-*", "fedsol"),
    Claim("FedSAM is worse than FedAvg on CIFAR-10 under LDA", "fedsol/table2", "cifar10 lda-*", "fedavg", ("fedsam",)),
    Claim("Projecting KL gradients is worse than FedAvg", "fedsol/table1", "cifar10", "none", ("kl-projection",)),
    Claim("Projection is worse than the L2 loss itself", "fedsol/table1", "cifar10", "l2-base", ("l2-projection",)),
    Claim("Projection is worse than the KL loss itself", "fedsol/table1", "cifar10", "kl-base", ("kl-projection",)),
    Claim("FedSOL beats FedAvg with every architecture", "fedsol/table3", "*", "fedsol", ("fedavg",)),
    Claim("Every proximal method is better as perturbation", "fedsol/table4", "*", "combined", ("base",)),
    Claim("The head is as good as the whole model, to 1.5", "fedsol/table5", "*", "head", ("all",), margin=-1.5),
    Claim("FedSOL-FT is best of what is fine-tuned", "fedsol/table9", "*", "fedsol"),
    Claim("FedSOL is best on CIFAR-100 and ImageNet-100", "fedsol/table10", "*", "fedsol"),
    Claim("No other use of the two losses is as good", "fedsol/table12", "*", "A1"),
    Claim("FedSOL is above FedAvg for all learning factors", "fedsol/figure3", "*", "fedsol", ("fedavg",)),
    Claim("Adaptive strength is better than fixed", "fedsol/figure4", "*", "adaptive", ("fixed",)),
    Claim("FedSOL keeps local models closer", "fedsol/figure5", "*", "fedsol", ("fedavg",)),
    Claim("FedSOL's local models forget less", "fedsol/figure6", "forgetting.after", "fedsol", ("fedavg",)),
    Claim("FedSOL has the smallest λ1/λ5", "fedsol/figure7", "ratio", "fedsol"),
)


FEDGF_CLAIMS = (
    Claim("FedGF is best at α = 0", "fedgf/table1", "alpha-0", "fedgf"),
    Claim("FedGF beats FedSAM at α = 0", "fedgf/table1", "alpha-0", "fedgf", ("fedsam",)),
    Claim("FedGF is best on CIFAR-10 at α = 0.05", "fedgf/table1", "cifar10 alpha-0.05", "fedgf"),
    Claim("FedGF has the lowest LPF at α = 0", "fedgf/table2", "cifar100 alpha-0 lpf", "fedgf"),
    Claim("FedGF has the lowest λ1 at α = 0", "fedgf/table2", "cifar100 alpha-0 lambda1", "fedgf"),
    Claim("the same on CIFAR-10, not in the paper", "fedgf/table2", "cifar10 alpha-0 lambda1", "fedgf"),
    Claim("FedGF has less discrepancy than FedSAM", "fedgf/table2", "alpha-0 discrepancy", "fedgf", ("fedsam",)),
    Claim("FedGF needs fewer transmissions than FedSMOO", "fedgf/table4", "*", "fedgf", ("fedsmoo",)),
    Claim("Adaptive c is better than any constant", "fedgf/table5", "*", "fedgf"),
    Claim("FedGF converges fastest at α = 0", "fedgf/figure4", "*", "fedgf"),
)


SGD = ("fedavg", "fedprox", "feddyn", "scaffold")


SAM = ("fedsam", "feddyn-sam", "fedspeed", "fedgamma", "fedsmoo")


SLOWER = ("fedavg", "fedprox", "fedsam", "feddyn-sam", "fedspeed")


FEDGLOSS_CLAIMS = (
    Claim("FedGloSS is best on CIFAR-10 at α = 0", "fedgloss/table3", "cnn cifar10 alpha-0", "fedgloss"),
    Claim("FedGloSS beats every method with SAM", "fedgloss/table3", "*", "fedgloss", SAM),
    Claim("FedGloSS with SGD beats every method with SGD", "fedgloss/table3", "*", "fedgloss-sgd", SGD),
    Claim("FedGloSS is best on Landmarks", "fedgloss/table4", "*", "fedgloss"),
    Claim("FedGloSS is as good as NaiveFedGloSS, to 1", "fedgloss/table6", "last100", "fedgloss", margin=-1.0),
    Claim("Flatness adds to consistency", "fedgloss/table7", "*", "fedgloss", ("feddyn-sam", "fedsam")),
    Claim("FedGloSS reaches the flattest minima", "fedgloss/table8", "*", "fedgloss"),
    Claim("SAM on the clients makes flatter minima", "fedgloss/table8", "*", "fedsam", ("fedavg",)),
    Claim("FedGloSS keeps the model shorter", "fedgloss/figure8", "*", "fedgloss", ("feddyn-sam", "fedsmoo")),
    Claim("FedGloSS's local models are flattest", "fedgloss/table1", "lambda-global", "fedgloss"),
    Claim("FedGloSS needs fewer rounds than most", "fedgloss/table10", "*", "fedgloss", SLOWER),
)


CLAIMS = (*FEDSOL_CLAIMS, *FEDGF_CLAIMS, *FEDGLOSS_CLAIMS)
