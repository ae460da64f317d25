"""Losses at many points, low-pass filter, lines and landscapes against closed forms in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from known_surfaces import batch_of, convolutional, perceptron, quadratic
from scipy.stats import kstest

from fedflat.flatness.landscape import LossLine, loss_along, loss_barrier, loss_between, loss_surface, random_directions
from fedflat.flatness.objective import (
    SAMPLES_PER_BATCH,
    VMAPPED_SAMPLES,
    gaussian_noise,
    join_objectives,
    loss_and_gradient,
    losses_at,
    losses_in_plane,
    make_objective,
    mean_loss,
    pick_samples,
    random_signs,
    uniform_noise,
)
from fedflat.flatness.sharpness import low_pass_loss


def taylor(known, offsets):
    """F(w + offsets) of a quadratic."""
    start = known.task.loss(known.w, known.samples)
    return start + offsets @ known.gradient + 0.5 * torch.einsum("gi,ij,gj->g", offsets, known.hessian, offsets)


def random(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("make", [perceptron, convolutional, lambda: quadratic([2.0, 1.0, -1.0])])
def test_losses_of_many_models_at_once(make):
    known = make()
    points = known.w + random(4, len(known.w))
    expected = torch.stack([known.task.loss(w, known.samples) for w in points])
    assert torch.allclose(losses_at(known.task, points, known.data), expected, atol=1e-12)
    assert torch.allclose(losses_at(known.task, points[:1], known.data), expected[:1], atol=1e-12)
    assert torch.allclose(mean_loss(known.task, points[2], known.data), expected[2], atol=1e-12)
    value, gradient = loss_and_gradient(known.task, known.w, known.data)
    assert torch.allclose(value, known.task.loss(known.w, known.samples), atol=1e-12)
    assert torch.allclose(gradient, known.gradient, atol=1e-12)


def test_points_of_a_plane(monkeypatch):
    known, seen = perceptron(), []
    directions, coordinates = random(2, len(known.w)), random(250, 2, seed=1)
    monkeypatch.setattr("fedflat.flatness.objective.losses_at", lambda *a: seen.append(len(a[1])) or losses_at(*a))
    found = losses_in_plane(known.task, known.w, directions, coordinates, known.data)
    assert torch.allclose(found, losses_at(known.task, known.w + coordinates @ directions, known.data), atol=1e-10)
    assert seen == [VMAPPED_SAMPLES // 7, 250 - VMAPPED_SAMPLES // 7], "a few points at a time"


def test_batches_hold_every_sample_once():
    data = make_objective(batch_of(torch.arange(2500)[:, None]))
    assert [len(batch.y) for batch in data.batches] == [SAMPLES_PER_BATCH, SAMPLES_PER_BATCH, 500]
    assert data.shares == (0.4, 0.4, 0.2)
    assert torch.cat([batch.x for batch in data.batches]).flatten().tolist() == [*range(2500)]
    assert data.models_per_pass() == 1


def test_joined_objectives_keep_their_weights():
    a, b = quadratic([1.0, 2.0]), quadratic([3.0, 4.0], seed=1)
    both = join_objectives([a.data, b.data], [30, 10])
    expected = 0.75 * a.task.loss(a.w, a.samples) + 0.25 * b.task.loss(a.w, b.samples)
    assert torch.allclose(mean_loss(a.task, a.w, both), expected)


def test_larger_batches_are_the_same_objective():
    known = quadratic([3.0, 1.0], samples=11)
    parts = [make_objective(known.samples, 2), make_objective(batch_of(known.samples.x[:5]), 2)]
    for data, batches in ((parts[0], [6, 5]), (join_objectives(parts, [1.0, 3.0]), [6, 5, 5])):
        joined = data.with_larger_batches(most=7)
        assert [len(batch.y) for batch in joined.batches] == batches
        assert sum(joined.shares) == pytest.approx(1.0)
        torch.testing.assert_close(mean_loss(known.task, known.w, joined), mean_loss(known.task, known.w, data))


def test_picked_samples_are_distinct_and_depend_on_the_seed():
    samples = batch_of(torch.arange(50)[:, None])
    one, again, other = (pick_samples(samples, 20, seed).x.flatten().tolist() for seed in (0, 0, 1))
    assert one == again != other
    assert len(set(one)) == 20
    assert pick_samples(samples, 50, 0) is samples
    assert pick_samples(samples, None, 0) is samples


def test_noise_follows_its_distribution():
    like = torch.zeros(20_000, dtype=torch.float64)
    assert kstest(gaussian_noise(like, 0, "test", 0).numpy(), "norm").pvalue > 0.01
    assert kstest(uniform_noise(like, 0, "test", 0).numpy(), "uniform").pvalue > 0.01
    assert sorted(set(random_signs(like, 0, "test", 0).tolist())) == [-1.0, 1.0]
    assert abs(float(random_signs(like, 0, "test", 0).mean())) < 4 / math.sqrt(20_000)
    draws = [
        gaussian_noise(like, seed, use, n) for seed, use, n in [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]
    ]
    correlation = np.corrcoef(torch.stack(draws).numpy()) - np.eye(4)
    assert abs(correlation).max() < 4 / math.sqrt(20_000)


def test_low_pass_is_the_mean_over_its_draws():
    known = quadratic([4.0, 2.0, 1.0, -1.0])
    found = low_pass_loss(known.task, known.w, known.data, sigma=0.3, draws=40, seed=5)
    noise = torch.stack([0.3 * gaussian_noise(known.w, 5, "low pass", n) for n in range(20)])
    pairs = (taylor(known, noise) + taylor(known, -noise)) / 2
    assert torch.allclose(found.pairs, pairs, atol=1e-12)
    assert found.value == pytest.approx(float(pairs.mean()), abs=1e-12)
    assert found.error == pytest.approx(float(pairs.std()) / math.sqrt(20))
    assert found.loss == pytest.approx(float(known.task.loss(known.w, known.samples)), abs=1e-12)


def test_low_pass_of_a_quadratic_in_closed_form():
    known = quadratic([0.5, *[0.2] * 8, -0.1])
    found = low_pass_loss(known.task, known.w, known.data, sigma=0.01, draws=30_000)
    rise = 0.5 * 0.01**2 * float(known.hessian.trace())
    assert rise == pytest.approx(1e-4)
    assert found.value == pytest.approx(float(known.task.loss(known.w, known.samples)) + rise, abs=1e-6)
    assert found.error < 5e-7


def test_loss_along_a_line():
    known, direction = quadratic([3.0, 1.0, -1.0]), random(3)
    line = loss_along(known.task, known.w, direction, 2.0, 5, known.data)
    assert line.at.tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert torch.allclose(line.loss, taylor(known, line.at[:, None] * direction), atol=1e-9)


def test_between_two_models_and_beyond():
    known = quadratic([3.0, 1.0, -1.0])
    other = known.w + random(3)
    line = loss_between(known.task, other, known.w, 4, known.data)
    assert line.at.tolist() == [g / 4 for g in range(-4, 9)]
    assert torch.allclose(line.loss, taylor(known, line.at[:, None] * (other - known.w)), atol=1e-9)
    at = {gamma: float(value) for gamma, value in zip(line.at.tolist(), line.loss, strict=True)}
    assert at[1.0] == pytest.approx(float(known.task.loss(other, known.samples)))
    assert at[0.0] == pytest.approx(float(known.task.loss(known.w, known.samples)))


def test_barrier_is_the_climb_over_the_straight_line():
    gamma = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0])
    assert loss_barrier(LossLine(gamma, torch.tensor([99.0, 1.0, 5.0, 3.0, 99.0]))) == 3.0
    assert loss_barrier(LossLine(gamma, torch.tensor([99.0, 1.0, 0.5, 3.0, 99.0]))) == 0.0
    concave = quadratic([-8.0, -8.0])
    step = random(2)
    line = loss_between(concave.task, concave.w + step, concave.w, 20, concave.data)
    assert loss_barrier(line) == pytest.approx(float(step @ step), abs=1e-9)  # −½ γ (γ − 1) stepᵀHstep at γ = ½


def test_random_directions_are_as_long_as_the_models_filters():
    known = convolutional()
    models = [known.w, 3 * known.w]
    directions = random_directions(known.task, models, seed=2)
    for direction in directions:
        parts, w = known.task.unflatten(direction), known.task.unflatten(known.w)
        for name in ("0.weight", "4.weight"):
            assert torch.allclose(parts[name].flatten(1).norm(dim=1), 2 * w[name].flatten(1).norm(dim=1))
        assert not parts["0.bias"].any()
        assert not parts["4.bias"].any()
    assert abs(float(torch.cosine_similarity(*directions, dim=0))) < 0.6
    assert torch.equal(directions, random_directions(known.task, models, seed=2))
    assert not torch.equal(directions, random_directions(known.task, models, seed=3))


def test_surface_of_a_quadratic():
    known, directions = quadratic([3.0, 1.0, -1.0]), random(2, 3)
    found = loss_surface(known.task, known.w, directions, 0.5, 3, known.data)
    assert found.x.tolist() == found.y.tolist() == [-0.5, 0.0, 0.5]
    for i, y in enumerate(found.y):
        for j, x in enumerate(found.x):
            expected = taylor(known, (x * directions[0] + y * directions[1])[None])
            assert float(found.loss[i, j]) == pytest.approx(float(expected), abs=1e-9)
