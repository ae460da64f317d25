"""The loss on planes and lines through models (FedSOL, Fig. 7; FedGF, Fig. 5; FedGloSS, Fig. 1, 2, 5, 6, 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.task import Task
from fedflat.core.vectors import norm
from fedflat.flatness.data import Data, losses_in_plane
from fedflat.flatness.noise import gaussian


class Surface(NamedTuple):
    """loss[i, j] at w + x[j] · d1 + y[i] · d2."""

    x: Tensor
    y: Tensor
    loss: Tensor


def random_directions(task: Task, models: Sequence[Tensor], seed: int = 0, count: int = 2) -> Tensor:
    """Gaussian directions [count, P], every filter as long as the models' filter is on average.

    d_f ← d_f / ‖d_f‖ · mean_m ‖w_m,f‖ (Li et al., 2018, for one model), where a filter f is what feeds one output unit
    or channel; biases and other vectors do not move. Models drawn along the same directions can be compared.
    """
    drawn = (gaussian(models[0], seed, "landscape", axis) for axis in range(count))
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


def surface(task: Task, w: Tensor, directions: Tensor, extent: float, points: int, data: Data) -> Surface:
    """F on a square grid of points × points around w, each axis from −extent to extent."""
    axis = torch.linspace(-extent, extent, points, dtype=torch.float64)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    coordinates = torch.stack([x.flatten(), y.flatten()], 1)
    loss = losses_in_plane(task, w, directions, coordinates, data, "landscape")
    return Surface(axis, axis, loss.view(points, points))
