"""Callbacks: when they are called, what they see, that they change nothing, and that STOP leaves a complete run."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedflat as ff
from fedflat.core.metric import ACCURACY
from fedflat.runs.callbacks import CallbackError, Stop, TrainingView
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.read import read_stored_run

SMALL = ff.Experiment(
    rounds=4,
    clients=20,
    cohort=2,
    partition="iid",
    model="mlp",
    local_epochs=1,
    checkpoint_every=2,
    seeds=(0, 1),
    engine="sequential",
)


class Recorder:
    """Notes every call, and changes all that it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda view: self.spoil(name, view)

    def spoil(self, name: str, view: TrainingView) -> None:
        self.calls.append((name, view.round))
        view.server.params.zero_()
        view.servers[1].params.zero_()
        for row in (*view.history, *view.metrics):
            row.clear()
        with torch.no_grad():
            next(view.models[1].parameters()).zero_()
            next(view.model.parameters()).zero_()
        torch.manual_seed(0)


class ProbeSpoiler(ff.Callback):
    """Empties the measurements of the rows that it is given."""

    def on_evaluation(self, view: TrainingView) -> None:
        for row in (*view.history, *view.metrics):
            row["probes"].clear()


def test_measurements_are_copies_too() -> None:
    probed = replace(SMALL, rounds=1, seeds=(0,), probes=("norm",))
    assert all(row["probes"] for row in ff.run(probed, callbacks=[ProbeSpoiler()]).history)


def final_models(folder: Path) -> dict[str, torch.Tensor]:
    tensors = load_tensors(folder / "checkpoint" / "state.safetensors")
    assert tensors
    return {name: tensor for name, tensor in tensors.items() if name != "counters"}


def test_callbacks_are_called_in_order_and_change_nothing(tmp_path: Path) -> None:
    plain = ff.run(replace(SMALL, eval_every=3), out=tmp_path / "plain")
    recorder = Recorder()
    watched = ff.run(replace(SMALL, eval_every=3), out=tmp_path / "watched", callbacks=[recorder])
    assert recorder.calls == [
        ("on_start", 0),
        ("on_round", 1),
        ("on_checkpoint", 2),
        ("on_round", 2),
        ("on_evaluation", 3),
        ("on_round", 3),
        ("on_evaluation", 4),
        ("on_checkpoint", 4),
        ("on_round", 4),
        ("on_end", 4),
    ]
    assert [row["loss"] for row in watched.history] == [row["loss"] for row in plain.history]
    one, other = final_models(tmp_path / "plain"), final_models(tmp_path / "watched")
    assert all(torch.equal(one[name], other[name]) for name in one | other)


def test_the_view_shows_states_models_and_metrics(tmp_path: Path) -> None:
    views: list[TrainingView] = []

    class Look:
        def on_end(self, view: TrainingView) -> None:
            views.append(view)

    result = ff.run(SMALL, out=tmp_path, callbacks=[Look()])
    (view,) = views
    assert (view.result, view.folder, view.experiment) == (result, tmp_path, SMALL)
    assert [row["seed"] for row in view.metrics] == [0, 1]
    assert len(view.history) == 8
    flat = torch.cat([p.reshape(-1) for p in view.models[1].parameters()])
    assert torch.equal(flat.detach(), view.servers[1].params)
    assert torch.equal(view.server.params, view.servers[0].params)
    with pytest.raises(AttributeError):
        view.round = 7  # type: ignore[misc]


def test_stop_leaves_a_complete_run(tmp_path: Path) -> None:
    class StopInRound2:
        def on_round(self, view: TrainingView) -> Stop | None:
            return ff.STOP.because("that is enough") if view.round == 2 else None

    result = ff.run(replace(SMALL, eval_every=4), out=tmp_path, callbacks=[StopInRound2()])
    assert (result.rounds, result.stopped) == (2, "StopInRound2: that is enough")
    assert [row["round"] for row in result.history] == [2, 2], "the last round is evaluated"
    stored = read_stored_run(tmp_path)
    assert stored.result == result
    assert ff.load_model(tmp_path, seed=1)


def test_stop_without_a_reason_names_the_moment() -> None:
    class Never:
        def on_start(self, view: TrainingView) -> Stop:
            return ff.STOP

    result = ff.run(SMALL, callbacks=[Never()])
    assert (result.rounds, result.stopped) == (0, "Never: in on_start of round 0")


def test_an_exception_is_one_line_and_the_round_is_saved(tmp_path: Path) -> None:
    ended: list[Any] = []

    class Breaks:
        def on_round(self, view: TrainingView) -> None:
            if view.round == 3:
                raise ZeroDivisionError("no clients\nin two lines")

        def on_end(self, view: TrainingView) -> None:
            ended.append(view.result)

    with pytest.raises(
        CallbackError, match=r"^callback Breaks.on_round, round 3: ZeroDivisionError: no clients"
    ) as error:
        ff.run(SMALL, out=tmp_path, callbacks=[Breaks()])
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert ended == [None]
    rounds: list[int] = []
    result = ff.run(SMALL, out=tmp_path, resume=True, watch=lambda round, rows: rounds.append(round))
    assert rounds == [4], "round 3 was saved"
    assert [row["loss"] for row in result.history] == [row["loss"] for row in ff.run(SMALL).history]


