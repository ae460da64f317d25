"""A finished run as it is measured: its name, its seeds, its samples, and where its clients start."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_runs import SMALL, change_tensors, quick
from torch import nn

import fedflat as ff
from fedflat.cli import main
from fedflat.engine.rounds import evaluate
from fedflat.flatness.analyse import analyse
from fedflat.flatness.finished_run import AnalysisSettings, FinishedRun
from fedflat.flatness.objective import (
    join_objectives,
    loss_and_accuracy,
    make_objective,
    mean_loss,
    uses_batch_statistics,
)
from fedflat.models.layers import BatchClassifier, BatchNorm


@pytest.mark.parametrize("path", [".", "../avg", "../avg/"])
def test_relative_paths_have_names(path, runs, monkeypatch, capsys):
    monkeypatch.chdir(runs[0])
    assert FinishedRun(Path(path), quick()).name == "avg"
    assert main(["analyse", path, "--what", "lpf", "--samples", "20", "--draws", "4"]) == 0
    assert "FedAvg" in capsys.readouterr().out


def test_a_symbolic_link_gives_the_run_its_name(runs, tmp_path):
    (tmp_path / "best").symlink_to(runs[0])
    assert FinishedRun(tmp_path / "best", quick()).name == "best"


def test_a_seed_whose_loss_is_not_finite_is_left_out(runs, capsys):
    change_tensors(runs[0], lambda name, t: t * 1e30 if name == "trial.3.server.params" else t)
    found = analyse(runs[:1], quick("lpf"))
    assert found.documents["avg"]["lpf"]["seeds"].keys() == {"5"}
    assert capsys.readouterr().err == f"run {runs[0]}: seed 3 has a loss that is not finite and is left out\n"


def test_clients_of_an_averaged_model_train_on_from_the_last_one(tmp_path):
    for name, method in {"avg": ff.FedAvg(), "mean": ff.Averaged(start_round=1)}.items():
        ff.run(ff.Experiment(method=method, rounds=3, **SMALL), out=tmp_path / name)
    plain, mean = (FinishedRun(tmp_path / name, quick()) for name in ("avg", "mean"))
    assert not torch.allclose(plain.trials[0].server.params, mean.trials[0].server.params, atol=1e-3)
    local_models = [run.next_local_models(run.trials[0], [0, 1]) for run in (plain, mean)]
    assert torch.allclose(*local_models, atol=1e-6)


@pytest.mark.parametrize("what", ["local", "local-landscape", "discrepancy"])
def test_local_measurements_count_their_own_samples(what, runs):
    settings = quick(what, "lpf", samples=None, grid=2, clients=(1, 4), run_seeds=(3,))
    documents, run = analyse(runs[:1], settings).documents["avg"], FinishedRun(runs[0], settings)
    sizes = [len(run.client_rows[client]) for client in (1, 4)]
    theirs = join_objectives([run.local_data(client) for client in (1, 4)], sizes)
    data = theirs if what == "discrepancy" else run.train_data
    found = documents[what]["seeds"]["3"]
    assert documents[what]["samples"] == data.sample_count() != documents["lpf"]["samples"]
    w = run.trials[0].server.params
    assert found["model_loss"] == pytest.approx(float(mean_loss(run.task, w, data)), rel=1e-5)
    assert found["model_loss"] != pytest.approx(documents["lpf"]["seeds"]["3"]["model_loss"], rel=1e-5)


def test_the_table_shows_the_loss_on_the_samples_asked_for(runs, capsys):
    words = ["--samples", "40", "--draws", "4", "--run-seeds", "3", "--what", "lpf", "local"]
    assert main(["analyse", str(runs[0]), *words]) == 0
    run = FinishedRun(runs[0], AnalysisSettings(samples=40, run_seeds=(3,)))
    assert f" {run.model_metrics[3]['model_loss']:.4g} " in capsys.readouterr().out


def test_model_metrics_are_loss_and_accuracy(runs):
    run = FinishedRun(runs[0], AnalysisSettings(batch_size=70))
    w, test = run.trials[0].server.params, run.trained.built.client_data.test()
    assert len(run.data.batches) > 1
    found = loss_and_accuracy(run.task, w, run.data)
    expected = evaluate(run.task, w, test)
    values = (expected.loss, expected.metrics["accuracy"])
    assert (found["model_loss"], found["model_accuracy"]) == pytest.approx(values, rel=1e-6)


class Body(nn.Module):
    """Features normalised by the statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, padding=1), BatchNorm(6)

    def forward(self, x, batch):
        return torch.relu(self.norm(self.conv(x), batch.mask)).mean((2, 3))


def normalising() -> nn.Module:
    return BatchClassifier(Body(), nn.Linear(6, 10))


@pytest.fixture
def sorted_by_class(tmp_path):
    """A run with batch statistics whose clients have one class each."""
    setting = {**SMALL, "model": normalising, "alpha": 0.0, "lr": 0.3}
    ff.run(ff.Experiment(rounds=3, **setting), out=tmp_path / "normalising")
    yield tmp_path / "normalising"
    shutil.rmtree(tmp_path / "normalising")


def test_batches_of_training_samples_mix_clients_and_classes(sorted_by_class):
    run = FinishedRun(sorted_by_class, AnalysisSettings(on="train", batch_size=120), {"model": normalising})
    rows = np.concatenate(run.client_rows)
    assert len(rows) == run.data.sample_count()
    assert all(len(batch.y.unique()) >= 6 for batch in run.data.batches)
    assert len(run.local_data(0).batches[0].y.unique()) < 6
    labels = torch.cat([batch.y for batch in run.data.batches])
    assert torch.equal(labels.bincount(), run.trained.built.client_data.y[rows].bincount())
    again = FinishedRun(sorted_by_class, AnalysisSettings(on="train", batch_size=120), {"model": normalising})
    assert all(torch.equal(a.x, b.x) for a, b in zip(run.data.batches, again.data.batches, strict=True))


def test_the_model_loss_is_the_loss_that_is_filtered(sorted_by_class):
    settings = quick("lpf", samples=None, batch_size=50)
    found = analyse([sorted_by_class], settings, model=normalising).documents["normalising"]["lpf"]["seeds"]["0"]
    assert found["lpf"] - found["rise"] == pytest.approx(found["model_loss"], rel=1e-6)


def test_batches_of_models_with_batch_statistics_are_not_joined(sorted_by_class):
    run = FinishedRun(sorted_by_class, AnalysisSettings(batch_size=50), {"model": normalising})
    w, test = run.trials[0].server.params, run.data
    assert float(mean_loss(run.task, w, test.with_larger_batches())) != pytest.approx(
        float(mean_loss(run.task, w, test)), rel=1e-4
    )
    assert uses_batch_statistics(run.task.model)
    assert uses_batch_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))
    assert not uses_batch_statistics(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)))
    assert make_objective(test.batches[0], 20).with_larger_batches().sample_count() == 50
