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
    """The loss on a plane: loss[i, j] = F(w + x[j] · d1 + y[i] · d2), with x [n], y [n] and loss [n, n]."""

    x: Tensor
    y: Tensor
    loss: Tensor


def random_directions(task: Task, models: Sequence[Tensor], seed: int = 0, count: int = 2) -> Tensor:
    """Return filter-normalised Gaussian directions [count, P] (Li et al., 2018).

    d_f ← d_f / ‖d_f‖ · mean_m ‖w_m,f‖ for every filter f, which is what feeds one output unit or channel; biases and
    other vectors get 0. Li et al. have one model m. The mean over several gives directions that they share, so that
    their surfaces can be compared.

    Args:
        task: the model that says which parameters make a filter.
        models: the parameters [P] of every model that will be drawn along these directions.
        seed: seed of the Gaussian noise.
        count: the number of directions.
    """
    drawn = (gaussian_noise(models[0], seed, "landscape", axis) for axis in range(count))
    return torch.stack([_filter_normalised(task, models, direction) for direction in drawn])


def _filter_normalised(task: Task, models: Sequence[Tensor], direction: Tensor) -> Tensor:
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
    """Return F(w + x d1 + y d2) on a square grid of points × points (FedSOL, Fig. 7; FedGloSS, Fig. 1, 2, 5, 6).

    Args:
        task: the model and its loss.
        w: the parameters in the middle of the square, [P].
        directions: d1 and d2, [2, P], from `random_directions` or two eigenvectors.
        extent: x and y go from −extent to extent, in lengths of the directions.
        points: grid points on each axis.
        data: the samples of F.
    """
    axis = torch.linspace(-extent, extent, points, dtype=torch.float64)
    return loss_on_plane(task, w, directions, axis, axis, data, "landscape")


def loss_on_plane(
    task: Task, w: Tensor, directions: Tensor, x: Tensor, y: Tensor, data: Objective, label: str = ""
) -> LossSurface:
    """Return F(w + x[j] d1 + y[i] d2) for all i and j.

    Args:
        task: the model and its loss.
        w: the parameters at x = y = 0, [P].
        directions: d1 and d2, [2, P].
        x: places along d1, [n].
        y: places along d2, [m].
        data: the samples of F.
        label: what the progress bar says after the label of `data`.
    """
    second, first = torch.meshgrid(y, x, indexing="ij")
    coordinates = torch.stack([first.flatten(), second.flatten()], 1)
    loss = losses_in_plane(task, w, directions, coordinates, data, label)
    return LossSurface(x, y, loss.view(len(y), len(x)))


class LossLine(NamedTuple):
    """The loss on a line: positions `at` [n] and the `loss` [n] there."""

    at: Tensor
    loss: Tensor


def loss_along(task: Task, w: Tensor, direction: Tensor, extent: float, points: int, data: Objective) -> LossLine:
    """Return F(w + r · direction) for r from −extent to extent (FedGF, Fig. 5).

    Args:
        task: the model and its loss.
        w: the parameters at r = 0, [P].
        direction: the direction of the line, [P].
        extent: the largest r, in lengths of `direction`.
        points: the number of points on the line.
        data: the samples of F.
    """
    at = torch.linspace(-extent, extent, points, dtype=torch.float64)
    return LossLine(at, losses_in_plane(task, w, direction[None], at[:, None], data, "path"))


def loss_between(task: Task, a: Tensor, b: Tensor, per_unit: int, data: Objective) -> LossLine:
    """Return F(γ a + (1 − γ) b) for γ from −1 to 2 (FedGloSS, eq. 8 and Fig. 9).

    Args:
        task: the model and its loss.
        a: the parameters at γ = 1, [P].
        b: the parameters at γ = 0, [P].
        per_unit: γ moves in steps of 1 / per_unit.
        data: the samples of F.
    """
    at = torch.arange(-per_unit, 2 * per_unit + 1, dtype=torch.float64) / per_unit
    return LossLine(at, losses_in_plane(task, b, (a - b)[None], at[:, None], data, "barrier"))


def loss_barrier(line: LossLine) -> float:
    """Return the barrier between two models, max over γ in [0, 1] of F(γ) − [γ F(1) + (1 − γ) F(0)].

    It is 0 if the loss on the straight line between the models never rises above the chord.

    Args:
        line: the loss from `loss_between`.
    """
    inside = (line.at >= 0) & (line.at <= 1)
    gamma, loss = line.at[inside], line.loss.double().cpu()[inside]
    return float((loss - gamma * loss[-1] - (1 - gamma) * loss[0]).max())
