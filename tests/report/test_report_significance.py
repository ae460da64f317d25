"""Bold is significantly the best; ties are marked; runs of one seed and diverged runs are never bold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedflat.methods.fedsam import FedSAM
from fedflat.report.comparison import training_settings
from fedflat.report.significance import difference_p_value, mark_best
from fedflat.report.tables import judge_results, mark_results
from fedflat.runs.read import read_stored_run

A = {0: 0.80, 1: 0.82, 2: 0.84}


def shifted(values: dict[int, float], by: list[float], seeds: int = 0) -> dict[int, float]:
    return {seed + seeds: value + step for (seed, value), step in zip(values.items(), by, strict=True)}


def test_paired_over_shared_seeds_else_welch() -> None:
    paired, other = shifted(A, [-0.01, -0.011, -0.012]), shifted(A, [-0.01, -0.011, -0.012], seeds=10)
    assert difference_p_value(A, paired) == pytest.approx(stats.ttest_rel([*A.values()], [*paired.values()]).pvalue)
    welch = stats.ttest_ind([*A.values()], [*other.values()], equal_var=False).pvalue
    assert difference_p_value(A, other) == pytest.approx(welch)
    assert mark_best([A, paired]) == ["best", ""]
    assert mark_best([A, other]) == ["tied", "tied"]
    assert mark_best([A, paired], higher=False) == ["", "best"]


def test_two_shared_seeds_are_paired() -> None:
    """Welch's test, blind to the seeds, would see two equal runs."""
    assert mark_best([{0: 0.8, 1: 0.9}, {0: 0.79, 1: 0.8895, 2: 0.85}]) == ["best", ""]


@pytest.mark.parametrize(("spread", "p", "mark"), [(0.38, 0.045, "best"), (0.45, 0.061, "tied")])
def test_the_level_is_five_percent(spread: float, p: float, mark: str) -> None:
    """Differences 1, 1 + e and 1 − e have t = √3 / e, and p = 0.05 at t = 4.303 with two degrees of freedom."""
    other = shifted(A, [-0.01, -0.01 * (1 + spread), -0.01 * (1 - spread)])
    assert difference_p_value(A, other) == pytest.approx(p, abs=1e-3)
    assert mark_best([A, other])[0] == mark


def test_best_must_beat_every_other_run() -> None:
    near, far = shifted(A, [-0.02, 0.01, -0.01]), shifted(A, [-0.5, -0.51, -0.5])
    assert mark_best([near, A, far]) == ["tied", "tied", ""]
    assert mark_best([A, A]) == ["tied", "tied"]
    assert mark_best([A, {0: 0.99}, {}]) == ["", "", ""]


@given(st.lists(st.dictionaries(st.integers(0, 3), st.floats(0, 1), max_size=4), max_size=5))
def test_at_most_one_is_bold_and_it_has_the_highest_mean(values: list[dict[int, float]]) -> None:
    marks = mark_best(values)
    means = [sum(v.values()) / len(v) if len(v) > 1 else -1.0 for v in values]
    for n, mark in enumerate(marks):
        assert not mark or means[n] >= 0
        if mark == "best":
            assert means[n] == max(means)
            assert marks.count("best") == 1
            assert "tied" not in marks


def test_a_diverged_run_is_never_bold(make_run: Callable[..., Path]) -> None:
    folders = [make_run("good", [0.5, 0.6]), make_run("lost", [0.9, 0.95], lost=True, method=FedSAM())]
    runs = [read_stored_run(folder) for folder in folders]
    results = {n: run.result for n, run in enumerate(runs) if run.result}
    assert set(mark_results(judge_results(results, training_settings(runs), 0.5)).values()) == {""}


def test_fewer_rounds_to_the_target_are_better(make_run: Callable[..., Path]) -> None:
    folders = [make_run("slow", [0.1, 0.2, 0.3, 0.7]), make_run("fast", [0.7] * 4, method=FedSAM())]
    runs = [read_stored_run(folder) for folder in folders]
    results = {n: run.result for n, run in enumerate(runs) if run.result}
    column = judge_results(results, training_settings(runs), 0.5)["rounds to {target}"]
    assert column.marks() == {0: "", 1: "best"}


def test_the_last_tenth_is_judged_beside_the_last_round(make_run: Callable[..., Path]) -> None:
    """The last two of twenty rounds have the mean 0.7 in one run, which ends at 0.5, and 0.55 in the other."""
    rounds = [0.4] * 18
    folders = [make_run("high", [*rounds, 0.9, 0.5]), make_run("rising", [*rounds, 0.5, 0.6], method=FedSAM())]
    runs = [read_stored_run(folder) for folder in folders]
    results = {n: run.result for n, run in enumerate(runs) if run.result}
    judged = judge_results(results, training_settings(runs), 0.95)
    assert judged["last 10 %"].marks() == {0: "best", 1: ""}
    assert judged["{metric}"].marks() == {0: "", 1: "best"}
