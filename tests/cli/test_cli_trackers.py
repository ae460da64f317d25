"""--track and --stop-at-accuracy: the trackers' files hold the metrics while a run trains, and after it."""

from __future__ import annotations

import json
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.cli import main
from fedflat.runs.callbacks import CallbackError, TrainingView

SMALL = shlex.split(
    "--rounds 3 --clients 4 --cohort 2 --partition iid --model mlp --local-epochs 1 --engine sequential"
)
EXPERIMENT = ff.Experiment(rounds=3, clients=4, cohort=2, partition="iid", model="mlp", local_epochs=1)


class Breaks:
    """Ends a run after its second round."""

    def on_round(self, view: TrainingView) -> None:
        if view.round == 2:
            raise RuntimeError


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_ends_at_an_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--stop-at-accuracy", "0.1", "--target", "0.3", "--out", str(tmp_path / "run")]
    assert main(["run", "fedavg", *SMALL, *flags]) == 0
    printed = capsys.readouterr().out
    assert "fedavg: stopped after round 1 (StopAtAccuracy: accuracy 0.1)" in printed
    assert "rounds to 30" in printed
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stopped"] == "StopAtAccuracy: accuracy 0.1"
    assert main(["run", "fedavg", *SMALL, "--stop-at-accuracy", "80"]) == 2
    assert capsys.readouterr().err.startswith("fedflat: --stop-at-accuracy 80.0: must be between 0 and 1")


def test_events_are_written_while_a_run_trains(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def losses(folder: Path) -> list[float]:
        events = EventAccumulator(str(folder / "tensorboard" / "seed-0"))
        events.Reload()
        assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
        return [event.value for event in events.Scalars("test/loss")]

    seen: list[int] = []

    class Look:
        def on_round(self, view: TrainingView) -> None:
            seen.append(len(losses(tmp_path)))

    with pytest.raises(CallbackError):
        ff.run(EXPERIMENT, out=tmp_path, callbacks=[ff.TensorBoardLogger(), Look(), Breaks()])
    assert seen == [1, 2], "live"
    ff.run(EXPERIMENT, out=tmp_path, resume=True, callbacks=[ff.TensorBoardLogger()])
    assert losses(tmp_path) == pytest.approx([row["loss"] for row in rows(tmp_path)])


def test_a_tracker_that_is_not_installed(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["run", "fedavg", *SMALL, "--track", "wandb", "--out", str(tmp_path / "run")]) == 2
    assert "wandb: the package is not installed; install fedflat[wandb]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(["run", "fedavg", *SMALL, "--track", "wandbb"]) == 2
    assert "--track wandbb: must be one of wandb, mlflow, tensorboard (did you mean wandb?)" in capsys.readouterr().err


@pytest.fixture
def offline_wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let wandb write files only."""
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("ERROR_REPORTING", "false")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb = pytest.importorskip("wandb", reason="fedflat[wandb] is not installed")
    yield
    wandb.teardown()


def check_wandb_file(folder: Path) -> None:
    """Check that the only file of wandb in a run folder holds the metrics of this run."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert json.loads((folder / "tracking.json").read_text())["wandb"] in file.name
    content = file.read_bytes()
    assert all(str(row["loss"]).encode() in content for row in rows(folder))
    assert b"final_accuracy" in content
    assert b"fedsol" in content


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_offline_holds_the_metrics(tmp_path: Path) -> None:
    assert main(["run", "fedsol", *SMALL, "--track", "wandb", "--out", str(tmp_path)]) == 0
    check_wandb_file(tmp_path)


@pytest.mark.usefixtures("offline_wandb")
def test_every_point_of_a_sweep_is_a_run_of_wandb(tmp_path: Path) -> None:
    base = replace(EXPERIMENT, method=ff.FedSOL(), validation=0.2)
    points = ff.sweep(base, {"lr": [0.01, 0.1]}, tmp_path, callbacks=lambda options: [ff.WandbLogger()])
    for point in points:
        assert point.folder
        check_wandb_file(point.folder)


def test_mlflow_holds_the_metrics_of_a_continued_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    pytest.importorskip("mlflow", reason="fedflat[mlflow] is not installed")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(CallbackError):
        ff.run(EXPERIMENT, out=tmp_path / "run", callbacks=[ff.MLflowLogger(tracking_uri=store), Breaks()])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    result = ff.run(EXPERIMENT, out=tmp_path / "run", resume=True, callbacks=[ff.MLflowLogger()])
    database = sqlite3.connect(tmp_path / "mlflow.db")
    found = dict(database.execute("select step, value from metrics where key = 'test/loss'").fetchall())
    assert found == pytest.approx({row["round"]: row["loss"] for row in result.history})
    assert database.execute("select status from runs").fetchall() == [("FINISHED",)]
    assert database.execute("select value from params where key = 'method.name'").fetchall() == [("fedavg",)]
    assert database.execute("select value from metrics where key = 'final_accuracy'").fetchall() == [(result.accuracy,)]
