"""fedflat analyse: what it measures and what it writes to the runs' folders."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from finished_runs import QUICK, SMALL, change_tensors, quick, read

import fedflat as ff
from fedflat.cli import main
from fedflat.errors import UserError
from fedflat.flatness.analyse import analyse, json_values, write_measurement
from fedflat.flatness.finished_run import FinishedRun
from fedflat.flatness.hessian import Hessian, largest_eigenpairs
from fedflat.flatness.measures import Measurement

ALL = ("hessian", "landscape", "lpf", "discrepancy", "barrier", "path", "spectrum", "local", "local-landscape")


def test_everything_is_measured_and_written(runs, capsys):
    assert main(["analyse", *map(str, runs), *QUICK.split(), "--run-seeds", "3", "--what", *ALL]) == 0
    output = capsys.readouterr()
    assert not output.err, "no bars where there is no terminal"
    assert all(word in output.out for word in ("FedAvg", "FedDyn", "λ1/λ5", "LPF", "Δ_F", "barrier", "‖∇F‖"))
    rows = {"hessian": 3, "landscape": 16, "lpf": 2, "discrepancy": 6, "barrier": 10, "path": 4, "spectrum": 401}
    rows |= {"local": 3, "local-landscape": 48}
    for what in ALL:
        document = read(runs[0], what)
        assert document["settings"]["samples"] == 30
        assert document["samples"] == (6 * 30 if what == "discrepancy" else 30), "30 of every client"
        assert document["versions"]["torch"] == torch.__version__
        assert document["method"]["name"] == "fedavg"
        assert document["seeds"].keys() == {"3"}
        table = list(csv.DictReader((runs[0] / "analysis" / f"{what}.csv").open()))
        assert len(table) == rows[what]
        assert {row["seed"] for row in table} == {"3"}
    assert not (runs[1] / "analysis" / "barrier.json").exists(), "the barrier leads to the next run"
    assert not list(runs[0].rglob("*.tmp"))


def test_the_table_has_the_labels_of_the_report(runs, tmp_path, capsys):
    shutil.move(runs[1], tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "other" / "a")
    words = [str(tmp_path / "a"), str(tmp_path / "other" / "a"), str(runs[0])]
    assert main(["analyse", *words, *QUICK.split(), "--run-seeds", "3", "--what", "lpf"]) == 0
    output = capsys.readouterr().out
    assert re.findall(r"│ (Fed\w+)", output) == ["FedDyn", "FedDyn", "FedAvg"]
    assert f"FedDyn ({tmp_path / 'other' / 'a'})" in output
    assert "clients" not in output.partition("mean ±")[2], "there is no mean over clients in the table"


def test_numbers_are_those_of_the_functions(runs):
    settings = quick("hessian", samples=None, top=2)
    document = analyse(runs[:1], settings).documents["avg"]["hessian"]
    run = FinishedRun(runs[0], settings)
    for trial in run.trials:
        found = document["seeds"][str(trial.seed)]
        values = largest_eigenpairs(Hessian(run.task, trial.server.params, run.data), 2).values.tolist()
        assert found["eigenvalue"] == pytest.approx(values, rel=1e-4)
        assert found["lambda1"] == found["eigenvalue"][0]
        last = ff.run(ff.Experiment(seeds=(trial.seed,), rounds=2, **SMALL)).history[-1]
        assert found["model_loss"] == pytest.approx(last["loss"], rel=1e-5)
        assert found["model_accuracy"] == last["accuracy"]
    assert document == read(runs[0], "hessian")


def test_repeating_gives_the_same_numbers(runs):
    first, second = (analyse(runs[:1], quick("landscape", "lpf")).documents["avg"] for _ in range(2))
    assert all(first[what]["seeds"] == second[what]["seeds"] for what in ("landscape", "lpf"))
    other = analyse(runs[:1], quick("landscape", seed=1)).documents["avg"]["landscape"]
    assert other["seeds"] != first["landscape"]["seeds"]


def test_runs_share_the_axes_of_landscapes(runs):
    settings = quick("landscape", grid=3)
    one, other = (analyse(order, settings).documents for order in (runs, runs[::-1]))
    alone = analyse(runs[:1], settings).documents
    for name in ("avg", "dyn"):
        document = one[name]["landscape"]
        assert document["directions_shared_by"] == ["avg", "dyn"]
        for seed, found in document["seeds"].items():
            assert found["loss"][1][1] == pytest.approx(found["model_loss"], rel=1e-5)
            again = other[name]["landscape"]["seeds"][seed]["loss"]
            assert [v for row in found["loss"] for v in row] == pytest.approx(
                [v for row in again for v in row], rel=1e-4
            )
    assert alone["avg"]["landscape"]["seeds"] != one["avg"]["landscape"]["seeds"]


def test_landscapes_along_eigenvectors_are_parabolas_near_the_model(runs):
    settings = quick("hessian", "landscape", directions="eigen", grid=3, extent=0.01, run_seeds=(5,), samples=None)
    found = analyse(runs[:1], settings).documents["avg"]
    loss = found["landscape"]["seeds"]["5"]["loss"]
    bend = [loss[1][0] - 2 * loss[1][1] + loss[1][2], loss[0][1] - 2 * loss[1][1] + loss[2][1]]
    assert [b / 0.01**2 for b in bend] == pytest.approx(found["hessian"]["seeds"]["5"]["eigenvalue"][:2], rel=0.1)


def test_power_iteration_as_an_option(runs):
    found = analyse(runs[:1], quick("hessian", solver="power", run_seeds=(3,))).documents["avg"]["hessian"]
    exact = analyse(runs[:1], quick("hessian", run_seeds=(3,))).documents["avg"]["hessian"]
    pair = [document["seeds"]["3"]["lambda1"] for document in (found, exact)]
    assert pair[0] == pytest.approx(pair[1], rel=0.05)
    assert pair[0] != pair[1]


def test_barriers_lie_between_models_with_the_same_seed(runs):
    document = analyse(runs, quick("barrier")).documents["avg"]["barrier"]
    there = analyse(runs[1:], quick("lpf")).documents["dyn"]["lpf"]
    assert document["to"] == "dyn"
    for seed, found in document["seeds"].items():
        at = dict(zip(found["gamma"], found["loss"], strict=True))
        assert at[1.0] == pytest.approx(found["model_loss"], rel=1e-5)
        assert at[0.0] == pytest.approx(there["seeds"][seed]["model_loss"], rel=1e-5)


def test_barriers_of_all_pairs_are_those_of_each_pair(runs):
    documents = analyse(runs, quick("barrier", "barriers")).documents["avg"]
    for seed, pair in documents["barrier"]["seeds"].items():
        found = documents["barriers"]["seeds"][seed]
        assert (found["to"], found["barrier"], found["distance"]) == (["dyn"], [pair["barrier"]], [pair["distance"]])


def test_a_model_whose_hidden_units_change_places_lies_behind_a_barrier(tmp_path):
    good, same = tmp_path / "good", tmp_path / "same"
    ff.run(ff.Experiment(rounds=4, partition="iid", **SMALL | {"local_epochs": 5}), out=good)
    shutil.copytree(good, same)
    task = FinishedRun(good, quick()).task
    change_tensors(same, lambda name, t: reversed_units(task, t) if name.endswith("params") else t)
    (found,) = analyse([good, same], quick("barrier")).documents["good"]["barrier"]["seeds"].values()
    at = dict(zip(found["gamma"], found["loss"], strict=True))
    assert at[0.0] == pytest.approx(at[1.0], rel=1e-5), "it is the same function"
    assert found["barrier"] == pytest.approx(max(at[1 / 3], at[2 / 3]) - at[1.0], abs=1e-5)
    assert found["barrier"] > 0.1


def reversed_units(task: ff.Task, w: torch.Tensor) -> torch.Tensor:
    parts = task.unflatten(w)
    parts |= {name: parts[name].flip(0) for name in ("features.1.weight", "features.1.bias")}
    return task.flatten(parts | {"head.weight": parts["head.weight"].flip(1)})


def test_barriers_need_two_runs_with_a_seed_in_common(runs, tmp_path):
    ff.run(ff.Experiment(seeds=(4,), rounds=1, **SMALL), out=tmp_path / "four")
    problems = analyse(runs[:1], quick("barrier", "lpf")).problems
    assert [str(problem) for problem in problems] == ["barrier: needs two runs, and there is only one"]
    found = analyse([runs[0], tmp_path / "four"], quick("barrier", "lpf"))
    problems = [str(problem) for problem in found.problems]
    assert problems == ["avg: barrier: four: has no seed in common with this run, or another model"]
    assert found.documents["avg"].keys() == {"lpf"}


def test_local_models_are_those_of_the_round_after_the_last(runs, tmp_path):
    run = FinishedRun(runs[0], quick("local"))
    longer = ff.Experiment(method=ff.FedAvg(), seeds=(3, 5), rounds=3, **SMALL)
    ff.run(longer, out=tmp_path / "longer")
    for trial, then in zip(run.trials, FinishedRun(tmp_path / "longer", quick("local")).trials, strict=True):
        clients = run.chosen_clients(trial)
        weights = torch.tensor([float(len(run.client_rows[c])) for c in clients])
        mean = (weights / weights.sum()) @ run.next_local_models(trial, clients)
        assert torch.allclose(mean, then.server.params, atol=1e-5)


def test_measuring_leaves_the_trial_as_it_is(runs):
    run = FinishedRun(runs[1], quick("local"))
    trial = run.trials[0]
    before = {name: tensor.clone() for name, tensor in trial.pack().items()}
    local_models = run.next_local_models(trial, [0, 1])
    assert torch.equal(local_models, run.next_local_models(trial, [0, 1]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in trial.pack().items())


def test_local_measurements_are_of_the_clients_asked_for(runs):
    found = analyse(runs[:1], quick("local", "discrepancy", clients=(4, 0), run_seeds=(3,))).documents["avg"]
    for what in ("local", "discrepancy"):
        assert found[what]["seeds"]["3"]["client"] == [4, 0]


def test_on_training_samples(runs):
    found = analyse(runs[:1], quick("lpf", on="train", samples=None)).documents["avg"]["lpf"]
    assert found["samples"] == sum(len(part) for part in FinishedRun(runs[0], quick()).client_rows)


def test_a_run_in_another_precision_is_measured_in_its_parameters_precision(runs, tmp_path):
    ff.run(ff.Experiment(seeds=(3,), rounds=1, precision="bf16", **SMALL), out=tmp_path / "half")
    run = FinishedRun(tmp_path / "half", quick())
    assert run.trained.built.task.compute == torch.bfloat16
    assert run.task.compute is None


def test_a_comparison_stands_for_its_runs(runs):
    assert analyse([runs[0].parent], quick("lpf")).documents.keys() == {"avg", "dyn"}


def test_numbers_that_are_not_finite_are_null_and_empty_cells(tmp_path):
    found = {0: Measurement({"a": math.nan}, {"x": torch.tensor([1.0, math.inf]), "n": [1, 2]})}
    assert json_values(found[0].numbers | found[0].columns) == {"a": None, "x": [1.0, None], "n": [1, 2]}
    write_measurement(tmp_path / "analysis", "some", json_values(found[0].numbers), found)
    assert (tmp_path / "analysis" / "some.csv").read_text() == "seed,x,n\n0,1.0,1\n0,,2\n"
    assert json.loads((tmp_path / "analysis" / "some.json").read_text()) == {"a": None}


def test_a_run_with_data_from_python_needs_them_again(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    data, other = (ff.Dataset.from_arrays(x + shift, y, x[:9], y[:9]) for shift in (0, 1))
    experiment = ff.Experiment(dataset=data, rounds=1, partition="iid", **SMALL)
    ff.run(experiment, out=tmp_path / "own")
    found = analyse([tmp_path / "own"], quick("lpf"), dataset=data)
    assert found.documents["own"]["lpf"]["samples"] == 9
    with pytest.raises(UserError, match=r'own: dataset="own:own-\w+": was given, but the run has own:own-'):
        analyse([tmp_path / "own"], quick("lpf"), dataset=other)
