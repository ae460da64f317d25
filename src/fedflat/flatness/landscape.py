"""The loss on planes and lines through models (FedSOL, Fig. 7; FedGF, Fig. 5; FedGloSS, Fig. 1, 2, 5, 6, 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.task import Task
from fedflat.core.vectors import norm
from fedflat.flatness.objective import Objective, gaussian_noise, losses_in_plane


class LossSurface(NamedTuple):
    """loss[i, j] at w + x[j] · d1 + y[i] · d2."""

    x: Tensor
    y: Tensor
    loss: Tensor


def random_directions(task: Task, models: Sequence[Tensor], seed: int = 0, count: int = 2) -> Tensor:
    """Gaussian directions [count, P], every filter as long as the models' filter is on average.

    d_f ← d_f / ‖d_f‖ · mean_m ‖w_m,f‖ (Li et al., 2018, for one model), where a filter f is what feeds one output unit
    or channel; biases and other vectors do not move. Models drawn along the same directions can be compared.
    """
    drawn = (gaussian_noise(models[0], seed, "landscape", axis) for axis in range(count))
    return torch.stack([_normalised(task, models, direction) for direction in drawn])


def _normalised(task: Task, models: Sequence[Tensor], direction: Tensor) -> Tensor:
    named = [task.unflatten(w) for w in models]
    parts = {}
    for name, d in task.unflatten(direction).items():
        if d.dim() < 2:
            parts[name] = torch.zeros_like(d)
            continue
        lengths = torch.stack([norm(model[name].flatten(1)) for model in named]).mean(0)
        scale = lengths / norm(d.flatten(1)).clamp(min=1e-12)
        parts[name] = d * scale.view(-1, *[1] * (d.dim() - 1))
    return task.flatten(parts)


def loss_surface(task: Task, w: Tensor, directions: Tensor, extent: float, points: int, data: Objective) -> LossSurface:
    """F on a square grid of points × points around w, each axis from −extent to extent."""
    axis = torch.linspace(-extent, extent, points, dtype=torch.float64)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    coordinates = torch.stack([x.flatten(), y.flatten()], 1)
    loss = losses_in_plane(task, w, directions, coordinates, data, "landscape")
    return LossSurface(axis, axis, loss.view(points, points))


class LossLine(NamedTuple):
    """Positions on a line and the loss there."""

    at: Tensor
    loss: Tensor


def loss_along(task: Task, w: Tensor, direction: Tensor, extent: float, points: int, data: Objective) -> LossLine:
    """F(w + r · direction) for r from −extent to extent."""
    at = torch.linspace(-extent, extent, points, dtype=torch.float64)
    return LossLine(at, losses_in_plane(task, w, direction[None], at[:, None], data, "path"))


def loss_between(task: Task, a: Tensor, b: Tensor, per_unit: int, data: Objective) -> LossLine:
    """F(γ a + (1 − γ) b) for γ from −1 to 2 (FedGloSS, eq. 8) in steps of 1 / per_unit: γ = 1 is a, γ = 0 is b."""
    at = torch.arange(-per_unit, 2 * per_unit + 1, dtype=torch.float64) / per_unit
    return LossLine(at, losses_in_plane(task, b, (a - b)[None], at[:, None], data, "barrier"))


def loss_barrier(line: LossLine) -> float:
    """max over γ in [0, 1] of F(γ) − [γ F(1) + (1 − γ) F(0)]: what the straight way between two models climbs."""
    inside = (line.at >= 0) & (line.at <= 1)
    gamma, loss = line.at[inside], line.loss.double().cpu()[inside]
    return float((loss - gamma * loss[-1] - (1 - gamma) * loss[0]).max())
