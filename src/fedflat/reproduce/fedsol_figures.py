"""FedSOL (Lee et al., CVPR 2024): its figures, most of them without printed numbers."""

from __future__ import annotations

from typing import Any

from fedflat.methods.fedsol import FedSOL
from fedflat.reproduce.fedsol_settings import (
    AUTHORS,
    fedsol_setting,
)
from fedflat.reproduce.table import Words, make_table

FIGURE_SETTING = "cifar10 lda-0.1"

RADII = ("rho-0.1", "rho-0.5", "rho-1.0", "rho-1.5", "rho-2.0")


def rows_without_numbers(*rows: str, columns: int) -> str:
    """Return the text of rows whose numbers the paper does not print."""
    return "\n".join(f"{row} {'? ' * columns}" for row in rows)


FIGURE2 = make_table(
    "fedsol/figure2",
    "Proximal loss of local models, and the cosine between update and proximal gradient, for values of ρ",
    fedsol_setting,
    [f"{FIGURE_SETTING} {radius} {number}" for radius in RADII for number in ("proximal.loss", "proximal.cosine")],
    rows_without_numbers("fedsol", columns=10),
    note="Claim: with ρ the update becomes more orthogonal to the proximal gradient and the proximal loss lower."
    " FedAvg is ρ → 0.",
    variants=AUTHORS,
)

FACTORS = [  # parts a, b and c of Figure 3
    *(f"cohort-{clients}" for clients in (2, 5, 10, 20)),
    *(f"epochs-{epochs}" for epochs in (1, 3, 5, 10)),
    *(f"lr-{lr}" for lr in (0.005, 0.01, 0.02, 0.05)),
]

FIGURE3 = make_table(
    "fedsol/figure3",
    "Sampling ratio (of 100 clients), local epochs, learning rate and ρ on CIFAR-10 (α = 0.1)",
    fedsol_setting,
    [f"{FIGURE_SETTING} {factor}" for factor in FACTORS],
    rows_without_numbers("fedavg", "fedsol", columns=len(FACTORS)),
    note="Claim: FedSOL is above FedAvg everywhere, most at small ratios (FedAvg is near guessing at 0.02).",
    variants=AUTHORS,
).joined(
    make_table(
        "fedsol/figure3",
        "",
        fedsol_setting,
        [f"{FIGURE_SETTING} {radius}" for radius in RADII],
        rows_without_numbers("fedsol", columns=5),
        variants=AUTHORS,
    )
)


def _strength(words: Words) -> dict[str, Any]:
    """Return the setting of FedSOL with adaptive or fixed strength."""
    setting = fedsol_setting(("cifar10", "lda-0.1", words[2], "fedsol"))
    lam: Any = {"adaptive": "tensor", "fixed": "fixed"}[words[-1]]
    return setting | {"method": FedSOL(rho=setting["method"].rho, perturb="head", lam=lam)}


FIGURE4 = make_table(
    "fedsol/figure4",
    "Adaptive and fixed strength of the perturbation on CIFAR-10 (α = 0.1)",
    _strength,
    [f"{FIGURE_SETTING} {radius}" for radius in RADII],
    rows_without_numbers("adaptive", "fixed", columns=5),
    note="Claim: adaptive strength is better and depends less on ρ. fedflat run fedsol --probes lambda "
    "records part (b), the mean of λ in every layer.",
    variants=AUTHORS,
)

FIGURE5 = make_table(
    "fedsol/figure5",
    "Divergence of local models from the global one and from each other, CIFAR-10 (α = 0.1)",
    fedsol_setting,
    [f"{FIGURE_SETTING} {number}" for number in ("drift.global_local", "drift.local_local")],
    rows_without_numbers("fedavg", "fedsol", columns=2),
    note="Claim: both are smaller with FedSOL. Ours are those of the last round.",
    variants=AUTHORS,
)

FIGURE6 = make_table(
    "fedsol/figure6",
    "Accuracy of local models on all classes, and of the global model on its worst class, CIFAR-10 (s = 2)",
    fedsol_setting,
    [f"cifar10 shards-2 {number}" for number in ("final", "forgetting.after", "classes.accuracy")],
    rows_without_numbers("fedavg", "fedsol", columns=3),
    note="Claim: FedSOL's local models forget less, and its accuracies on the classes fluctuate less. Ours are those "
    "of the last round.",
    variants=AUTHORS,
)

FIGURE7 = make_table(
    "fedsol/figure7",
    "λ1 and λ1/λ5 of the global model on CIFAR-10 (α = 0.1)",
    fedsol_setting,
    [f"{FIGURE_SETTING} {number}" for number in ("lambda1", "ratio")],
    rows_without_numbers("fedavg", "fedasam", "fedsol", columns=2),
    note="Claim: FedSOL's ratio is the smallest. The numbers in the figure are not in the text. "
    "fedflat analyse RUN --what landscape --directions eigen draws the landscapes.",
    variants=AUTHORS,
)

FIGURES = (FIGURE2, FIGURE3, FIGURE4, FIGURE5, FIGURE6, FIGURE7)
