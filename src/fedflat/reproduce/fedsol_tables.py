"""FedSOL (Lee et al., CVPR 2024): its settings, tables and figures.

Settings are those of Section 4.1 and Appendix B (Tables 7 and 8). What they leave open is taken from the released code:
batch size 50, FedDyn's α = 0.1, FedASAM without η and with biases, momentum-corrected steps in SCAFFOLD. Replies are
weighted by samples, as in eq. 1 and the released code; Algorithm 1 prints equal weights (variant uniform). SVHN is
trained for 200 rounds (Table 7); Section 4.1 says 300.

The variant authors is all that we believe produced the printed numbers, for CIFAR-10, CIFAR-100 and MNIST: no Cutout
(with it the numbers at little heterogeneity are too low), the released Λ (nearer to the paper wherever both were
tried), the released partition (its published statistics agree), and the released participants, which are the same for
every method and seed (the printed ± at lda-0.05 and lda-0.1 are too small for others; SCAFFOLD fails at both, as
printed, with them). authors-mu-0.1 is the same with μ = 0.1 for FedProx, authors-cutout the same with Cutout. Other
variants change one thing: released (Λ and the radii of the released configurations), released-split, uniform (equal
weights), no-cutout, released-no-cutout, and distilled (a KL loss with the factor T² = 9).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedflat.methods.fedasam import FedASAM
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedbabu import FedBABU
from fedflat.methods.feddyn import FedDyn
from fedflat.methods.fednova import FedNova
from fedflat.methods.fedntd import FedNTD
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsol import FedSOL
from fedflat.methods.fedsol_ablation import FedSOLAblation
from fedflat.methods.moon import MOON
from fedflat.methods.perfedavg import PerFedAvg
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.reproduce.table import TableCell, VariantChange, Words, make_table, read_words

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

OTHERS = ("svhn", "cinic10", "pathmnist", "tissuemnist")

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


def _authors_cutout(cell: TableCell) -> dict[str, Any] | None:
    """Return the change of `authors` with Cutout, as the paper and the released code have it."""
    change = _authors(cell)
    return change | {"augment": "dataset"} if change and _no_cutout(cell) else None


AUTHORS: dict[str, VariantChange] = {"authors": _authors}

VARIANTS: dict[str, VariantChange] = {
    **AUTHORS,
    "authors-mu-0.1": _authors_small_mu,
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


PROXIMAL: dict[str, dict[str, Any]] = {
    "none": {"method": FedAvg()},
    "l2-base": {"method": FedProx(mu=1.0)},
    "l2-projection": {"method": FedSOLAblation(strategy="project", proximal="l2", perturb="all")},
    "kl-base": {"method": FedSOLAblation(strategy="A5")},  # as in Table 12
    "kl-projection": {"method": FedSOLAblation(strategy="project", proximal="kl", perturb="all")},
}

TABLE1 = make_table(
    "fedsol/table1",
    "Gradient projection on CIFAR-10 (α = 0.1)",
    lambda words: fedsol_setting(words) | PROXIMAL[words[-1]],
    ["cifar10 lda-0.1"],
    """
    none           56.13±0.78
    l2-base        59.80±1.12
    l2-projection  56.35±2.85
    kl-base        60.31±2.07
    kl-projection  50.88±3.55
    """,
    note="β of the KL loss is not printed; we take 1, and T² = 9 in the variant distilled. Table 12 (A5) prints 61.76 "
    "for the setting of kl-base.",
    variants={**AUTHORS, "distilled": with_distillation_factor},
)

SHARDING = make_table(
    "fedsol/table2",
    "Test accuracy of baselines and FedSOL",
    fedsol_setting,
    ["mnist shards-2", *(f"cifar10 shards-{s}" for s in (2, 3, 5, 10)), *(f"{name} shards-2" for name in OTHERS)],
    # mnist  cifar10 s=2         s=3         s=5        s=10        svhn     cinic10   pathmnist tissuemnist
    """
    fedavg   96.16(0.19) 51.48(3.41) 62.94(0.00) 70.96(0.91) 74.60(0.88) 73.63(3.16) 42.40(2.70) 57.40(1.48) 49.36(1.64)
    fedprox  95.86(0.12) 52.80(2.66) 58.19(0.55) 64.71(0.74) 69.37(1.21) 71.09(3.13) 40.00(3.01) 60.77(3.64) 48.20(1.95)
    fednova  94.13(0.36) 46.89(2.57) 61.12(0.88) 67.11(0.25) 70.59(0.52) 67.35(2.84) 40.94(2.29) 58.85(4.10) 36.44(0.95)
    scaffold 95.91(0.18) 62.60(0.70) 68.53(0.99) 74.28(0.39) 76.71(0.16) 77.84(2.28) 47.76(0.45) 71.12(1.04) 30.99(6.09)
    fedntd   96.62(0.06) 67.25(1.08) 70.47(0.33) 75.21(0.39) 76.46(0.07) 85.30(0.78) 52.72(1.12) 65.00(1.26) 52.63(0.59)
    fedsam   96.12(0.19) 51.85(3.14) 60.90(0.93) 69.29(0.39) 72.98(0.34) 65.85(3.77) 45.91(2.02) 67.32(3.15) 49.62(1.61)
    fedasam  97.08(0.15) 52.08(2.19) 63.24(1.16) 70.95(0.76) 74.74(0.88) 79.48(2.17) 43.15(2.73) 59.47(2.91) 49.46(1.91)
    fedsol   97.15(0.08) 66.72(0.61) 69.88(0.15) 75.82(0.34) 77.79(0.19) 85.18(0.37) 55.17(0.32) 73.85(1.55) 53.42(0.46)
    """,
    note="FedSOL's 64.13 at CIFAR-10 lda-0.1 is printed in Table 5 for ρ = 1.5; ρ = 2, which Table 8 selects, has "
    "63.25 there. The released FedNova subtracts a client's own last update, a likely cause of its failures; ours "
    "does not.",
    variants=VARIANTS,
)

LDA = make_table(
    "fedsol/table2",
    "",
    fedsol_setting,
    ["mnist lda-0.1", *(f"cifar10 lda-{a}" for a in (0.05, 0.1, 0.3, 0.5)), *(f"{name} lda-0.1" for name in OTHERS)],
    # mnist   cifar10 0.05        0.1         0.3         0.5        svhn     cinic10   pathmnist tissuemnist
    """
    fedavg   96.11(0.19) 42.27(1.34) 56.13(0.78) 67.32(0.94) 73.90(0.66) 55.36(4.85) 36.49(4.37) 65.98(4.76) 42.78(2.03)
    fedprox  96.05(0.13) 50.58(0.57) 59.80(1.12) 68.39(0.81) 72.87(0.55) 72.40(3.15) 40.09(3.97) 70.44(1.92) 52.25(1.40)
    fednova  88.24(1.37) 10.00(X)    10.00(X)    64.67(0.77) 70.04(0.45) 53.07(3.30) 21.89(1.71) 38.94(2.34) 15.03(3.74)
    scaffold 94.18(0.32) 10.00(X)    10.00(X)    71.92(0.17) 75.49(0.21) 21.46(1.75) 16.89(2.25) 18.07(0.04) 32.04(0.07)
    fedntd   96.97(0.27) 58.08(0.48) 63.16(1.02) 71.56(0.26) 74.91(0.33) 79.25(0.61) 50.22(3.71) 74.26(1.25) 44.55(1.95)
    fedsam   95.72(0.43) 36.14(1.21) 52.14(0.94) 64.83(0.56) 70.74(0.40) 13.27(2.78) 36.70(4.28) 66.64(3.76) 44.07(3.02)
    fedasam  96.60(0.10) 43.12(1.25) 57.00(0.30) 67.45(0.92) 73.91(0.51) 60.25(4.56) 36.93(4.60) 69.45(3.19) 42.73(2.35)
    fedsol   97.44(0.11) 60.01(0.30) 64.13(0.46) 71.94(0.57) 75.60(0.32) 83.92(0.29) 55.07(1.48) 78.88(0.46) 53.40(0.85)
    """,
    variants=VARIANTS,
)

TABLE2 = SHARDING.joined(LDA)

TABLE3 = make_table(
    "fedsol/table3",
    "Other architectures (α = 0.1)",
    fedsol_setting,
    ["cifar10 lda-0.1", "svhn lda-0.1", "pathmnist lda-0.1"],
    """
    vgg11 fedavg     41.30±1.07  50.02±4.25  61.79±9.88
    vgg11 fedprox    40.45±1.41  31.07±6.72  63.47±2.68
    vgg11 fedntd     60.55±2.14  56.62±2.64  69.82±2.27
    vgg11 fedsol     56.39±1.40  74.74±0.04  78.38±1.12
    resnet18 fedavg  49.92±0.62  76.98±2.90  57.91±1.27
    resnet18 fedprox 59.00±2.58  82.09±2.35  75.84±1.58
    resnet18 fedntd  57.79±3.42  78.50±0.18  76.87±0.57
    resnet18 fedsol  66.32±0.48  85.97±0.04  80.59±0.11
    sl-vit fedavg    35.48±2.09  53.94±5.17  72.44±1.91
    sl-vit fedprox   38.73±1.23  58.25±4.23  74.10±1.23
    sl-vit fedntd    47.59±2.84  61.46±1.76  71.65±1.71
    sl-vit fedsol    47.95±1.51  67.19±0.33  77.96±0.47
    """,
    variants=VARIANTS,
)


def with_proximal_term(proximal: Any) -> FedSOLAblation:
    """Return FedSOL with another method's proximal term, perturbing the whole model."""
    return FedSOLAblation(rho=2.0, perturb="all", proximal=proximal)


