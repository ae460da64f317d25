"""FedSOL (Lee et al., CVPR 2024): Figures 2 to 7. Their numbers are not printed; of Figure 3's axes only the ratio 0.02
and the range 0.5 to 2 of ρ are, the other places are ours."""

from __future__ import annotations

from typing import Any

from fedflat.methods.fedsol import FedSOL
from fedflat.papers.fedsol import setting
from fedflat.papers.table import Words, table

HERE = "cifar10 lda-0.1"


RADII = ("rho-0.1", "rho-0.5", "rho-1.0", "rho-1.5", "rho-2.0")


def everywhere(*rows: str, columns: int) -> str:
    """Rows without numbers."""
    return "\n".join(f"{row} {'? ' * columns}" for row in rows)


FIGURE2 = table(
    "fedsol/figure2",
    "Proximal loss of local models, and the cosine between update and proximal gradient, for values of ρ",
    setting,
    [f"{HERE} {radius} {number}" for radius in RADII for number in ("proximal.loss", "proximal.cosine")],
    everywhere("fedsol", columns=10),
    note="Claim: with ρ the update becomes more orthogonal to the proximal gradient and the proximal loss lower."
    " FedAvg is ρ → 0.",
)


AXES = {
    "a": [f"cohort-{clients}" for clients in (2, 5, 10, 20)],
    "b": [f"epochs-{epochs}" for epochs in (1, 3, 5, 10)],
    "c": [f"lr-{lr}" for lr in (0.005, 0.01, 0.02, 0.05)],
}


PLACES = [place for places in AXES.values() for place in places]


FIGURE3 = table(
    "fedsol/figure3",
    "Sampling ratio (of 100 clients), local epochs, learning rate and ρ on CIFAR-10 (α = 0.1)",
    setting,
    [f"{HERE} {place}" for place in PLACES],
    everywhere("fedavg", "fedsol", columns=len(PLACES)),
    note="Claim: FedSOL is above FedAvg everywhere, most at small ratios (FedAvg is near guessing at 0.02).",
).beside(
    table("fedsol/figure3", "", setting, [f"{HERE} {radius}" for radius in RADII], everywhere("fedsol", columns=5))
)


def _strength(words: Words) -> dict[str, Any]:
    """FedSOL with adaptive or fixed strength."""
    found = setting(("cifar10", "lda-0.1", words[2], "fedsol"))
    lam: Any = {"adaptive": "tensor", "fixed": "fixed"}[words[-1]]
    return found | {"method": FedSOL(rho=found["method"].rho, perturb="head", lam=lam)}


FIGURE4 = table(
    "fedsol/figure4",
    "Adaptive and fixed strength of the perturbation on CIFAR-10 (α = 0.1)",
    _strength,
    [f"{HERE} {radius}" for radius in RADII],
    everywhere("adaptive", "fixed", columns=5),
    note="Claim: adaptive strength is better and depends less on ρ. Part (b), the mean of λ in every layer, is what "
    "fedflat run fedsol --probes lambda records.",
)


FIGURE5 = table(
    "fedsol/figure5",
    "Divergence of local models from the global one and from each other, CIFAR-10 (α = 0.1)",
    setting,
    [f"{HERE} {number}" for number in ("drift.global_local", "drift.local_local")],
    everywhere("fedavg", "fedsol", columns=2),
    note="Claim: FedSOL's are smaller. Ours are those of the last round.",
)


FIGURE6 = table(
    "fedsol/figure6",
    "Accuracy of local models on all classes, and of the global model on its worst class, CIFAR-10 (s = 2)",
    setting,
    [f"cifar10 shards-2 {number}" for number in ("final", "forgetting.after", "classes.accuracy")],
    everywhere("fedavg", "fedsol", columns=3),
    note="Claim: FedSOL's local models forget less, and its accuracies on the classes fluctuate less. Ours are those "
    "of the last round.",
)


FIGURE7 = table(
    "fedsol/figure7",
    "λ1 and λ1/λ5 of the global model on CIFAR-10 (α = 0.1)",
    setting,
    [f"{HERE} {number}" for number in ("lambda1", "ratio")],
    everywhere("fedavg", "fedasam", "fedsol", columns=2),
    note="Claim: FedSOL's ratio is the smallest. The numbers in the figure are not in the text. The landscapes: "
    "fedflat analyse RUN --what landscape --directions eigen.",
)


TABLES = (FIGURE2, FIGURE3, FIGURE4, FIGURE5, FIGURE6, FIGURE7)