def test_an_exception_at_the_end_leaves_a_complete_run(tmp_path: Path) -> None:
    class Breaks:
        def on_end(self, view: TrainingView) -> None:
            raise OSError("disk")

    with pytest.raises(CallbackError, match=r"callback Breaks.on_end, round 4: OSError: disk"):
        ff.run(SMALL, out=tmp_path, callbacks=[Breaks()])
    assert read_stored_run(tmp_path).result


@pytest.mark.parametrize(
    ("callback", "problem"),
    [
        (ff.EarlyStopping, "EarlyStopping is a class; give an object, EarlyStopping"),
        (object(), "object has no method that is called; a callback has any of on_start"),
        (
            type("Typo", (), {"on_rounds": lambda self, view: None})(),
            r"unknown method on_rounds \(did you mean on_round\?\)",
        ),
    ],
)
def test_what_is_no_callback_is_refused_before_training(callback: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ff.UserError, match=problem):
        ff.run(SMALL, out=tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()


def test_one_callback_is_given_in_a_list() -> None:
    with pytest.raises(ff.UserError, match=r"callbacks: must be a list: \[EarlyStopping\(...\)\]"):
        ff.run(SMALL, callbacks=ff.EarlyStopping())  # type: ignore[arg-type]


def test_another_return_value_is_refused() -> None:
    class Wrong:
        def on_round(self, view: TrainingView) -> bool:
            return True

    with pytest.raises(CallbackError, match=r"round 1: TypeError: must return fedflat.STOP or nothing, returned True"):
        ff.run(SMALL, callbacks=[Wrong()])


def test_what_is_no_experiment_is_refused() -> None:
    for given in (ff.FedSOL(), {"rounds": 3}):
        with pytest.raises(ff.UserError, match=r"experiment=.*: must be a fedflat\.Experiment, such as"):
            ff.run(given)  # type: ignore[arg-type]
        with pytest.raises(ff.UserError, match=r"must be a fedflat\.Experiment"), ff.Federation(given):  # type: ignore[arg-type]
            pass


def rows(*values: float | None, key: str = "loss") -> list[dict[str, Any]]:
    return [{"round": n, "seed": 0, "accuracy": 0.5, "loss": 1.0, key: value} for n, value in enumerate(values, 1)]


class View:
    """The part of a view that stopping looks at."""

    def __init__(self, history: list[dict[str, Any]]) -> None:
        self.history, self.experiment, self.main_metric = history, replace(SMALL, seeds=(0,)), ACCURACY


@pytest.mark.parametrize(
    ("values", "stops"),
    [((3.0, 2.0, 1.0), False), ((1.0, 2.0, 1.0), True), ((1.0, 2.0, 0.95), True), ((1.0, None, 0.5), False)],
)
def test_early_stopping_waits_for_a_better_value(values: tuple[float | None, ...], stops: bool) -> None:
    stopping = ff.EarlyStopping(patience=2, metric="loss", min_delta=0.1)
    assert bool(stopping.on_evaluation(View(rows(*values)))) == stops  # type: ignore[arg-type]


def test_early_stopping_survives_a_break(tmp_path: Path) -> None:
    class Breaks:
        def on_round(self, view: TrainingView) -> None:
            if view.round == 2:
                raise RuntimeError

    patient = ff.EarlyStopping(patience=2, min_delta=1.0)
    with pytest.raises(CallbackError):
        ff.run(replace(SMALL, rounds=9), out=tmp_path, callbacks=[patient, Breaks()])
    result = ff.run(replace(SMALL, rounds=9), out=tmp_path, resume=True, callbacks=[patient])
    assert (result.rounds, result.stopped) == (3, "EarlyStopping: no higher accuracy in 2 evaluations")


def test_stop_at_accuracy_waits_for_every_seed() -> None:
    view = View(rows(0.5, 0.8, 0.7, key="accuracy"))
    assert ff.StopAtAccuracy(0.8).on_evaluation(view) == Stop("accuracy 0.8")  # type: ignore[arg-type]
    view.experiment = replace(SMALL, seeds=(0, 1))
    assert ff.StopAtAccuracy(0.8).on_evaluation(view) is None  # type: ignore[arg-type]
    with pytest.raises(ff.UserError, match=r"^stop_at_accuracy=80.*: must be between 0 and 1: the metric is accuracy"):
        ff.run(SMALL, callbacks=[ff.StopAtAccuracy(80)])


def test_csv_file_holds_all_rows_and_probes_after_a_break(tmp_path: Path) -> None:
    experiment = replace(SMALL, probes=("norm",), probe_every=2)

    class Breaks:
        def on_round(self, view: TrainingView) -> None:
            if view.round == 3:
                raise RuntimeError

    with pytest.raises(CallbackError):
        ff.run(experiment, out=tmp_path, callbacks=[ff.CSVLogger(), Breaks()])
    result = ff.run(experiment, out=tmp_path, resume=True, callbacks=[ff.CSVLogger()])
    with (tmp_path / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(int(row["round"]), float(row["loss"])) for row in table] == [
        (r["round"], r["loss"]) for r in result.history
    ]
    assert [bool(row["norm.model"]) for row in table] == [False, False, True, True] * 2
    with pytest.raises(CallbackError, match="the run has no folder; give a path"):
        ff.run(SMALL, callbacks=[ff.CSVLogger()])