USAGES = {
    "fedprox base": FedProx(mu=1.0),
    "fedprox combined": with_proximal_term("l2"),
    "fednova base": FedNova(),
    "fednova combined": with_proximal_term("fednova"),
    "scaffold base": SCAFFOLD(steps="momentum"),
    "scaffold combined": with_proximal_term("scaffold"),
    "feddyn base": FedDyn(dyn_alpha=0.1),
    "feddyn combined": with_proximal_term("feddyn"),
    "moon base": MOON(mu=0.1, tau=0.5),
    "moon combined": with_proximal_term("moon"),
}

TABLE4 = make_table(
    "fedsol/table4",
    "Proximal methods alone (base) and as FedSOL's perturbation (combined), α = 0.1",
    lambda words: fedsol_setting(words) | {"method": USAGES[" ".join(words[-2:])]},
    ["cifar10 lda-0.1", "svhn lda-0.1", "cinic10 lda-0.1"],
    """
    fedprox base       59.80  72.40  40.09
    fedprox combined   63.93  84.32  55.25
    fednova base       10.00(X)  53.07  21.89
    fednova combined   31.77  79.95  42.37
    scaffold base      10.00(X)  21.46  16.89
    scaffold combined  62.70  77.52  49.96
    feddyn base        60.80  78.15  48.25
    feddyn combined    62.85  79.43  52.17
    moon base          55.72  29.67  38.15
    moon combined      60.91  76.82  49.14
    """,
    note="What the paper leaves open about the terms of FedNova and SCAFFOLD is in docs/methods/fedsol-ablation.md.",
    variants=AUTHORS,
)


