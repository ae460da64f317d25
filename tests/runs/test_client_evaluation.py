"""Single clients: who is held out, on what clients are evaluated, and that it is the same in every engine."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedflat as ff
from fedflat.core.metric import MainMetric, client_spread
from fedflat.report.page_tables import clients_table
from fedflat.report.tables import print_results
from fedflat.runs.build import build_run
from fedflat.runs.client_evaluation import choose_held_out
from fedflat.runs.read import read_stored_run, read_trained_run

MSE = MainMetric("mse", higher_is_better=False)
CLIENTS = 10


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.booleans())
def test_the_spread_is_that_of_numpy(values: list[float], higher: bool) -> None:
    found = client_spread(values, MainMetric("m", higher))
    ordered = sorted(values, reverse=not higher)
    expected = [np.mean(values), np.mean(ordered[: max(1, len(values) // 10)]), np.std(values)]
    assert list(found) == pytest.approx(expected, abs=1e-12)


@given(st.integers(2, 200), st.floats(0.01, 0.9), st.integers(0, 5))
def test_held_out_clients_are_a_share_and_depend_on_the_seed_alone(clients: int, share: float, seed: int) -> None:
    count = round(share * clients)
    if not 0 < count < clients:
        with pytest.raises(ff.UserError, match=f"holds out {count} of {clients} clients"):
            choose_held_out(seed, clients, share)
        return
    found = choose_held_out(seed, clients, share)
    assert len(found) == count
    assert found <= set(range(clients))
    assert found == choose_held_out(seed, clients, share)


def numbers(with_test: bool = True) -> ff.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 3))
    y = x @ rng.normal(size=3) + 0.3 * rng.normal(size=150)
    clients = np.array_split(np.arange(100), CLIENTS)
    test_clients = [*np.array_split(np.arange(45), CLIENTS - 1), []] if with_test else None  # the last client has none
    return ff.Dataset.from_arrays(x[:100], y[:100], x[100:], y[100:], clients, test_clients=test_clients)


def experiment(data: ff.Dataset, **options: Any) -> ff.Experiment:
    torch.manual_seed(0)
    small: dict[str, Any] = {"rounds": 2, "cohort": 3, "local_epochs": 1, "holdout_clients": 0.3, "seeds": (0, 1)}
    return ff.Experiment(dataset=data, model=nn.Linear(3, 1), **small | options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ff.Dataset, Any]:
    folder, data = tmp_path_factory.mktemp("runs") / "held-out", numbers()
    return folder, data, ff.run(experiment(data), out=folder)


def test_clients_are_evaluated_on_what_is_new_to_the_model(finished: tuple[Path, ff.Dataset, Any]) -> None:
    folder, data, result = finished
    trained = read_trained_run(folder, experiment(data))
    held_out = choose_held_out(0, CLIENTS, 0.3)
    rows = np.array_split(np.arange(100), CLIENTS)
    test_rows = [*np.array_split(np.arange(45), CLIENTS - 1), np.arange(0)]
    assert result.clients == CLIENTS - 3
    assert [list(each) for each in trained.built.client_rows] == [
        list(own) for k, own in enumerate(rows) if k not in held_out
    ]
    for n, trial in enumerate(trained.trials):
        weight, bias = trial.server.params[:3].double(), trial.server.params[3].double()

        def mse(x: torch.Tensor, y: torch.Tensor, weight=weight, bias=bias) -> float:
            return float((x.double() @ weight + bias - y.double()).square().mean())

        own = [mse(data.x_test[r], data.y_test[r]) for k, r in enumerate(test_rows) if k not in held_out and len(r)]
        new = [
            mse(
                torch.cat([data.x[rows[k]], data.x_test[test_rows[k]]]),
                torch.cat([data.y[rows[k]], data.y_test[test_rows[k]]]),
            )
            for k in held_out
        ]
        for field, values in (("training_clients", own), ("held_out_clients", new)):
            group = getattr(result, field)
            assert group["clients"] == len(values)
            found = [group[key][n] for key in ("mean", "worst10", "std")]
            assert found == pytest.approx(list(client_spread(values, MSE)), rel=1e-5)


def test_the_numbers_are_in_the_file_in_the_table_and_on_the_page(
    finished: tuple[Path, ff.Dataset, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, result = finished
    written = json.loads((folder / "result.json").read_text())
    assert written["held_out_clients"] == result.held_out_clients
    run = read_stored_run(folder)
    assert run.result == result
    print_results([run])
    out = capsys.readouterr().out
    assert "own test samples" in out
    assert "held out" in out
    table = clients_table([run])
    assert [row[1].text for row in table.rows] == ["own test samples", "held out"]


def test_engines_hold_out_the_same_clients(finished: tuple[Path, ff.Dataset, Any]) -> None:
    _, data, result = finished
    other = ff.run(experiment(data, engine="sequential"))
    for field in ("training_clients", "held_out_clients"):
        for key in ("mean", "worst10", "std"):
            assert getattr(other, field)[key] == pytest.approx(getattr(result, field)[key], rel=1e-5)


def test_a_resumed_run_has_the_same_numbers(finished: tuple[Path, ff.Dataset, Any], tmp_path: Path) -> None:
    _, data, result = finished
    ff.run(experiment(data, rounds=1), out=tmp_path / "run")
    resumed = ff.run(experiment(data), out=tmp_path / "run", resume=True)
    assert resumed.held_out_clients == result.held_out_clients
    assert resumed.training_clients == result.training_clients


def test_without_test_samples_of_clients_only_held_out_ones_are_evaluated() -> None:
    result = ff.run(experiment(numbers(with_test=False), seeds=(0,), rounds=1))
    assert result.training_clients is None
    assert result.held_out_clients["clients"] == 3
    assert "training_clients" not in result.to_json()


def test_other_partitions_do_not_use_the_test_samples_of_clients() -> None:
    built = build_run(experiment(numbers(), partition="iid", clients=20))
    assert built.evaluated_clients.own_test_rows is None
    assert len(built.evaluated_clients.held_out) == 6
    assert len(built.client_rows) == 14


def test_validation_gives_clients_test_samples_of_their_own() -> None:
    built = build_run(experiment(numbers(with_test=False), validation=0.4, holdout_clients=0.0))
    own = built.evaluated_clients.own_test_rows
    assert own is not None
    assert sorted(np.concatenate(own)) == list(range(40))


def test_personal_models_are_tested_on_the_clients_own_samples(finished: tuple[Path, ff.Dataset, Any]) -> None:
    folder, data, result = finished
    (row,) = ff.personalise(folder, [0], alone=False, experiment=experiment(data))
    assert (row.metric, row.tested_on) == ("mse", "their own test samples")
    assert row.accuracy == pytest.approx(np.mean(result.training_clients["mean"]))


@pytest.mark.parametrize(
    ("test_clients", "message"),
    [
        ([[0]], "test_clients: has 1 lists for 10 clients"),
        ([[0], [0], *[[]] * 8], "a row of client 1 is given twice"),
        ([[99], *[[]] * 9], "client 0 has row 99; rows are 0 to 49"),
    ],
)
def test_wrong_test_clients_are_refused(test_clients: list[list[int]], message: str) -> None:
    x, y = np.zeros((150, 2)), np.zeros(150)
    clients = np.array_split(np.arange(100), CLIENTS)
    with pytest.raises(ff.UserError, match=message):
        ff.Dataset.from_arrays(x[:100], y[:100], x[100:], y[100:], clients, test_clients=test_clients)


def test_an_npz_file_names_the_clients_of_its_test_samples(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((6, 2)), "y": np.zeros(6), "x_test": np.zeros((3, 2)), "y_test": np.zeros(3)}
    path = tmp_path / "d.npz"
    np.savez(path, **arrays, client=["b", "b", "a", "a", "c", "c"], client_test=["c", "a", "z"])
    built = build_run(ff.Experiment(dataset=f"npz:{path}", cohort=1))
    assert built.dataset.test_owner.tolist() == [2, 0, -1]
    assert [list(rows) for rows in built.evaluated_clients.own_test_rows] == [[1], [], [0]]
    before = built.dataset.fingerprint
    np.savez(path, **arrays, client=["b", "b", "a", "a", "c", "c"], client_test=["c", "b", "z"])
    assert build_run(ff.Experiment(dataset=f"npz:{path}", cohort=1)).dataset.fingerprint != before
    np.savez(path, **arrays, client_test=["c", "b", "z"])
    with pytest.raises(ff.UserError, match="has client_test without client"):
        build_run(ff.Experiment(dataset=f"npz:{path}"))


def test_a_diverged_model_has_no_numbers_and_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = numbers()
    lost = ff.run(experiment(data, lr=1e30, local_epochs=4), out=tmp_path / "lost")
    kept = ff.run(experiment(data), out=tmp_path / "kept")
    assert lost.diverged_seeds == [0, 1]
    assert lost.final == float("inf")
    assert lost.held_out_clients["mean"] == [None, None]
    text = (tmp_path / "lost" / "result.json").read_text()
    written = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert written["final_mse"] is None
    runs = [read_stored_run(tmp_path / name) for name in ("lost", "kept")]
    assert runs[0].result == lost
    print_results(runs)
    row = next(line for line in capsys.readouterr().out.splitlines() if "lost" in line)
    assert "diverged: seed 0 1" in row
    assert "–" in row
    assert lost.main_metric.score(lost.final) < kept.main_metric.score(kept.final)
    ff.write_report([tmp_path / "lost", tmp_path / "kept"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    data_line = re.search(r'id="report-data"[^>]*>(.*?)</script>', page, re.S)
    assert data_line
    json.loads(data_line[1], parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert dataclasses.replace(lost, history=[]) == dataclasses.replace(runs[0].result, history=[])
