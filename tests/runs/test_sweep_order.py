"""The order of a sweep's points, its progress, and folders that are in use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

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