def _released(cell: TableCell) -> dict[str, Any] | None:
    """Return the change to FedSOL with Λ normalised along axis 0, as in the released code."""
    method = cell.setting["method"]
    return {"method": replace(method, lam="dim0")} if isinstance(method, FedSOL) else None


TABLE5 = make_table(
    "fedsol/table5",
    "Partial perturbation on CIFAR-10 (α = 0.1)",
    fedsol_setting,
    ["cifar10 lda-0.1", *(f"cifar10 lda-0.1 rho-{rho}" for rho in (0.5, 1.0, 1.5, 2.0))],
    """
    fedavg  56.13  .      .      .      .
    all     .      61.17  64.16  64.38  63.94
    body    .      60.98  62.95  63.94  63.80
    head    .      62.65  63.62  64.13  63.25
    """,
    note="The column FLOPs (2×, 1.96×, 1.33×, each + δ) is counted by fedflat run fedsol --probes cost.",
    variants={**AUTHORS, "released": _released},
)

TABLE9 = make_table(
    "fedsol/table9",
    "Personalised accuracy after 1 and 5 epochs of fine-tuning (α = 0.1)",
    fedsol_setting,
    ["cifar10 lda-0.1", "svhn lda-0.1", "tissuemnist lda-0.1"],
    """
    fedavg alone       84.7±12.8  87.4±13.0  82.4±15.5
    fedavg tuned-1     84.1±13.4  86.6±15.5  82.2±17.5
    fedavg tuned-5     88.9±8.9   92.1±5.7   89.2±10.1
    perfedavg tuned-1  80.5±16.2  64.1±30.3  82.3±18.9
    perfedavg tuned-5  86.3±10.4  72.4±21.2  88.8±10.2
    fedbabu tuned-1    84.6±12.7  88.7±9.6   85.7±14.3
    fedbabu tuned-5    89.2±8.4   92.7±6.2   90.5±8.8
    fedavg knn-1       85.7±12.3  86.4±15.0  86.5±14.2
    fedavg knn-5       89.7±8.1   92.8±6.2   91.4±7.5
    fedsol tuned-1     87.5±9.7   92.5±7.4   88.1±12.2
    fedsol tuned-5     90.5±7.8   95.0±3.9   91.6±6.9
    """,
    note="± is over clients in the paper, over seeds in ours. Clients that train alone (fedavg alone) train as long as "
    "the average client of the federation; the released code gives them 200 epochs.",
    spread="clients",
    variants=AUTHORS,
)

