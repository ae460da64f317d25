"""What our numbers say about the papers: a verdict on each printed number, and whether the main claims hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedflat.reproduce.cells import chance_accuracy, find_table
from fedflat.reproduce.results import OurValue, StoredResults
from fedflat.reproduce.table import MEASURES, PaperTable, TableCell

# verdicts
WITHIN, RANKING, NOT_REPRODUCED, OUTSIDE = "within 2 sd", "same ranking", "not reproduced", "outside, no rival yet"
FAILS, TRAINS = "fails too", "trains here"
# answers to a claim
HOLDS, DOES_NOT_HOLD, UNDECIDED = "holds", "does not hold here", "undecided"
NOT_RUN, NOT_AVAILABLE = "not run yet", "cannot be run here"


def verdict(table: PaperTable, cell: TableCell, stored: StoredResults) -> str:
    """Return what our number says about the printed one, '' if it says nothing.

    The paper prints p ± σ_p, our mean and standard deviation over seeds are m ± σ_m. The allowed distance is
    2 √(σ_p² + σ_m² + f²). Here f stands for errors that neither ± includes: 0.5 points for accuracies (about the
    standard error of 10,000 test images), 5 % of p for other measures. A ± over clients, as in FedSOL's Table 9, does
    not count as σ_p. A rival is the number of another method in the same column.

    - within 2 sd: |m − p| is at most the allowed distance.
    - same ranking: |m − p| is larger, but m is above the same rivals and below the same rivals as in the paper. A rival
      counts if we have its number, from the same variant and the same images, if it did not diverge here, and if the
      printed numbers differ by more than the allowed distance. At least one rival must count.
    - not reproduced: |m − p| is larger, and m is on the other side of a rival.
    - outside, no rival yet: |m − p| is larger, and no rival counts.
    - fails too, trains here: the paper says that training does not converge. It fails here as well if a seed diverged
      or our accuracy is at most 1.5 times that of guessing.

    In tables of rounds, an accuracy that is never reached is reproduced if neither the paper nor we reach it. There is
    no verdict without a printed number, without ours, after fewer rounds than the paper's, or on seconds.
    """
    ours = stored.ours(cell)
    if ours is None or not stored.comparable(cell, ours):
        return ""
    if cell.failed:
        return FAILS if ours.diverged or ours.mean <= 1.5 * chance_accuracy(cell) else TRAINS
    if cell.printed is None or cell.measure == "seconds":
        return ""
    if math.isinf(cell.printed) or math.isinf(ours.mean):
        return WITHIN if cell.printed == ours.mean else NOT_REPRODUCED
    if abs(ours.mean - cell.printed) <= allowed_difference(cell, ours, table.spread):
        return WITHIN
    same_side = _same_side_of_rivals(table, cell, ours, stored)
    return OUTSIDE if not same_side else RANKING if all(same_side) else NOT_REPRODUCED


def allowed_difference(cell: TableCell, ours: OurValue | None, spread: str = "seeds") -> float:
    """Return the allowed distance 2 √(σ_p² + σ_m² + f²); σ_p counts only if the paper's ± is over seeds."""
    assert cell.printed is not None
    printed = cell.spread or 0.0 if spread == "seeds" else 0.0
    return 2 * math.hypot(printed, ours.std if ours else 0.0, _unknown_error(cell, cell.printed))


def _unknown_error(cell: TableCell, value: float) -> float:
    """Return f, the error that no ± includes."""
    return 0.5 if MEASURES[cell.measure].unit == "%" else 0.05 * abs(value)


def _same_side_of_rivals(table: PaperTable, cell: TableCell, ours: OurValue, stored: StoredResults) -> list[bool]:
    """Return for every rival that counts whether our numbers are in the paper's order."""
    assert cell.printed is not None
    same_side = []
    for rival in table.rivals(cell):
        theirs = stored.ours(rival)
        if rival.printed is None or theirs is None or theirs.diverged or theirs.jpeg != ours.jpeg:
            continue
        if not stored.comparable(rival, theirs):
            continue
        gap = cell.printed - rival.printed
        allowed = [allowed_difference(one, None, table.spread) for one in (cell, rival)] if math.isfinite(gap) else []
        if allowed and abs(gap) > max(allowed):
            same_side.append((ours.mean - theirs.mean) * gap > 0)
    return same_side


def our_text(cell: TableCell, ours: OurValue) -> str:
    """Return our number as text: mean, standard deviation, number of seeds."""
    if math.isinf(ours.mean):
        return "not reached"
    if cell.measure == "models":
        return f"{ours.mean:g}"
    diverged = f", {ours.diverged} diverged" if ours.diverged else ""
    if len(ours.values) == 1:
        return f"{ours.mean:.2f} (1 seed{diverged})"
    return f"{ours.mean:.2f} ± {ours.std:.2f} ({len(ours.values)} seeds{diverged})"


class Comparison(NamedTuple):
    """Two cells that a claim compares, and our numbers for them."""

    cell: TableCell
    rival: TableCell
    ours: OurValue
    theirs: OurValue

    @property
    def lead(self) -> float:
        """By how much the cell is better than its rival; negative if it is worse."""
        if self.ours.mean == self.theirs.mean:
            return 0.0
        return (1 if MEASURES[self.cell.measure].higher else -1) * (self.ours.mean - self.theirs.mean)

    @property
    def uncertainty(self) -> float:
        """The difference 2 √(e₁² + e₂² + f²) that may be due to chance."""
        largest = max((abs(ours.mean) for ours in (self.ours, self.theirs) if math.isfinite(ours.mean)), default=0.0)
        errors = _standard_error(self.cell, self.ours), _standard_error(self.rival, self.theirs)
        return 2 * math.hypot(*errors, _unknown_error(self.cell, largest))


