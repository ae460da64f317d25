"""FedSOL (Lee et al., CVPR 2024): its settings and their variants.

Settings are those of Section 4.1 and Appendix B (Tables 7 and 8). What they leave open is taken from the released code:
batch size 50, FedDyn's α = 0.1, FedASAM without η and with biases, momentum-corrected steps in SCAFFOLD. Replies are
weighted by samples, as in eq. 1 and the released code; Algorithm 1 prints equal weights (variant uniform). SVHN is
trained for 200 rounds (Table 7); Section 4.1 says 300.

The variant authors is all that we believe produced the printed numbers, for CIFAR-10, CIFAR-100 and MNIST: no Cutout
(with it the numbers at little heterogeneity are too low), the released Λ (nearer to the paper wherever both were
tried), the released partition (its published statistics agree), and the released participants, which are the same for
every method and seed (the printed ± at lda-0.05 and lda-0.1 are too small for others; SCAFFOLD fails at both, as
printed, with them). Three variants change one thing of authors: authors-mu-0.1 (μ = 0.1 for FedProx), authors-fednova
(FedNova as in the released code) and authors-cutout (Cutout). Others change one thing of the paper's settings: released
(Λ and the radii of the released configurations), released-split, uniform (equal weights), no-cutout,
released-no-cutout, and distilled (a KL loss with the factor T² = 9).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedflat.methods.fedasam import FedASAM
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedbabu import FedBABU
from fedflat.methods.fednova import FedNova
from fedflat.methods.fedntd import FedNTD
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsol import FedSOL
from fedflat.methods.fedsol_ablation import FedSOLAblation
from fedflat.methods.perfedavg import PerFedAvg
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.reproduce.table import TableCell, VariantChange, Words, read_words

COMMON = {
    "model": "fedavg-cnn",
    "local_epochs": 5,
    "batch_size": 50,
    "lr": 0.01,
    "lr_decay": 0.99,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "weights": "examples",
    "augment": "dataset",
    "eval_every": 10,
    "checkpoint_every": 50,
}

HUNDRED = {"clients": 100, "cohort": 10}

TWO_HUNDRED = {"clients": 200, "cohort": 10}

KNOWN: dict[str, dict[str, Any]] = {
    "mnist": {"dataset": "mnist", "rounds": 200, **HUNDRED},
    "cifar10": {"dataset": "cifar10", "rounds": 300, **HUNDRED},
    "svhn": {"dataset": "svhn", "rounds": 200, **HUNDRED},
    "cinic10": {"dataset": "cinic10", "rounds": 300, **TWO_HUNDRED},
    "pathmnist": {"dataset": "pathmnist", "rounds": 200, **TWO_HUNDRED},
    "tissuemnist": {"dataset": "tissuemnist", "rounds": 200, **TWO_HUNDRED},
    "cifar100": {"dataset": "cifar100", "rounds": 300, **HUNDRED},
    "imagenet100": {"dataset": "imagenet100", "rounds": 300, **HUNDRED},
    "vgg11": {"model": "vgg11"},
    "resnet18": {"model": "resnet18"},
    "sl-vit": {"model": "sl-vit"},
    "fedavg": {"method": FedAvg()},
    "fedprox": {"method": FedProx(mu=1.0)},
    "fednova": {"method": FedNova()},
    "scaffold": {"method": SCAFFOLD(steps="momentum")},
    "fedntd": {"method": FedNTD(beta=1.0, tau=1.0)},
    "fedsam": {"method": FedSAM(rho=0.1)},
    "fedasam": {"method": FedASAM(rho=1.0, eta=0.0, biases=True)},
    "fedsol": {"method": FedSOL(rho=2.0, lam="tensor", perturb="head")},
    "head": {"method": FedSOL(perturb="head")},
    "body": {"method": FedSOL(perturb="body")},
    "all": {"method": FedSOL(perturb="all")},
    "perfedavg": {"method": PerFedAvg(inner_lr=0.01)},
    "fedbabu": {"method": FedBABU()},
}

RELEASED: dict[str, dict[str, Any]] = {  # radii of the released configurations; FedSOL with Λ along axis 0
    "fedsol": {"method": FedSOL(rho=2.0, lam="dim0", perturb="head")},
    "fedsam": {"method": FedSAM(rho=0.5)},
    "fedasam": {"method": FedASAM(rho=0.5, eta=0.0, biases=True)},
}

NO_CUTOUT = {"augment": "crop-flip"}  # Appendix B has Cutout for CIFAR-10, the released code for MNIST too


def _no_cutout(cell: TableCell) -> dict[str, Any] | None:
    return NO_CUTOUT if cell.setting["dataset"] in ("cifar10", "mnist") else None


def _released_no_cutout(cell: TableCell) -> dict[str, Any] | None:
    change = RELEASED.get(cell.words[-1])
    return change | NO_CUTOUT if change and _no_cutout(cell) else None


def _released_split(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to the exact partition of the released code, for LDA."""
    lda = cell.setting["partition"] == "lda"
    return {"partition": "lda-released", "partition_seed": 19940817} if lda else None