TABLE10 = make_table(
    "fedsol/table10",
    "CIFAR-100 and ImageNet-100, ResNet-18",
    lambda words: fedsol_setting(("resnet18", *words)),
    ["cifar100 shards-5", "cifar100 shards-10", "cifar100 lda-0.05", "imagenet100 lda-0.1"],
    """
    fedavg   42.43  53.23  48.69  43.41
    fedprox  39.03  48.38  46.75  34.49
    fedntd   39.32  52.23  48.35  44.08
    fedsol   44.21  53.78  49.25  44.97
    """,
    note="300 rounds (Appendix I).",
    variants=AUTHORS,
)

TABLE11 = make_table(
    "fedsol/table11",
    "Head perturbation in larger models on CIFAR-10 (α = 0.1)",
    fedsol_setting,
    ["cifar10 lda-0.1"],
    """
    vgg11 fedavg     41.30
    vgg11 all        56.44
    vgg11 head       56.39
    resnet18 fedavg  49.92
    resnet18 all     66.69
    resnet18 head    66.32
    """,
    variants={**VARIANTS, "released": _released},
)


def _strategy(words: Words) -> dict[str, Any]:
    strategy: Any = words[-1]
    known = {"A0": FedAvg(), "A1": FedSOL(rho=2.0, perturb="head")}
    ablation = FedSOLAblation(rho=2.0, perturb="head", strategy=strategy, beta=1.0)
    return fedsol_setting(words) | {"method": known.get(strategy, ablation)}


TABLE12 = make_table(
    "fedsol/table12",
    "Where gradients and perturbation come from, CIFAR-10 (α = 0.1)",
    _strategy,
    ["cifar10 lda-0.1"],
    """
    A0  56.13
    A1  64.13
    A2  53.85
    A3  60.28
    A4  45.72
    A5  61.76
    A6  44.12
    """,
    note="β is not printed; we take 1, and T² = 9 in the variant distilled. Table 1 (kl-base) prints 60.31 for the "
    "setting of A5.",
    variants={**AUTHORS, "distilled": with_distillation_factor},
)

TABLE13 = make_table(
    "fedsol/table13",
    "Seconds of a local step, ResNet-18 on ImageNet-100",
    lambda words: fedsol_setting(("resnet18", "imagenet100", "lda-0.1", *words)),
    ["latency"],
    """
    fedavg   2.846
    fedprox  2.865
    fedntd   2.996
    fedsam   3.380
    fedsol   2.900
    """,
    note="FedSOL with an L2 proximal loss (Appendix I).",
    unavailable={"*": "seconds on an A6000; fedflat run METHOD --probes cost compares steps on this machine"},
)

TABLES = (TABLE4, TABLE5, TABLE9, TABLE10, TABLE11, TABLE12, TABLE13)

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
