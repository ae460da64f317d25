"""Tables show the settings that runs share and differ in; bold marks the best of comparable runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from fedflat.cli import main
from fedflat.methods.fedgf import FedGF
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsol import FedSOL
from fedflat.report.comparison import common_settings, training_settings
from fedflat.report.html import page_contents
from fedflat.report.page_tables import PageTable, flatness_table, results_table
from fedflat.report.run_labels import label_runs
from fedflat.runs.read import StoredRun, read_stored_run

MakeRun = Callable[..., Path]


def read(*folders: Path) -> list[StoredRun]:
    return [read_stored_run(folder) for folder in folders]


def results(runs: Sequence[StoredRun]) -> PageTable:
    return results_table(runs, training_settings(runs), 0.8)


def column(table: PageTable, heading: str) -> list[str]:
    return [row[table.headings.index(heading)].text for row in table.rows]


def bold(table: PageTable, heading: str) -> list[bool]:
    return [row[table.headings.index(heading)].mark == "best" for row in table.rows]


def test_a_run_has_its_label_and_folder_in_the_table(make_run: MakeRun) -> None:
    runs = label_runs(read(make_run("r", [0.5], method=FedSOL()), make_run("fedgf", [0.5], method=FedGF())))
    table = results(runs)
    assert (column(table, "run"), column(table, "folder")) == (["FedSOL", "FedGF"], ["r", "fedgf"])


def test_differing_settings_have_a_column_and_the_rest_is_listed_once(make_run: MakeRun) -> None:
    runs = read(
        make_run("a", [0.5, 0.6], lr_decay=0.99),
        make_run("b", [0.5], lr_decay=0.99, partition="shards", shards=3, method=FedSAM()),
    )
    table = results(runs)
    assert table.headings[7:] == ["partition", "alpha", "rounds", "shards"]
    assert column(table, "partition") == ["dirichlet", "shards"]
    assert (column(table, "alpha"), column(table, "shards")) == (["0.1", "–"], ["–", "3"])
    assert column(table, "rounds") == ["2", "1"]
    shared = "model digits-cnn, clients 20, cohort 5, local epochs 5, batch size 32, lr 0.05, lr decay 0.99, seeds 0 1"
    assert common_settings(training_settings(runs)) == shared
    assert "partition dirichlet, clients 20, cohort 5, alpha 0.1, rounds 2" in common_settings(
        training_settings(runs[:1])
    )


@pytest.mark.parametrize("owned", [True, False])
def test_auto_is_shown_as_what_it_stands_for(owned: bool, make_run: MakeRun, tmp_path: Path) -> None:
    labels = np.arange(40) % 2
    arrays = {
        "x": np.zeros((40, 1, 8, 8), np.uint8),
        "y": labels,
        "x_test": np.zeros((4, 1, 8, 8), np.uint8),
    }
    clients = {"client": np.arange(40) % 5} if owned else {}
    np.savez(tmp_path / "data.npz", **arrays, y_test=labels[:4], **clients)
    runs = read(make_run("a", [0.5], dataset=f"npz:{tmp_path / 'data.npz'}", clients=5))
    expected = (
        "partition natural, cohort 5, rounds 1" if owned else "partition dirichlet, clients 5, cohort 5, alpha 0.1"
    )
    assert expected in common_settings(training_settings(runs))
    (grids,) = (chart for chart in page_contents(runs).charts if chart.key == "clients")
    assert grids.grids[0].name == f"npz:{tmp_path / 'data.npz'}, {'natural' if owned else 'dirichlet α = 0.1'}"


def test_auto_and_what_it_stands_for_are_compared(make_run: MakeRun) -> None:
    runs = read(make_run("a", [0.5]), make_run("b", [0.9], partition="dirichlet", model="digits-cnn", shards=7))
    assert bold(results(runs), "accuracy") == [False, True]


@pytest.mark.parametrize(
    "setting",
    [{"rounds": 3}, {"partition": "iid"}, {"dataset": "mnist"}, {"cohort": 2}, {"validation": 0.1}, {"lr": 0.1}],
)
def test_runs_with_different_settings_are_not_compared(
    setting: dict[str, object], make_run: MakeRun, analyse: Callable[..., None]
) -> None:
    folders = [make_run("a", [0.5]), make_run("b", [0.6], method=FedSOL()), make_run("c", [0.9], **setting)]
    for folder, height in zip(folders, (3.0, 2.0, 1.0), strict=True):
        analyse(folder, height)
    runs = read(*folders)
    assert bold(results(runs), "accuracy") == [False, True, False]
    flat = flatness_table(runs, training_settings(runs), page_contents(runs).documents)
    assert bold(flat, "λ1") == [False, True, False]


@pytest.mark.parametrize("setting", [{"seeds": (3, 4)}, {"engine": "sequential"}, {"checkpoint_every": 3}])
def test_runs_that_differ_in_seeds_or_engine_are_compared(setting: dict[str, object], make_run: MakeRun) -> None:
    runs = read(make_run("a", [0.5]), make_run("b", [0.9], **setting))
    assert bold(results(runs), "accuracy") == [False, True]


@pytest.mark.parametrize(("shares", "samples"), [((0.1, 0.1), "validation"), ((0.0, 0.1), "test or validation")])
def test_validation_is_not_called_test(shares: tuple[float, float], samples: str, make_run: MakeRun) -> None:
    probes = {"forgetting.before": 0.5}
    runs = read(*(make_run(f"{n}", [0.5, 0.6], validation=v, probes=probes) for n, v in enumerate(shares)))
    found = {chart.key: chart for chart in page_contents(runs).charts}
    assert found["accuracy"].title == f"Accuracy on the {samples} set"
    assert found["loss"].title == f"Loss on the {samples} set"
    assert {found[key].y.label for key in ("accuracy", "communication")} == {f"{samples} accuracy"}
    assert f"on the global {samples} data" in found["probe-forgetting"].caption
    assert f"Accuracy on the {samples} set" in results(runs).caption


def test_a_page_that_mixes_test_and_validation_warns(make_run: MakeRun, tmp_path: Path, capsys) -> None:
    runs, page = [make_run("a", [0.5]), make_run("b", [0.6], validation=0.1)], tmp_path / "page.html"
    name = "FedAvg, validation = 0.1"
    warning = f"test and validation runs mixed: do not compare {name} (validation set) with the others (test)"
    for given, mixed in ((runs, True), (runs[:1], False), (runs[1:], False)):
        assert main(["report", *map(str, given), "--out", str(page)]) == 0
        assert (warning in page.read_text()) == mixed
        assert (warning in capsys.readouterr().out) == mixed
    assert "test set" not in page.read_text()
