"""The order of a sweep's points, its progress, and folders that are in use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import tiny_experiment

import fedflat as ff

RATES = [1e-6, 0.1, 0.3]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[ff.SweepPoint], list[int]]:
    """A sweep of three learning rates, and the progress that it told."""
    out, told = tmp_path_factory.mktemp("sweep"), []
    experiment = tiny_experiment(validation=0.25, rounds=2)
    points = ff.sweep(experiment, {"lr": RATES}, out, at_once=2, watch=lambda rounds, rows: told.append(rounds))
    return out, points, told


def test_the_best_comes_first(swept: tuple[Path, list[ff.SweepPoint], list[int]]) -> None:
    scores = [point.score for point in swept[1]]
    assert len(set(scores)) > 1, "the points have to differ"
    assert scores == sorted(scores, reverse=True)
    stored = json.loads((swept[0] / "sweep.json").read_text())
    assert [point["validation_accuracy"] for point in stored] == scores


def test_a_point_with_a_diverged_seed_is_worse_than_any_other(
    swept: tuple[Path, list[ff.SweepPoint], list[int]],
) -> None:
    best = swept[1][0]
    assert best.score == best.result.final
    assert best._replace(result=replace(best.result, diverged_seeds=[0])).score < 0


def test_points_are_compared_by_their_last_round(tmp_path: Path) -> None:
    """Not by the last tenth, which is two of eleven rounds."""
    experiment = tiny_experiment(validation=0.25, rounds=11, seeds=(0, 1), lr=0.02)
    result = ff.sweep(experiment, {"momentum": [0.0]}, tmp_path / "sweep")[0].result
    (stored,) = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert (stored["validation_accuracy"], stored["std"]) == (result.final, result.final_std)
    assert (result.last10, result.last10_std) != (result.final, result.final_std)


def test_progress_counts_the_rounds_of_all_points(swept: tuple[Path, list[ff.SweepPoint], list[int]]) -> None:
    """Of three points with two rounds each, two are trained side by side, then the third."""
    assert swept[2] == [2, 4, 5, 6]


def test_folders_in_use_are_refused_unless_the_sweep_is_continued(
    swept: tuple[Path, list[ff.SweepPoint], list[int]],
) -> None:
    out, points, _ = swept
    experiment = tiny_experiment(validation=0.25, rounds=2)
    with pytest.raises(ff.UserError, match="already holds"):
        ff.sweep(experiment, {"lr": RATES}, out)
    told: list[int] = []
    again = ff.sweep(experiment, {"lr": RATES}, out, resume=True, watch=lambda rounds, rows: told.append(rounds))
    assert told == [], "nothing is trained again"
    assert [point.values for point in again] == [point.values for point in points]


def test_numbers_of_numpy_are_values_as_those_of_python(tmp_path: Path) -> None:
    experiment = tiny_experiment(validation=0.25, rounds=1)
    points = ff.sweep(experiment, {"lr": np.array([0.1, 0.3]), "batch_size": [np.int64(3)]}, tmp_path / "sweep")
    assert {point.folder.name for point in points if point.folder} == {"lr=0.1,batch_size=3", "lr=0.3,batch_size=3"}
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text())[0]["options"] == points[0].values
    found = ff.tune(experiment, {"lr": np.array([0.1, 0.3])}, tmp_path / "tune", ff.SearchOptions(trials=2))
    assert json.loads((tmp_path / "tune" / "tune.json").read_text())["best"] == found.trials[0].values


def test_at_least_one_point_is_trained_at_once() -> None:
    with pytest.raises(ff.UserError, match="at_once=0: must be between 1 and"):
        ff.sweep(tiny_experiment(validation=0.25), {"lr": RATES}, at_once=0)


class Recorder:
    """Writes down the rounds that it sees, and stops or fails in one of them."""

    def __init__(self, seen: list[tuple[str, int]], stop: int = 0, fail: int = 0) -> None:
        self.seen, self.stop, self.fail = seen, stop, fail

    def on_round(self, view: ff.TrainingView) -> ff.Stop | None:
        self.seen.append(("round", view.round))
        if view.round == self.fail:
            raise ValueError("broken")
        return ff.STOP.because("enough") if view.round == self.stop else None

    def on_end(self, view: ff.TrainingView) -> None:
        self.seen.append(("end", 0 if view.result is None else view.result.rounds))


def test_every_point_has_its_own_callbacks_and_stops_alone(
    swept: tuple[Path, list[ff.SweepPoint], list[int]], tmp_path: Path
) -> None:
    seen: dict[float, list[tuple[str, int]]] = {lr: [] for lr in RATES}
    points = ff.sweep(
        tiny_experiment(validation=0.25, rounds=2),
        {"lr": RATES},
        tmp_path,
        callbacks=lambda options: [Recorder(seen[options["lr"]], stop=1 if options["lr"] == 0.1 else 0)],
    )
    whole = [("round", 1), ("round", 2), ("end", 2)]
    assert seen == {1e-6: whole, 0.1: [("round", 1), ("end", 1)], 0.3: whole}
    found = {point.values["lr"]: point.result for point in points}
    assert (found[0.1].rounds, found[0.1].stopped) == (1, "Recorder: enough")
    assert json.loads((tmp_path / "lr=0.1" / "result.json").read_text())["stopped"] == "Recorder: enough"
    for point in swept[1]:
        if point.values["lr"] != 0.1:
            assert found[point.values["lr"]].final_per_seed == pytest.approx(point.result.final_per_seed)
    again = ff.sweep(tiny_experiment(validation=0.25, rounds=2), {"lr": RATES}, tmp_path, resume=True)
    assert {point.result.rounds for point in again if point.values["lr"] == 0.1} == {1}, "a stopped point is complete"


def test_a_failing_callback_ends_the_sweep_and_the_points_are_saved(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    experiment = tiny_experiment(validation=0.25, rounds=2)
    with pytest.raises(ff.UserError, match=r"Recorder\.on_round, round 1"):
        ff.sweep(
            experiment,
            {"lr": RATES[1:]},
            tmp_path,
            callbacks=lambda options: [Recorder(seen, fail=options["lr"] > 0.2)],
        )
    assert seen == [("round", 1), ("round", 1), ("end", 0), ("end", 0)]
    told: list[int] = []
    ff.sweep(experiment, {"lr": RATES[1:]}, tmp_path, resume=True, watch=lambda rounds, rows: told.append(rounds))
    assert told == [4], "both go on after their first round"


def test_callbacks_of_a_sweep_are_a_function() -> None:
    experiment = tiny_experiment(validation=0.25, rounds=2)
    with pytest.raises(ff.UserError, match="give a function that returns the callbacks of each"):
        ff.sweep(experiment, {"lr": RATES}, callbacks=[ff.EarlyStopping()])  # type: ignore[arg-type]
    with pytest.raises(ff.UserError, match="has no method that is called"):
        ff.sweep(experiment, {"lr": RATES}, callbacks=lambda options: [object()])
