"""Models that compute in 16 bits: their gradients are close to those in 32, and small ones are not rounded to 0."""

import torch
from torch import nn
from torch.func import grad, vmap

import fedflat
from fedflat.core import functional_model
from fedflat.core.batch import Batch
from fedflat.core.task import Task
from fedflat.models.layers import Classifier
from fedflat.runs.build import build_run


def problem():
    """Return a smooth model (rounding may change which pixel max-pooling takes), parameters and one batch."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh())
    torch.manual_seed(0)
    built = build_run(fedflat.Experiment(model=Classifier(body, nn.Linear(48, 10))))
    x, y = (t[:16] for t in built.client_data.test()[:2])
    return built.task.model, built.initial_params[0], Batch(x, y, torch.ones_like(y, dtype=torch.bool), None)


def error(compute, factor=1.0):
    model, w, batch = problem()
    exact, rough = (grad(lambda w, t=t: factor * _loss(t, w, batch))(w) for t in (Task(model), Task(model, compute)))
    return float((rough - exact).norm() / exact.norm())


def test_half_floats_are_more_exact_than_bfloat16():
    assert error(torch.float16) < 1e-3 < error(torch.bfloat16) < 2e-2


def test_small_gradients_survive(monkeypatch):
    assert error(torch.float16, 1e-6) < 0.02
    monkeypatch.setattr(functional_model, "GRADIENT_SCALE", 1.0)
    assert error(torch.float16, 1e-6) > 0.2


def test_lanes_have_scaled_gradients_of_their_own():
    model, w, batch = problem()
    task, few = Task(model, torch.float16), Batch(*(t.view(4, 4, *t.shape[1:]) for t in batch[:3]), None)
    together = vmap(lambda x, y, m: task.grad(w, Batch(x, y, m, None)))(*few[:3])
    alone = torch.stack([task.grad(w, Batch(*(t[i] for t in few[:3]), None)) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=1e-2, atol=1e-4)


def _loss(task, w, batch):
    return task.output_loss(task.head(w, task.features(w, batch)), batch)


def test_training_in_half_floats_learns():
    results = [fedflat.run(fedflat.Experiment(rounds=12, alpha=10.0, precision=p)) for p in ("fp32", "fp16")]
    assert abs(results[0].accuracy - results[1].accuracy) < 0.05
    assert results[1].accuracy > 0.5
