"""FedGloSS (Caldarola et al., CVPR 2025): its settings and their variants.

Settings are those of Table 12, hyper-parameters the bold entries of Table 13. Where our text of the paper shows no bold
entry we take the last of the list, except ρ_s = 0.01 for ResNet-18 on CIFAR-100, as Figure 19 suggests. Accuracies are
means over the last 100 rounds; we evaluate every tenth round, so ours are means of ten evaluations. FedGloSS with SGD
clients has the radius and the β of the SAM row.
λ1 is that of the final model on the test set by 20 steps of power iteration; the released code takes the mean of the
last 100 models. The released code leaks 10 % of CIFAR-10's test images into the training data.

Variants: released (the divisor |C| |C_t| of the dual), warmup (FedSMOO + wp of Figures 15 and 16: its radius rises as
FedGloSS's does), and runs that decide why a method diverges here: alpha-0.1 (FedDyn), beta-100 (FedSMOO, FedGloSS with
SGD clients), dual-released (FedSMOO, FedDyn), raw-ascent (FedSpeed, in the released form), clip-10 (gradients of these
clipped at norm 10).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedflat.methods.fedavg import FedAvg
from fedflat.methods.feddyn import FedDyn
from fedflat.methods.fedgamma import FedGAMMA
from fedflat.methods.fedgloss import FedGloSS
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsmoo import FedSMOO
from fedflat.methods.fedspeed import FedSpeed
from fedflat.methods.naivefedgloss import NaiveFedGloSS
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.reproduce.table import TableCell, VariantChange, Words, read_words

CNN = {"model": "lenet-cnn", "clients": 100, "cohort": 5, "weight_decay": 4e-4, "momentum": 0.0}

RESNET = {"model": "resnet18-gn", "rounds": 10_000, "clients": 100, "cohort": 10, "weight_decay": 1e-5, "momentum": 0.7}

LANDMARKS = {"model": "mobilenetv2", "rounds": 1_300, "cohort": 50, "local_epochs": 5, "lr": 0.1, "weight_decay": 4e-5}

COMMON = {
    "local_epochs": 1,
    "batch_size": 64,
    "lr": 0.01,
    "lr_decay": 1.0,
    "weights": "examples",
    "augment": "crop-flip",
    "eval_every": 10,
    "checkpoint_every": 500,
}

KNOWN: dict[str, dict[str, Any]] = {
    "cifar10": {"dataset": "cifar10", "rounds": 10_000},
    "cifar100": {"dataset": "cifar100", "rounds": 20_000},
    "landmarks": {"dataset": "landmarks-user-160k", "partition": "natural", **LANDMARKS},
    "cnn": CNN,
    "resnet18": RESNET,
}


def fedgloss_methods(
    ours: FedGloSS, sam: float, mu: float, dyn: tuple[float, float], lam: float, smoo: FedSMOO
) -> dict[str, Any]:
    """Return the methods of one column of Table 13 by their words.

    Args:
        ours: FedGloSS.
        sam: ρ of FedSAM, FedSpeed and FedGAMMA.
        mu: μ of FedProx.
        dyn: α of FedDyn, and ρ of FedDyn with SAM.
        lam: λ of FedSpeed.
        smoo: FedSMOO.
    """
    methods = {
        "fedavg": FedAvg(),
        "fedprox": FedProx(mu=mu),
        "feddyn": FedDyn(dyn_alpha=dyn[0]),
        "scaffold": SCAFFOLD(),
        "fedgloss-sgd": replace(ours, rho_local=0.0),
        "fedsam": FedSAM(rho=sam),
        "feddyn-sam": FedDyn(dyn_alpha=dyn[0], rho=dyn[1]),
        "fedspeed": FedSpeed(rho=sam, mix=0.95, lam=lam),
        "fedgamma": FedGAMMA(rho=sam),
        "fedsmoo": smoo,
        "fedgloss": ours,
        "naivefedgloss": NaiveFedGloSS(ours.rho, ours.rho_local, ours.beta, ours.warmup),
    }
    return {name: {"method": method} for name, method in methods.items()}


METHODS = {  # Table 13
    "cnn cifar10": fedgloss_methods(
        FedGloSS(rho=0.15, rho_local=0.15, beta=10, warmup=2000),
        0.15,
        0.1,
        (0.01, 0.15),
        100,
        FedSMOO(rho=0.15, beta=10),
    ),
    "cnn cifar100": fedgloss_methods(
        FedGloSS(rho=0.01, rho_local=0.2, beta=100, warmup=15_000),
        0.01,
        0.1,
        (0.01, 0.02),
        1000,
        FedSMOO(rho=0.1, beta=100),
    ),
    "resnet18 cifar10": fedgloss_methods(
        FedGloSS(rho=0.01, rho_local=0.01, beta=1), 0.01, 0.01, (0.01, 0.01), 1000, FedSMOO(rho=0.01, beta=5)
    ),
    "resnet18 cifar100": fedgloss_methods(
        FedGloSS(rho=0.01, rho_local=0.01, beta=100), 0.01, 0.1, (0.01, 0.01), 1000, FedSMOO(rho=0.01, beta=10)
    ),
    "landmarks": fedgloss_methods(
        FedGloSS(rho=0.005, rho_local=0.3, beta=50), 0.05, 0.1, (0.001, 0.05), 1000, FedSMOO(rho=0.1, beta=50)
    ),
}


def fedgloss_setting(words: Words) -> dict[str, Any]:
    """Return the fields of Experiment for the words of a cell: model, data set, α, method."""
    where = "landmarks" if words[0] == "landmarks" else " ".join(words[:2])
    ordered = (words[1], words[0], *words[2:]) if words[0] in ("cnn", "resnet18") else words
    return {**COMMON, **read_words(ordered, KNOWN | METHODS[where])}


WITH_DUAL = FedGloSS | NaiveFedGloSS | FedSpeed


def with_released_code(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to the released code: FedGloSS with its divisor of the dual, FedSpeed as its authors have it.

    While the clients' radius rises, the released server uses its final value; this differs from ours on CIFAR-100 only.
    """
    method = cell.setting["method"]
    return {"method": replace(method, dual="released")} if isinstance(method, WITH_DUAL) else None


