"""A finished run as it is measured: its name, its seeds, its samples, and where its clients start."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from finished_runs import SMALL, change_tensors, quick
from torch import nn

import fedflat as ff
from fedflat.cli import main
from fedflat.engine.rounds import evaluate
from fedflat.flatness.analyse import analyse_runs
from fedflat.flatness.finished_run import AnalysisSettings, FinishedRun
from fedflat.flatness.objective import join_objectives, loss_and_accuracy, make_objective, mean_loss, mixes_samples
from fedflat.models.layers import BatchClassifier, BatchNorm


@pytest.mark.parametrize("path", [".", "../avg", "../avg/"])
def test_relative_paths_have_names(path, runs, monkeypatch, capsys):
    monkeypatch.chdir(runs[0])
    assert main(["analyse", path, "--what", "lpf", "--samples", "20", "--draws", "4"]) == 0
    assert "avg" in capsys.readouterr().out


def test_a_link_is_named_as_it_is_called(runs, tmp_path):
    (tmp_path / "best").symlink_to(runs[0])
    assert FinishedRun(tmp_path / "best", quick()).name == "best"


def test_a_seed_whose_loss_is_not_finite_is_left_out(runs, capsys):
    change_tensors(runs[0], lambda name, t: t * 1e30 if name == "trial.3.server.params" else t)
    found = analyse_runs(runs[:1], quick("lpf"))
    assert found.documents["avg"]["lpf"]["seeds"].keys() == {"5"}
    assert capsys.readouterr().err == f"run {runs[0]}: seed 3 has a loss that is not finite and is left out\n"


def test_clients_of_an_averaged_model_train_on_from_the_last_one(tmp_path):
    for name, method in {"avg": ff.FedAvg(), "mean": ff.Averaged(start_round=1)}.items():
        ff.run(ff.Experiment(method=method, rounds=3, **SMALL), out=tmp_path / name)
    plain, mean = (FinishedRun(tmp_path / name, quick()) for name in ("avg", "mean"))
    assert not torch.allclose(plain.trials[0].server.params, mean.trials[0].server.params, atol=1e-3)
    ends = [subject.ends(subject.trials[0], [0, 1]) for subject in (plain, mean)]
    assert torch.allclose(*ends, atol=1e-6)


@pytest.mark.parametrize("what", ["local", "local-landscape", "discrepancy"])
def test_local_measurements_tell_of_the_samples_they_are_of(what, runs):
    settings = quick(what, "lpf", samples=None, grid=2, clients=(1, 4), run_seeds=(3,))
    documents, subject = analyse_runs(runs[:1], settings).documents["avg"], FinishedRun(runs[0], settings)
    sizes = [len(subject.parts[client]) for client in (1, 4)]
    theirs = join_objectives([subject.own(client) for client in (1, 4)], sizes)
    data = theirs if what == "discrepancy" else subject.everything
    found = documents[what]["seeds"]["3"]
    assert documents[what]["samples"] == data.samples() != documents["lpf"]["samples"]
    w = subject.trials[0].server.params
    assert found["model_loss"] == pytest.approx(float(mean_loss(subject.task, w, data)), rel=1e-5)
    assert found["model_loss"] != pytest.approx(documents["lpf"]["seeds"]["3"]["model_loss"], rel=1e-5)


def test_the_table_shows_the_loss_on_the_samples_asked_for(runs, capsys):
    words = ["--samples", "40", "--draws", "4", "--run-seeds", "3", "--what", "lpf", "local"]
    assert main(["analyse", str(runs[0]), *words]) == 0
    subject = FinishedRun(runs[0], AnalysisSettings(samples=40, run_seeds=(3,)))
    assert f" {subject.scores[3]['model_loss']:.4g} " in capsys.readouterr().out


def test_score_is_loss_and_accuracy(runs):
    subject = FinishedRun(runs[0], AnalysisSettings(batch_size=70))
    w, test = subject.trials[0].server.params, subject.run.assembly.feed.test()
    assert len(subject.data.batches) > 1
    found = loss_and_accuracy(subject.task, w, subject.data)
    assert (found["model_loss"], found["model_accuracy"]) == pytest.approx(evaluate(subject.task, w, test), rel=1e-6)


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
    subject = FinishedRun(sorted_by_class, AnalysisSettings(on="train", batch_size=120), {"model": normalising})
    rows = np.concatenate(subject.parts)
    assert len(rows) == subject.data.samples()
    assert all(len(batch.y.unique()) >= 6 for batch in subject.data.batches)
    assert len(subject.own(0).batches[0].y.unique()) < 6
    labels = torch.cat([batch.y for batch in subject.data.batches])
    assert torch.equal(labels.bincount(), subject.run.assembly.feed.y[rows].bincount())
    again = FinishedRun(sorted_by_class, AnalysisSettings(on="train", batch_size=120), {"model": normalising})
    assert all(torch.equal(a.x, b.x) for a, b in zip(subject.data.batches, again.data.batches, strict=True))


def test_the_loss_that_is_told_is_the_one_that_is_measured(sorted_by_class):
    settings = quick("lpf", samples=None, batch_size=50)
    found = analyse_runs([sorted_by_class], settings, model=normalising).documents["normalising"]["lpf"]["seeds"]["0"]
    assert found["lpf"] - found["rise"] == pytest.approx(found["model_loss"], rel=1e-6)


def test_batches_of_models_that_look_across_them_are_not_joined(sorted_by_class):
    subject = FinishedRun(sorted_by_class, AnalysisSettings(batch_size=50), {"model": normalising})
    w, test = subject.trials[0].server.params, subject.data
    assert float(mean_loss(subject.task, w, test.coarse())) != pytest.approx(
        float(mean_loss(subject.task, w, test)), rel=1e-4
    )
    assert mixes_samples(subject.task.model)
    assert mixes_samples(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))
    assert not mixes_samples(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)))
    assert make_objective(test.batches[0], 20).coarse().samples() == 50
