"""FedGloSS (Caldarola et al., CVPR 2025): its figures, without printed numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedflat.reproduce.fedgloss_settings import CIFAR, RESNETS, fedgloss_setting
from fedflat.reproduce.fedgloss_tables import SPEED
from fedflat.reproduce.table import Words, make_table, read_rows

PLOT = "a surface, drawn by fedflat analyse RUN --what"

FIGURE4 = make_table(
    "fedgloss/figure4",
    "δ_ε, the change of the perturbation, at the end of training",
    fedgloss_setting,
    [f"{setting} fedgloss.delta" for setting in CIFAR],
    "fedgloss ? ? ? ?",
    note="Claim: it falls over the rounds, and with ADMM. FedGloSS without ADMM is not available here. "
    "fedflat run fedgloss --probes fedgloss-exact records eq. 6 itself, with the exact gradient.",
)

FIGURE5 = make_table(
    "fedgloss/figure5",
    "Landscapes of local models on their own and on all data, CIFAR-100, α = 0",
    fedgloss_setting,
    [CIFAR[2]],
    "fedgloss ?\nfedsmoo ?\nfedsam ?",
    note="Claim: FedGloSS's local models lie in regions that are flat for all data as well.",
    measure="plot",
    unavailable={"*": f"{PLOT} local-landscape"},
)

FIGURE6 = make_table(
    "fedgloss/figure6",
    "Landscapes of global models",
    fedgloss_setting,
    [CIFAR[0], CIFAR[2], RESNETS[1]],
    "fedgloss ? ? ?\nfedsam ? ? ?\nfedsmoo ? ? ?",
    note="Claim: FedGloSS's minima are flatter and lower.",
    measure="plot",
    unavailable={"*": f"{PLOT} landscape"},
)

FIGURE7 = make_table(
    "fedgloss/figure7",
    "λ1 of global models (the numbers are Table 8's)",
    fedgloss_setting,
    [f"{setting} lambda1" for setting in CIFAR],
    "\n".join(f"{name} ? ? ? ?" for name, _ in read_rows(SPEED, 7)),
    note="Claim: FedGloSS reaches the flattest minima.",
)

FIGURE8 = make_table(
    "fedgloss/figure8",
    "Length of the model at the end of training, ResNet-18",
    fedgloss_setting,
    [f"{setting} norm.model" for setting in RESNETS],
    "\n".join(f"{name} ? ?" for name in ("fedsam", "feddyn-sam", "fedspeed", "fedgamma", "fedsmoo", "fedgloss")),
    note="Claim: SAM on the server keeps it small.",
)

FIGURE9 = make_table(
    "fedgloss/figure9",
    "Loss between the models of FedGloSS and NaiveFedGloSS",
    fedgloss_setting,
    CIFAR,
    "fedgloss ? ? ? ?\nnaivefedgloss ? ? ? ?",
    note="Claim: there is no barrier between them.",
    measure="plot",
    unavailable={"*": "a curve between two runs, drawn by fedflat analyse RUN RUN --what barrier"},
)

FIGURE18 = make_table(
    "fedgloss/figure18",
    "Accuracy of FedGloSS and NaiveFedGloSS over the rounds",
    fedgloss_setting,
    [f"{setting} {number}" for setting in CIFAR for number in ("half", "last100")],
    "fedgloss ? ? ? ? ? ? ? ?\nnaivefedgloss ? ? ? ? ? ? ? ?",
    note="Claim: both end at the same accuracy. The curves themselves are stored with the results.",
)


def _radius(words: Words) -> dict[str, Any]:
    """Return the setting of FedGloSS with another radius on the server."""
    setting = fedgloss_setting((*words[:3], words[-1]))
    return setting | {"method": replace(setting["method"], rho=float(words[3].removeprefix("rho-")))}


FIGURE19 = make_table(
    "fedgloss/figure19",
    "Radius ρ_s of the server on CIFAR-100",
    _radius,
    [f"{CIFAR[2]} rho-{rho} {number}" for rho in (0.01, 0.05, 0.1, 0.2) for number in ("last100", "lambda1")]
    + [f"{RESNETS[1]} rho-{rho} last100" for rho in (0.01, 0.05, 0.1, 0.5)],
    f"fedgloss {'? ' * 12}",
    note="Claim: smaller ρ_s give better accuracies, larger ones smaller λ1. The radii are those of Table 13's grid.",
)

FIGURES = (FIGURE4, FIGURE5, FIGURE6, FIGURE7, FIGURE8, FIGURE9, FIGURE18, FIGURE19)