def _authors(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to what we believe produced the printed numbers, for CIFAR-10, CIFAR-100 and MNIST.

    The evidence for each choice is at the top of this file.
    """
    if cell.setting["dataset"] not in ("cifar10", "cifar100", "mnist"):
        return None
    method = cell.setting["method"]
    adaptive = isinstance(method, FedSOL | FedSOLAblation) and method.lam == "tensor"
    released = {"method": replace(method, lam="dim0")} if adaptive else {}
    return NO_CUTOUT | {"sampling": "released"} | (_released_split(cell) or {}) | released


def _authors_small_mu(cell: TableCell) -> dict[str, Any] | None:
    """Return the change of `authors` with FedProx's μ = 0.1; Table 8 selects 1."""
    change = _authors(cell)
    return change | {"method": FedProx(mu=0.1)} if change and isinstance(cell.setting["method"], FedProx) else None


def _authors_released_fednova(cell: TableCell) -> dict[str, Any] | None:
    """Return the change of `authors` with the released code's FedNova, which subtracts a client's last direction."""
    change = _authors(cell)
    fednova = isinstance(cell.setting["method"], FedNova)
    return change | {"method": FedNova(gradient="released")} if change and fednova else None


def _authors_cutout(cell: TableCell) -> dict[str, Any] | None:
    """Return the change of `authors` with Cutout, as the paper and the released code have it."""
    change = _authors(cell)
    return change | {"augment": "dataset"} if change and _no_cutout(cell) else None


AUTHORS: dict[str, VariantChange] = {"authors": _authors}

VARIANTS: dict[str, VariantChange] = {
    **AUTHORS,
    "authors-mu-0.1": _authors_small_mu,
    "authors-fednova": _authors_released_fednova,
    "authors-cutout": _authors_cutout,
    "released": lambda cell: RELEASED.get(cell.words[-1]),
    "released-split": _released_split,
    "uniform": lambda cell: {"weights": "uniform"},
    "no-cutout": _no_cutout,
    "released-no-cutout": _released_no_cutout,
}


def fedsol_setting(words: Words) -> dict[str, Any]:
    """Return the fields of Experiment for the words of a cell; rho-R sets the method's radius."""
    setting = {**COMMON, **read_words(words, KNOWN)}
    radius = next((float(word.removeprefix("rho-")) for word in words if word.startswith("rho-")), None)
    return setting if radius is None else setting | {"method": replace(setting["method"], rho=radius)}


def with_distillation_factor(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to a KL loss with the factor T² = 9 of distillation, where it is added to the local loss."""
    method = cell.setting["method"]
    added = isinstance(method, FedSOLAblation) and method.proximal == "kl" and method.strategy != "project"
    return {"method": replace(method, beta=9.0)} if added else None


def with_released_scaling(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to FedSOL with Λ normalised along axis 0, as in the released code."""
    method = cell.setting["method"]
    return {"method": replace(method, lam="dim0")} if isinstance(method, FedSOL) else None
