"""FedGloSS (Caldarola et al., CVPR 2025): Figures 4 to 9, 18 and 19. Their numbers are not printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedflat.papers.fedgloss import CIFAR, RESNETS, setting
from fedflat.papers.fedgloss_more import SPEED
from fedflat.papers.table import Words, grid, table

PLOT = "a surface, drawn by fedflat analyse RUN --what"


FIGURE4 = table(
    "fedgloss/figure4",
    "δ_ε, the change of the perturbation, at the end of training",
    setting,
    [f"{place} fedgloss.delta" for place in CIFAR],
    "fedgloss ? ? ? ?",
    note="Claim: it falls over the rounds, and with ADMM. FedGloSS without ADMM is no method here. Eq. 6 itself, with "
    "the exact gradient, is what --probes fedgloss-exact records.",
)


FIGURE5 = table(
    "fedgloss/figure5",
    "Landscapes of local models on their own and on all data, CIFAR-100, α = 0",
    setting,
    [CIFAR[2]],
    "fedgloss ?\nfedsmoo ?\nfedsam ?",
    note="Claim: FedGloSS's local models lie in regions that are flat for all data as well.",
    measure="plot",
    unavailable={"*": f"{PLOT} local-landscape"},
)


FIGURE6 = table(
    "fedgloss/figure6",
    "Landscapes of global models",
    setting,
    [CIFAR[0], CIFAR[2], RESNETS[1]],
    "fedgloss ? ? ?\nfedsam ? ? ?\nfedsmoo ? ? ?",
    note="Claim: FedGloSS's minima are flatter and lower.",
    measure="plot",
    unavailable={"*": f"{PLOT} landscape"},
)


FIGURE7 = table(
    "fedgloss/figure7",
    "λ1 of global models (the numbers are Table 8's)",
    setting,
    [f"{place} lambda1" for place in CIFAR],
    "\n".join(f"{name} ? ? ? ?" for name, _ in grid(SPEED, 7)),
    note="Claim: FedGloSS reaches the flattest minima.",
)


FIGURE8 = table(
    "fedgloss/figure8",
    "Length of the model at the end of training, ResNet-18",
    setting,
    [f"{place} norm.model" for place in RESNETS],
    "\n".join(f"{name} ? ?" for name in ("fedsam", "feddyn-sam", "fedspeed", "fedgamma", "fedsmoo", "fedgloss")),
    note="Claim: SAM on the server keeps it small.",
)


FIGURE9 = table(
    "fedgloss/figure9",
    "Loss between the models of FedGloSS and NaiveFedGloSS",
    setting,
    CIFAR,
    "fedgloss ? ? ? ?\nnaivefedgloss ? ? ? ?",
    note="Claim: there is no barrier between them.",
    measure="plot",
    unavailable={"*": "a curve between two runs, drawn by fedflat analyse RUN RUN --what barrier"},
)


FIGURE18 = table(
    "fedgloss/figure18",
    "Accuracy of FedGloSS and NaiveFedGloSS over the rounds",
    setting,
    [f"{place} {number}" for place in CIFAR for number in ("half", "last100")],
    "fedgloss ? ? ? ? ? ? ? ?\nnaivefedgloss ? ? ? ? ? ? ? ?",
    note="Claim: both end at the same accuracy. The curves themselves are stored with the results.",
)


def _radius(words: Words) -> dict[str, Any]:
    """FedGloSS with another radius on the server."""
    found = setting((*words[:3], words[-1]))
    return found | {"method": replace(found["method"], rho=float(words[3].removeprefix("rho-")))}


FIGURE19 = table(
    "fedgloss/figure19",
    "Radius ρ_s of the server on CIFAR-100",
    _radius,
    [f"{CIFAR[2]} rho-{rho} {number}" for rho in (0.01, 0.05, 0.1, 0.2) for number in ("last100", "lambda1")]
    + [f"{RESNETS[1]} rho-{rho} last100" for rho in (0.01, 0.05, 0.1, 0.5)],
    f"fedgloss {'? ' * 12}",
    note="Claim: smaller ρ_s give better accuracies, larger ones smaller λ1. The radii are those of Table 13's grid.",
)


TABLES = (FIGURE4, FIGURE5, FIGURE6, FIGURE7, FIGURE8, FIGURE9, FIGURE18, FIGURE19)
