"""Losses whose Hessian is known: quadratics, and networks small enough for the dense one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, hessian

from fedflat.core.task import Batch, Task
from fedflat.flatness.objective import Objective, make_objective


class Quadratic:
    """A task with a known Hessian: the mean over samples (A | b) of ½ wᵀAw + bᵀw."""

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        a, b = batch.x[..., :-1], batch.x[..., -1]
        return (0.5 * torch.einsum("sij,i,j->s", a, w, w) + b @ w).mean()

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        return grad(self.loss)(w, batch)


class Problem(NamedTuple):
    """A loss, a point, data in unequal batches, and the Hessian and gradient there."""

    task: Any
    w: Tensor
    data: Objective
    hessian: Tensor
    gradient: Tensor
    samples: Batch


def batch_of(x: Tensor, y: Tensor | None = None) -> Batch:
    y = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    return Batch(x, y, torch.ones(len(x), dtype=torch.bool), None)


def problem(task: Any, w: Tensor, samples: Batch, size: int) -> Problem:
    dense = hessian(task.loss)(w, samples)
    return Problem(task, w, make_objective(samples, size), dense, task.grad(w, samples), samples)


def quadratic(eigenvalues: list[float], seed: int = 0, samples: int = 5, linear: float = 1.0) -> Problem:
    """Samples' matrices differ; their mean has these eigenvalues."""
    rng = np.random.default_rng(seed)
    n = len(eigenvalues)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    noise = rng.normal(size=(samples, n, n))
    noise = noise + noise.swapaxes(1, 2) - (noise + noise.swapaxes(1, 2)).mean(0)
    a = (basis * eigenvalues) @ basis.T + noise
    x = np.concatenate([a, linear * rng.normal(size=(samples, n, 1))], 2)
    return problem(Quadratic(), torch.from_numpy(rng.normal(size=n)), batch_of(torch.from_numpy(x)), size=2)


def network(model: nn.Module, shape: tuple[int, ...], samples: int = 17, seed: int = 0) -> Problem:
    """Random weights and data in float64."""
    rng = np.random.default_rng(seed)
    task = Task(model.double())
    w = torch.from_numpy(rng.normal(size=task.size)) * 0.5
    y = torch.from_numpy(rng.integers(0, 3, samples))
    return problem(task, w, batch_of(torch.from_numpy(rng.normal(size=(samples, *shape))), y), size=7)


def perceptron(seed: int = 0) -> Problem:
    return network(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,), seed=seed)


def convolutional(seed: int = 0) -> Problem:
    layers = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return network(nn.Sequential(*layers), (1, 4, 4), seed=seed)
