"""FedSOL (Lee et al., CVPR 2024): its tables."""

from __future__ import annotations

from typing import Any

from fedflat.methods.fedavg import FedAvg
from fedflat.methods.feddyn import FedDyn
from fedflat.methods.fednova import FedNova
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsol import FedSOL
from fedflat.methods.fedsol_ablation import FedSOLAblation
from fedflat.methods.moon import MOON
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.reproduce.fedsol_settings import (
    AUTHORS,
    VARIANTS,
    fedsol_setting,
    with_distillation_factor,
    with_released_scaling,
)
from fedflat.reproduce.table import Words, make_table

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

OTHERS = ("svhn", "cinic10", "pathmnist", "tissuemnist")

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
    variants={**AUTHORS, "released": with_released_scaling},
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
    variants={**VARIANTS, "released": with_released_scaling},
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