def deciding(*methods: type[Any], **fields: Any) -> VariantChange:
    """Return the variant in which `methods` have other `fields`, for the CNN on CIFAR-10.

    These runs decide why a method diverges here and not in the paper.
    """

    def change(cell: TableCell) -> dict[str, Any] | None:
        method = cell.setting["method"]
        plain = isinstance(method, FedGloSS) and method.rho_local  # it trains; with SGD clients it diverges
        here = cell.setting["dataset"] == "cifar10" and cell.setting["model"] == CNN["model"]
        return {"method": replace(method, **fields)} if here and isinstance(method, methods) and not plain else None

    return change


def with_clipping(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to gradients clipped at norm 10, as in the simulator of FedSMOO's and FedSpeed's authors."""
    diverging = deciding(FedSMOO, FedSpeed, FedGloSS)(cell)
    return {"clip_grad": 10.0} if diverging else None


DECIDING: dict[str, VariantChange] = {
    "alpha-0.1": deciding(FedDyn, dyn_alpha=0.1),
    "beta-100": deciding(FedSMOO, FedGloSS, beta=100.0),
    "dual-released": deciding(FedSMOO, FedDyn, dual="released"),
    "raw-ascent": deciding(FedSpeed, dual="released", ascent="raw"),
    "clip-10": with_clipping,
}


def with_warm_up(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to FedSMOO with FedGloSS's warm-up of the radius, where FedGloSS has one ("+wp", Figure 15)."""
    method, model = cell.setting["method"], "cnn" if cell.setting["model"] == CNN["model"] else "resnet18"
    rounds = METHODS[f"{model} {cell.setting['dataset']}"]["fedgloss"]["method"].warmup
    return {"method": replace(method, warmup=rounds)} if rounds and isinstance(method, FedSMOO) else None


CIFAR = ["cnn cifar10 alpha-0", "cnn cifar10 alpha-0.05", "cnn cifar100 alpha-0", "cnn cifar100 alpha-0.5"]

RESNETS = ["resnet18 cifar10 alpha-0.05", "resnet18 cifar100 alpha-0.5"]