def _standard_error(cell: TableCell, ours: OurValue) -> float:
    """Return the standard error of our mean; with a single seed, the paper's ±."""
    seeds = len(ours.values)
    return ours.std / math.sqrt(seeds) if seeds > 1 else cell.spread or 0.0


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: in some columns of a table, one method is better than others.

    A claim is checked by comparisons of our numbers. Two means m₁ and m₂ over seeds, with standard errors e₁ and e₂
    (for a single seed, the paper's ±), differ if |m₁ − m₂| is more than 2 √(e₁² + e₂² + f²). Here f is 0.5 points for
    accuracies and 5 % of the larger mean for other measures. A claim

    - holds if every comparison that was run confirms it,
    - does not hold here if a comparison shows the opposite,
    - is undecided if none shows the opposite but some are too close.

    Rivals that diverged here are named and not compared. An accuracy that is never reached counts as infinitely many
    rounds. In a variant, rivals are those of the variant, or the paper's where they do not differ in it. Numbers of
    JPEG images are compared with each other only, and not at all once there are others.

    Args:
        text: the claim in words.
        table: the table's name.
        columns: pattern of the cells, as for `fedflat reproduce --cells`.
        best: the method that is said to be better.
        rivals: the methods it is compared with; all others of the table if empty.
        margin: by how much it is better; negative for "as good as, up to".
        variant: variant of the cells of `best`.
    """

    text: str
    table: str
    columns: str
    best: str
    rivals: tuple[str, ...] = ()
    margin: float = 0.0
    variant: str = ""

    def under(self, variant: str) -> Claim:
        """Return the same claim about the cells of a variant."""
        return replace(self, variant=variant)

    def pairs(self) -> list[tuple[TableCell, TableCell]]:
        """Return every cell of `best` with each cell that it should be better than."""
        table = find_table(self.table)
        variants = [cell for cell in (*table.cells, *table.variants) if cell.variant == self.variant]
        chosen = [cell for cell in variants if cell.method == self.best and cell.matches([self.columns])]
        return [(cell, rival) for cell in chosen for rival in table.rivals(cell) if self._is_rival(rival)]

    def _is_rival(self, cell: TableCell) -> bool:
        return not cell.unavailable and (not self.rivals or cell.method in self.rivals)

    def comparisons(self, stored: StoredResults) -> list[Comparison]:
        """Return the pairs for which both numbers are stored after all rounds, of the same images.

        Those of JPEG images are returned only if there are no others.
        """
        numbers = [(cell, rival, stored.ours(cell), stored.ours(rival)) for cell, rival in self.pairs()]
        known = [Comparison(cell, rival, ours, theirs) for cell, rival, ours, theirs in numbers if ours and theirs]
        whole = [c for c in known if stored.comparable(c.cell, c.ours) and stored.comparable(c.rival, c.theirs)]
        alike = [c for c in whole if c.ours.jpeg == c.theirs.jpeg]
        return [c for c in alike if not c.ours.jpeg] or alike

    def check(self, stored: StoredResults) -> str:
        """Return whether the claim holds, in words."""
        comparisons = self.comparisons(stored)
        diverged = dict.fromkeys(c.rival.method for c in comparisons if c.theirs.diverged)
        answer = self._answer([c for c in comparisons if not c.theirs.diverged])
        return f"{answer}; {', '.join(diverged)} diverged" if diverged else answer

    def _answer(self, comparisons: list[Comparison]) -> str:
        run, total = len(comparisons), len(self.pairs())
        if not run:
            return NOT_RUN if total else NOT_AVAILABLE
        opposite = sum(c.lead - self.margin < -c.uncertainty for c in comparisons)
        if opposite:
            return f"{DOES_NOT_HOLD} ({opposite} of {run} comparisons fail)"
        close = sum(abs(c.lead - self.margin) <= c.uncertainty for c in comparisons)
        if close:
            return f"{UNDECIDED} ({close} of {run} comparisons too close)"
        return HOLDS if run == total else f"{HOLDS} where run ({run} of {total} comparisons)"

    def numbers_text(self, stored: StoredResults) -> str:
        """Return for each column that was run our numbers of `best` and of its strongest rival."""
        strongest: dict[str, Comparison] = {}
        for comparison in self.comparisons(stored):
            known = strongest.get(comparison.cell.name)
            if not comparison.theirs.diverged and (known is None or comparison.lead < known.lead):
                strongest[comparison.cell.name] = comparison
        return "; ".join(_comparison_text(comparison) for comparison in strongest.values())


def _comparison_text(comparison: Comparison) -> str:
    """Return such as lda-0.1: fedsol 62.05 ± 1.57 (3 seeds), fedntd 56.74 (1 seed)."""
    cell, rival, ours, theirs = comparison
    numbers = f"{cell.method} {our_text(cell, ours)}, {rival.method} {our_text(rival, theirs)}"
    return f"{' '.join(cell.group[1:] or cell.group)}: {numbers}"


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
FLSAM_CLAIMS = (
    Claim("FedGMT is best on Dirichlet partitions", "flsam/cifar10", "dir-*", "fedgmt"),
    Claim(
        "FedLESAM-D is no better than FedDyn, to 1", "flsam/cifar10", "dir-*", "feddyn", ("fedlesam-d",), margin=-1.0
    ),
    Claim("FedSAM beats FedAvg", "flsam/cifar10", "dir-*", "fedsam", ("fedavg",)),
    Claim("FedSMOO beats FedSAM and FedDyn", "flsam/cifar10", "dir-*", "fedsmoo", ("fedsam", "feddyn")),
)
CLAIMS = (*FEDSOL_CLAIMS, *FEDGF_CLAIMS, *FEDGLOSS_CLAIMS, *FLSAM_CLAIMS)
