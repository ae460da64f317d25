"""Robust averages: known answers from numpy and scipy, what one liar can do, and equal engines."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

import fedflat as ff
from fedflat.engine.aggregation import Aggregation, ClipBound, krum_choice, parse_aggregation, reply_norms
from fedflat.methods import fednova
from fedflat.methods.shared import ControlReply
from fedflat.runs.build import build_run

sys.path.append(str(Path(__file__).parents[1] / "distributed"))

import every_method as worker

finite = st.floats(-1e6, 1e6, width=64)
matrices = st.integers(3, 9).flatmap(lambda n: arrays(np.float64, (n, 4), elements=finite))
robust = [Aggregation(rule="median"), Aggregation(rule="trimmed", share=0.34), Aggregation(rule="krum", attackers=0)]


def replies_of(rows: np.ndarray) -> ControlReply:
    """Return stacked replies with two tensors."""
    return ControlReply(torch.from_numpy(rows[:, :3].copy()), torch.from_numpy(rows[:, 3:].copy()))


def average(aggregation: Aggregation, rows: np.ndarray) -> np.ndarray:
    return torch.cat(aggregation.average(replies_of(rows), torch.ones(len(rows), dtype=torch.float64))[1]).numpy()


@settings(max_examples=50, deadline=None)
@given(matrices)
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(rows: np.ndarray) -> None:
    np.testing.assert_allclose(average(Aggregation(rule="median"), rows), np.median(rows, 0), rtol=1e-12, atol=1e-9)
    trimmed = average(Aggregation(rule="trimmed", share=0.34), rows)
    np.testing.assert_allclose(trimmed, trim_mean(rows, 0.34), rtol=1e-9, atol=1e-9)


def krum_by_hand(rows: np.ndarray, attackers: int) -> int:
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        scores.append(sum(distances[: len(rows) - attackers - 2]))
    return int(np.argmin(scores))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_krum_is_the_reply_closest_to_its_neighbours(attackers: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(2 * attackers + 4, 5))
    assert int(krum_choice(torch.from_numpy(rows), attackers)) == krum_by_hand(rows, attackers)


@pytest.mark.parametrize("lie", [1e30, -1e30, math.inf, math.nan])
@pytest.mark.parametrize("aggregation", robust, ids=lambda a: a.rule)
def test_one_liar_cannot_leave_the_range_of_the_others(aggregation: Aggregation, lie: float) -> None:
    rows = np.random.default_rng(0).normal(size=(6, 4))
    low, high = rows[1:].min(0), rows[1:].max(0)
    rows[0] = lie
    assert (low <= average(aggregation, rows)).all()
    assert (average(aggregation, rows) <= high).all()


@settings(max_examples=50, deadline=None)
@given(matrices, st.floats(1e-3, 1e3), st.booleans())
def test_clipping_shortens_long_replies_and_leaves_others(rows: np.ndarray, value: float, of_median: bool) -> None:
    lengths = np.linalg.norm(rows, axis=1)
    bound = value * (np.median(lengths) if of_median else 1.0)
    expected = np.stack([row if n <= bound else row * bound / n for row, n in zip(rows, lengths, strict=True)])
    clipped = average(Aggregation(ClipBound(value, of_median)), rows)
    np.testing.assert_allclose(clipped, expected.mean(0), rtol=1e-9, atol=1e-9)


def test_a_reply_that_is_not_finite_counts_as_nothing_where_replies_are_clipped() -> None:
    rows = np.array([[1.0, 0, 0, 0], [np.nan, 0, 0, 0], [1.0, 0, 0, 0], [0, np.inf, 0, 0]])
    for clip in (ClipBound(5.0, False), ClipBound(2.0, True)):  # the median norm is infinite
        np.testing.assert_array_equal(average(Aggregation(clip), rows), [0.5, 0, 0, 0])


def test_parts_of_a_cohort_suffice_for_means_alone() -> None:
    """Ranks exchange sums if they do: the median norm of a part is not that of the cohort."""
    assert not Aggregation().needs_all_replies
    assert not Aggregation(ClipBound(1.0, of_median=False)).needs_all_replies
    assert Aggregation(ClipBound(1.0, of_median=True)).needs_all_replies
    assert Aggregation(rule="median").needs_all_replies


def test_bookkeeping_is_neither_measured_nor_scaled() -> None:
    """FedNova's number of steps would otherwise use up the bound."""
    replies = fednova.Reply(torch.eye(3).double() * 4, torch.tensor([100.0, 100.0, 400.0]).double())
    assert reply_norms(replies, ff.FedNova().bookkeeping).tolist() == [4, 4, 4]
    mean, _ = Aggregation(ClipBound(1.0, False), bookkeeping=("steps",)).average(replies, torch.ones(3).double())
    assert float(mean.steps) == pytest.approx(200)
    torch.testing.assert_close(mean.delta, torch.full((3,), 1 / 3).double())


