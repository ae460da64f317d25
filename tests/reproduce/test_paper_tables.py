"""The tables as data: every cell can be trained, and what is printed is what the papers print."""

from __future__ import annotations

import math

import pytest
import yaml
from invented_results import find_cell

from fedflat import Experiment, FedAvg, FedGloSS, FedSMOO, FedSOL, NaiveFedGloSS
from fedflat.methods import METHODS
from fedflat.reproduce.cells import (
    TABLES,
    cell_experiment,
    cells_by_experiment,
    cells_like,
    every_cell,
    experiment_key,
    printed_accuracy,
)
from fedflat.reproduce.table import MEASURES, TableCell, make_table, read_rows
from fedflat.runs.config import dump_experiment, experiment_to_dict

COUNTS = {
    "fedsol": {
        "table1": 5,
        "table2": 8 * 18,
        "table3": 12 * 3,
        "table4": 5 * 6,
        "table5": 1 + 3 * 4,
        "table9": 11 * 3,
        "table10": 16,
        "table11": 6,
        "table12": 7,
        "table13": 5,
    },
    "fedgf": {"table1": 11 * 9 * 2, "table2": 36, "table3": 6, "table4": 8, "table5": 16},
    "fedgloss": {
        "table1": 6 * 4,
        "table3": 66,
        "table4": 9,
        "table5": 55,
        "table6": 24,
        "table7": 24,
        "table8": 44,
        "table10": 77,
    },
    "flsam": {"cifar10": 7 * 5},
}
FIGURES = {"fedsol": (2, 3, 4, 5, 6, 7), "fedgf": (4, 5, 7), "fedgloss": (4, 5, 6, 7, 8, 9, 18, 19)}
NUMBERS = [
    ("fedsol/table1 cifar10 lda-0.1 kl-projection", 50.88, 3.55),
    ("fedsol/table2 cifar10 lda-0.1 fedavg", 56.13, 0.78),
    ("fedsol/table2 cifar10 lda-0.05 fedsol", 60.01, 0.30),
    ("fedsol/table2 cifar10 shards-10 fedasam", 74.74, 0.88),
    ("fedsol/table2 svhn lda-0.1 fedsam", 13.27, 2.78),
    ("fedsol/table2 tissuemnist shards-2 scaffold", 30.99, 6.09),
    ("fedsol/table2 cifar10 lda-0.1 fednova", 10.00, None),
    ("fedsol/table3 pathmnist lda-0.1 sl-vit fedsol", 77.96, 0.47),
    ("fedsol/table4 svhn lda-0.1 moon combined", 76.82, None),
    ("fedsol/table5 cifar10 lda-0.1 rho-1.5 head", 64.13, None),
    ("fedsol/table9 tissuemnist lda-0.1 fedavg knn-5", 91.4, 7.5),
    ("fedsol/table10 imagenet100 lda-0.1 fedprox", 34.49, None),
    ("fedsol/table12 cifar10 lda-0.1 A4", 45.72, None),
    ("fedgf/table1 cifar10 alpha-0.05 cohort-20 mofedsam", 79.27, None),
    ("fedgf/table1 cifar100 alpha-1000 cohort-20 fedasam", 54.73, None),
    ("fedgf/table2 cifar100 alpha-0 lambda1 fedgf", 14.07, None),
    ("fedgf/table4 cifar100 alpha-0 sent fedsmoo", 536, None),
    ("fedgf/table5 cifar100 alpha-0 c-0.5", 26.64, None),
    ("fedgloss/table1 cnn cifar10 alpha-0 lambda-global fedgloss", 4.08, None),  # (4.3 + 3.9 + 4.1 + 4.0 + 4.1) / 5
    ("fedgloss/table3 cnn cifar10 alpha-0 fedgloss", 83.9, 0.4),
    ("fedgloss/table3 resnet18 cifar100 alpha-0.5 fedsmoo", 44.8, 0.5),
    ("fedgloss/table6 cnn cifar100 alpha-0.5 half naivefedgloss", 49.4, 0.5),
    ("fedgloss/table8 cnn cifar10 alpha-0.05 scaffold", 180.51, 30.08),
    ("fedgloss/table10 cnn cifar100 alpha-0.5 rounds fedsmoo", 6500, None),
    ("fedgloss/table5 resnet18 cifar10 alpha-0.05 rounds feddyn", math.inf, None),
    ("flsam/cifar10 dir-0.01 fedsmoo", 75.28, None),
    ("flsam/cifar10 dir-0.1 fedgmt", 79.45, None),
    ("flsam/cifar10 dir-1 fedlesam-d", 78.69, None),
    ("flsam/cifar10 iid seconds fedspeed", 8.48, None),
]


