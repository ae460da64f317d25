"""The result of a run, computed from its rows of metrics: means, the last tenth, divergence, what a target costs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import tiny_experiment

import fedflat as ff
from fedflat.core.metric import MainMetric, common_metric
from fedflat.engine.participation import Participation
from fedflat.runs import result as results
from fedflat.runs.result import (
    clients_per_round,
    cost_to_reach,
    mean_std,
    privacy_of_simulation,
    summarise_history,
)


def rows_of(curves: dict[int, list[float]], every: int = 1) -> list[dict[str, Any]]:
    """Return rows of metrics: all seeds after each evaluated round."""
    evaluations = range(len(next(iter(curves.values()))))
    return [
        {"round": every * (n + 1), "seed": seed, "accuracy": curve[n], "loss": 1.0, "seconds": 1.0}
        for n in evaluations
        for seed, curve in curves.items()
    ]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=45))
def test_the_last_tenth_of_the_evaluations_is_rounded_up(curve: list[float]) -> None:
    """One of 1 to 10 evaluations, two of 11 to 20."""
    summary = summarise_history(rows_of({0: curve}), [0])
    count = next(k for k in range(1, 6) if 10 * k >= len(curve))
    assert summary["last10"] == pytest.approx(fmean(curve[-count:]))
    assert summary["final"] == curve[-1]


def test_numbers_per_seed_are_in_the_order_of_the_seeds() -> None:
    curves = {5: [0.1] * 10 + [0.5], 2: [0.2] * 10 + [0.9], 9: [0.3] * 11}
    summary = summarise_history(rows_of(curves), [5, 2, 9])
    assert summary["final_per_seed"] == [0.5, 0.9, 0.3]
    assert summary["last10_per_seed"] == pytest.approx([0.3, 0.55, 0.3])
    assert summary["final"] == pytest.approx(1.7 / 3)
    assert summary["final_std"] == pytest.approx(statistics.stdev([0.5, 0.9, 0.3]))
    assert summary["last10_std"] == pytest.approx(0.25 / math.sqrt(3))


def test_the_deviation_is_that_of_a_sample() -> None:
    assert mean_std([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert mean_std([0.7]) == (0.7, 0.0)


def test_a_seed_has_diverged_if_any_of_its_losses_was_not_finite() -> None:
    rows = rows_of({0: [0.1] * 3, 1: [0.1] * 3})
    assert summarise_history(rows, [0, 1])["diverged"] is False
    rows[1]["loss"] = None  # of seed 1, in the first of three rounds
    summary = summarise_history(rows, [0, 1])
    assert (summary["diverged"], summary["diverged_seeds"]) == (True, [1])


@pytest.fixture(scope="module")
def trained() -> ff.Result:
    return ff.run(tiny_experiment(seeds=(0, 1), rounds=1))


def test_rounds_to_an_accuracy(trained: ff.Result) -> None:
    rows = rows_of({0: [0.2, 0.5, 0.4, 0.9], 1: [0.1, 0.2, 0.5, 0.6]}, every=5)
    result = replace(trained, history=rows)
    assert result.rounds_to(0.5) == (10 + 15) / 2, "the first round that reaches it, also exactly"
    assert result.rounds_to(0.9) is None, "seed 1 never does"
    assert result.rounds_to(0.0) == 5
    assert result.curve(1) == [0.1, 0.2, 0.5, 0.6]


def test_rounds_to_a_metric_that_is_better_where_it_is_lower(trained: ff.Result) -> None:
    rows = [row | {"mse": 1 - row["accuracy"]} for row in rows_of({0: [0.25, 0.5, 0.75], 1: [0.5, 0.0, 0.5]})]
    result = replace(trained, history=rows, metric="mse", higher_is_better=False)
    assert result.rounds_to(0.5) == (2 + 1) / 2
    assert result.rounds_to(0.25) is None


def test_bytes_to_an_accuracy_are_those_asked_and_those_that_replied(trained: ff.Result) -> None:
    rows = rows_of({0: [0.2, 0.9], 1: [0.2, 0.9]})
    sent = {"bytes_down_per_client_round": 100, "bytes_up_per_client_round": 10, "parameters": 5, "clients": 40}
    result = replace(trained, history=rows, **sent)
    assert cost_to_reach(result, 0.1, 0.9) == (2.0, 2 * 4 * 110, 2 * 4 * 110 / 20)
    lossy = replace(result, clients_asked_per_round=5.0, clients_replied_per_round=3.0)
    assert cost_to_reach(lossy, 0.1, 0.9) == (2.0, 2 * (500 + 30), 2 * 530 / 20)
    assert cost_to_reach(result, 0.1, 0.95) is None


def test_numbers_of_clients_are_means_over_rounds_and_seeds() -> None:
    who = Participation([6] * 20, 10, dropout_rate=0.5)
    counts = clients_per_round(who, (0, 1), 8)
    assert counts["clients_asked_per_round"] == 10
    replied = [len(who.replying(seed, r)) for seed in (0, 1) for r in range(8)]
    assert counts["clients_replied_per_round"] == fmean(replied)
    assert 2 < counts["clients_replied_per_round"] < 8
    assert clients_per_round(Participation([6] * 20, 10), (0, 1), 8) == {}


def test_the_guarantee_is_that_of_the_seed_with_the_largest_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here ε is the number of rounds of the busiest client."""

    def spent(method: ff.Method, cohorts: list[list[int]], *known: Any) -> dict[str, Any]:
        counts = Counter(client for cohort in cohorts for client in cohort)
        most = max(counts.values())
        return {"epsilon": most, "epsilon_known_cohorts": most, "known": known}

    monkeypatch.setattr(results, "privacy_spent", spent)
    who, seeds = Participation([6] * 4, 1), (0, 1, 2, 3)
    each = [spent(ff.Private(), [who.replying(seed, r) for r in range(4)])["epsilon"] for seed in seeds]
    assert len(set(each)) > 1, "the seeds have to differ"
    worst = {"epsilon": max(each), "epsilon_known_cohorts": max(each), "known": (4, True, None)}
    assert privacy_of_simulation(ff.Private(), seeds, 4, who) == worst
    assert privacy_of_simulation(ff.FedAvg(), seeds, 4, who) is None
    weighted = privacy_of_simulation(ff.Private(), seeds, 4, Participation([6] * 4, 1, "weighted"))
    assert weighted is not None
    assert weighted["known"] == (4, False, None), "only a uniform draw helps"