def test_weights_count_for_the_mean_only() -> None:
    """Clients claim their numbers of examples, so a robust rule must not use them."""
    rows, weights = np.arange(20.0).reshape(5, 4) ** 2, torch.tensor([1e9, 1, 1, 1, 1]).double()
    for aggregation in [*robust, Aggregation(ClipBound(1e-3, False))]:
        mean, uniform = aggregation.average(replies_of(rows), weights)
        assert torch.equal(torch.cat(mean), torch.cat(uniform)) == (aggregation.rule != "mean")


@pytest.mark.parametrize("name", worker.ROBUST)
def test_engines_agree(name: str) -> None:
    method, how = worker.ROBUST[name]
    expected, batched, plain = (worker.train(method, e, **h) for e, h in _engines(how))
    for ours, theirs, other in zip(batched, expected, plain, strict=True):
        for key, tensor in theirs.pack().items():
            torch.testing.assert_close(ours.pack()[key], tensor, rtol=0, atol=1e-10, msg=key)
        assert not torch.allclose(other.server.params, theirs.server.params, rtol=0, atol=1e-6)


def _engines(how: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("sequential", how), ("batched", how), ("sequential", {})]


PARSED = {
    (None, "mean"): Aggregation(),
    (0.5, "mean"): Aggregation(ClipBound(0.5, False)),
    ("2x", "median"): Aggregation(ClipBound(2.0, True), "median"),
    (None, "trimmed:0.2"): Aggregation(rule="trimmed", share=0.2),
    (None, "krum:1"): Aggregation(rule="krum", attackers=1),
}


@pytest.mark.parametrize("options", PARSED, ids=str)
def test_options_are_understood(options: tuple[Any, str]) -> None:
    assert parse_aggregation(*options, ()) == PARSED[options]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "misspelled": ({"aggregate": "medain"}, 'aggregate="medain": must be mean, median, trimmed:SHARE'),
    "no share": ({"aggregate": "trimmed"}, "must be mean, median"),
    "share of nobody": ({"aggregate": "trimmed:1e-320"}, "must be mean, median"),
    "half": ({"aggregate": "trimmed:0.5"}, "must be mean, median"),
    "mean of something": ({"aggregate": "mean:2"}, "must be mean, median"),
    "half an attacker": ({"aggregate": "krum:1.5"}, "must be mean, median"),
    "cuts nothing": ({"aggregate": "trimmed:0.1"}, "needs a cohort of at least 10; cohort is 5"),
    "too many attackers": ({"aggregate": "krum:2"}, "needs a cohort of at least 7; cohort is 5"),
    "median of two": ({"aggregate": "median", "cohort": 2}, "needs a cohort of at least 3; cohort is 2"),
    "groups of three": (
        {"aggregate": "trimmed:0.25", "clients": 10, "cohort": 4, "sampling": "cyclic"},
        'needs a cohort of at least 4; the smallest with sampling="cyclic" has 3',
    ),
    "median norm of two": (
        {"clip_replies": "2x", "cohort": 2},
        'clip_replies="2x": needs a cohort of at least 3; cohort is 2',
    ),
    "no multiple": ({"clip_replies": "2y"}, 'clip_replies="2y": must be a number more than 0, or a multiple'),
    "negative": ({"clip_replies": -1.0}, "clip_replies=-1.0: must be more than 0 and finite"),
    "private and Poisson": (
        {"method": ff.Private(inner=ff.FedNova()), "sampling": "poisson"},
        'sampling="poisson": the mean of steps, which gets no noise, would tell who took part',
    ),
    "private": ({"method": ff.Private(), "aggregate": "median"}, "must be mean with dpfedavg"),
    "private, inside": ({"method": ff.ServerMomentum(inner=ff.Private()), "aggregate": "krum:1"}, "must be mean with"),
    "private and clipped": ({"method": ff.Private(), "clip_replies": 1.0}, "cannot be used with dpfedavg"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_options_that_cannot_work_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ff.UserError) as error:
        build_run(ff.Experiment(**options))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_with_the_median_resists_an_attack_that_the_mean_does_not() -> None:
    """One of five clients sends -10 times its update."""
    attacked = ff.Experiment(
        clients=5, cohort=5, partition="iid", attackers=0.2, rounds=8, local_epochs=1, model="mlp", eval_every=8
    )
    choices: list[dict[str, Any]] = [{"attackers": 0.0}, {}, {"aggregate": "median"}, {"clip_replies": "1x"}]
    honest, mean, median, clipped = (ff.run(dataclasses.replace(attacked, **c)).accuracy for c in choices)
    assert mean < honest - 0.2
    assert min(median, clipped) > honest - 0.1