def test_every_cell_can_be_trained() -> None:
    for cell in every_cell():
        trained = cell_experiment(cell)
        trained.check()
        assert type(trained.method) in METHODS.values(), cell.name
        assert cell.measure in MEASURES


def test_names_are_unique() -> None:
    names = [cell.name for cell in every_cell()]
    assert len(set(names)) == len(names)


def test_as_many_cells_as_the_papers_have() -> None:
    tables = {name: table.cells for name, table in TABLES.items() if "figure" not in name}
    counts = {name: len([c for c in cells if c.failed or c.printed is not None]) for name, cells in tables.items()}
    assert counts == {f"{paper}/{name}": n for paper, tables in COUNTS.items() for name, n in tables.items()}
    figures = {f"{paper}/figure{n}" for paper, numbers in FIGURES.items() for n in numbers}
    assert {name for name in TABLES if "figure" in name} == figures


@pytest.mark.parametrize(("name", "number", "spread"), NUMBERS)
def test_printed_numbers(name: str, number: float, spread: float | None) -> None:
    cell = find_cell(name)
    assert (cell.printed, cell.spread) == (number, spread)


def test_failed_cells_have_no_number() -> None:
    failed = [c for c in TABLES["fedgloss/table3"].cells if c.failed]
    assert [c.name.split()[2:] for c in failed] == [
        ["cifar100", "alpha-0", "feddyn"],
        ["cifar100", "alpha-0.5", "feddyn"],
        ["cifar100", "alpha-0", "scaffold"],
        ["cifar100", "alpha-0", "feddyn-sam"],
        ["cifar100", "alpha-0.5", "feddyn-sam"],
        ["cifar100", "alpha-0", "fedgamma"],
    ]
    assert all(c.printed is None for c in failed)


def test_settings_of_the_main_cells() -> None:
    fedsol = cell_experiment(find_cell("fedsol/table2 cifar10 lda-0.05 fedsol"))
    assert fedsol.method == FedSOL(rho=2.0, lam="tensor", perturb="head")
    assert (fedsol.model, fedsol.rounds, fedsol.clients, fedsol.cohort) == ("fedavg-cnn", 300, 100, 10)
    assert (fedsol.partition, fedsol.alpha, fedsol.local_epochs, fedsol.batch_size) == ("lda", 0.05, 5, 50)
    assert (fedsol.lr, fedsol.lr_decay, fedsol.momentum, fedsol.weight_decay) == (0.01, 0.99, 0.9, 1e-5)
    fedgloss = cell_experiment(find_cell("fedgloss/table3 cnn cifar10 alpha-0 fedgloss"))
    assert fedgloss.method == FedGloSS(rho=0.15, rho_local=0.15, beta=10, warmup=2000)
    assert (fedgloss.model, fedgloss.rounds, fedgloss.cohort) == ("lenet-cnn", 10_000, 5)
    assert (fedgloss.partition, fedgloss.alpha, fedgloss.augment) == ("dirichlet", 0.0, "crop-flip")
    resnet = cell_experiment(find_cell("fedgloss/table3 resnet18 cifar100 alpha-0.5 fedavg"))
    assert (resnet.model, resnet.rounds, resnet.cohort, resnet.momentum) == ("resnet18-gn", 10_000, 10, 0.7)
    flsam = cell_experiment(find_cell("flsam/cifar10 dir-0.1 fedsmoo"))
    assert flsam.method == FedSMOO(rho=0.1, beta=10)
    assert (flsam.partition, flsam.alpha, flsam.long_tail, flsam.augment) == ("lda-equal", 0.1, 0.5, "crop-flip-batch")
    assert (flsam.rounds, flsam.lr_decay, flsam.momentum, flsam.weight_decay) == (500, 0.998, 0.9, 1e-5)
    wide = cell_experiment(find_cell("fedsol/table2 tissuemnist lda-0.1 fedavg"))
    assert (wide.clients, wide.cohort, wide.rounds) == (200, 10, 200)


def test_variants_follow_the_released_code() -> None:
    released = find_cell("fedsol/table2 cifar10 lda-0.1 fedsol released")
    assert cell_experiment(released).method == FedSOL(rho=2.0, lam="dim0", perturb="head")
    assert released.printed == 64.13
    divided = find_cell("fedgloss/table3 cnn cifar100 alpha-0 fedgloss released")
    assert cell_experiment(divided).method == FedGloSS(
        rho=0.01, rho_local=0.2, beta=100, warmup=15_000, dual="released"
    )
    assert cell_experiment(find_cell("fedsol/table2 mnist lda-0.1 fedavg uniform")).weights == "uniform"
    plain = cell_experiment(find_cell("fedsol/table2 cifar10 lda-0.1 fedsol released-no-cutout"))
    assert (plain.method, plain.augment) == (cell_experiment(released).method, "crop-flip")
    assert cell_experiment(find_cell("fedsol/table2 cifar10 lda-0.1 fedavg no-cutout")).augment == "crop-flip"
    naive = cell_experiment(find_cell("fedgloss/table6 cnn cifar10 alpha-0 half naivefedgloss released")).method
    assert naive == NaiveFedGloSS(rho=0.15, rho_local=0.15, beta=10, warmup=2000, dual="released")