def test_runs_with_different_metrics_have_none_in_common() -> None:
    accuracy, mse = MainMetric(), MainMetric("mse", higher_is_better=False)
    assert common_metric([mse, mse]) == mse
    assert common_metric([]) == accuracy
    assert common_metric([mse, accuracy]).name == "metric"
    assert common_metric([MainMetric("own", True), MainMetric("own", False)]).name == "metric"


def result_of(curves: dict[int, list[float]], **values: Any) -> ff.Result:
    """Return a result with these accuracies."""
    history = rows_of(curves)
    counts = {"rounds": 3, "seconds": 2.0, "client_steps_per_second": 1.0, "parameters": 10, "versions": {}}
    sent = {"bytes_down_per_client_round": 4000, "bytes_up_per_client_round": 40}
    summary = summarise_history(history, [*curves])
    return ff.Result(**{"method": "fedavg", "seeds": [*curves], **counts, **sent, **summary, **values}, history=history)


def test_a_notebook_shows_a_result_as_a_table() -> None:
    headings = ("method", "accuracy", "last 10 %", "rounds", "bytes down", "bytes up", "seconds")
    expected = "".join(f"<th>{name}</th>" for name in headings)
    one = result_of({0: [0.5, 0.25]})
    assert f"<tr>{expected}</tr><tr><td>fedavg</td><td>25.00%</td><td>25.00%</td>" in one._repr_html_()
    assert "<td>4,000</td><td>40</td><td>2.0</td>" in one._repr_html_()
    assert "<td>50.00% ± 14.14%</td>" in result_of({0: [0.4], 1: [0.6]})._repr_html_()
    assert "<td>–</td>" in result_of({0: [0.4], 1: [0.6]}, final=-math.inf, final_std=math.inf)._repr_html_()
    assert "<td>a.py:&lt;b&gt;</td>" in result_of({0: [0.4]}, method="a.py:<b>")._repr_html_()


def test_the_repr_of_a_result_leaves_out_the_history() -> None:
    assert "history" not in repr(result_of({0: [0.5] * 1000}))