def test_cells_with_equal_settings_are_trained_once() -> None:
    fedgf = find_cell("fedgf/table1 cifar10 alpha-0 cohort-5 fedavg")
    assert cells_like(fedgf)[0].name == "fedgloss/table3 cnn cifar10 alpha-0 fedavg"
    assert cells_like(find_cell("fedsol/table12 cifar10 lda-0.1 A1"))[0].name == "fedsol/table2 cifar10 lda-0.1 fedsol"
    assert cells_like(find_cell("fedsol/table1 cifar10 lda-0.1 none"))[0].name == "fedsol/table2 cifar10 lda-0.1 fedavg"
    assert len(cells_by_experiment()) < len(every_cell())


def test_printed_number_of_a_run() -> None:
    trained = cell_experiment(find_cell("fedsol/table2 cifar10 lda-0.3 fedntd"), seeds=(5,), device="cpu")
    config = yaml.safe_load(dump_experiment(trained))
    assert printed_accuracy(config) == ("FedSOL Table 2", 71.56)
    assert printed_accuracy({**config, "eval_every": 3, "engine": "sequential"}) == ("FedSOL Table 2", 71.56)
    assert printed_accuracy({**config, "lr": 0.02}) is None
    assert printed_accuracy({**config, "rounds": 200}) is None
    assert printed_accuracy({**config, "method": {"name": "fedntd", "beta": 0.5}}) is None
    assert printed_accuracy(experiment_to_dict(Experiment())) is None
    assert printed_accuracy({**config, "method": {"name": "mine"}}) is None
    assert printed_accuracy({**config, "dataset": "own:mine-00000000"}) is None
    beta = yaml.safe_load(
        dump_experiment(cell_experiment(find_cell("fedgloss/table3 cnn cifar10 alpha-0.05 fedgloss")))
    )
    beta["method"]["beta"] = float(beta["method"]["beta"])
    assert printed_accuracy(beta) == ("FedGloSS Table 3", 84.4)


def test_key_ignores_seeds_and_rounds_but_not_settings() -> None:
    one = Experiment(method=FedAvg(), seeds=(1,))
    assert experiment_key(one) == experiment_key(Experiment(method=FedAvg(), seeds=(2, 3), precision="fp32", rounds=5))
    assert experiment_key(one) != experiment_key(Experiment(method=FedAvg(), alpha=0.2))
    assert experiment_key(one, without=("alpha",)) != experiment_key(Experiment(rounds=5), without=("alpha",))


def test_patterns_match_words_in_order() -> None:
    cell = find_cell("fedsol/table2 cifar10 lda-0.1 fedavg")
    assert cell.matches([])
    assert cell.matches(["cifar10 lda-0.1 *"])
    assert cell.matches(["mnist", "cifar10 fed*"])
    assert not cell.matches(["fedavg cifar10"])
    assert not cell.matches(["lda-0"])


def test_rows_must_fill_the_columns() -> None:
    assert list(read_rows("a b 1 2\nc 3 4", 2)) == [("a b", ["1", "2"]), ("c", ["3", "4"])]
    with pytest.raises(ValueError, match="3 columns"):
        list(read_rows("fedavg 1 2", 3))


def test_text_becomes_cells() -> None:
    made = make_table("x/table1", "t", lambda words: {"words": words}, ["p lambda1", "q"], "m 1.5±0.2 .\nn X 3(1)")
    cells = {cell.name: (cell.measure, cell.printed, cell.spread, cell.failed) for cell in made.cells}
    assert cells == {
        "x/table1 p lambda1 m": ("lambda1", 1.5, 0.2, False),
        "x/table1 p lambda1 n": ("lambda1", None, None, True),
        "x/table1 q n": ("final", 3.0, 1.0, False),
    }
    assert made.cells[0].setting == {"words": ("p", "m")}
    assert [rival.row for rival in made.rivals(made.cells[0])] == ["n"]


def test_rivals_differ_in_the_method_only() -> None:
    cells: dict[str, TableCell] = {cell.name: cell for cell in TABLES["fedsol/table9"].cells}
    tuned = cells["fedsol/table9 svhn lda-0.1 fedsol tuned-1"]
    rivals = [rival.row for rival in TABLES["fedsol/table9"].rivals(tuned)]
    assert rivals == ["fedavg tuned-1", "perfedavg tuned-1", "fedbabu tuned-1"]
