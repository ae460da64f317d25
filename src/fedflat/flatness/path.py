"""The loss along lines: away from one model (FedGF, Fig. 5) and from one model to another (FedGloSS, Fig. 9)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.task import Task
from fedflat.flatness.data import Data, losses_in_plane


class Line(NamedTuple):
    """Positions on a line and the loss there."""

    at: Tensor
    loss: Tensor


def along(task: Task, w: Tensor, direction: Tensor, extent: float, points: int, data: Data) -> Line:
    """F(w + r · direction) for r from −extent to extent."""
    at = torch.linspace(-extent, extent, points, dtype=torch.float64)
    return Line(at, losses_in_plane(task, w, direction[None], at[:, None], data, "path"))


def between(task: Task, a: Tensor, b: Tensor, per_unit: int, data: Data) -> Line:
    """F(γ a + (1 − γ) b) for γ from −1 to 2 (FedGloSS, eq. 8) in steps of 1 / per_unit: γ = 1 is a, γ = 0 is b."""
    at = torch.arange(-per_unit, 2 * per_unit + 1, dtype=torch.float64) / per_unit
    return Line(at, losses_in_plane(task, b, (a - b)[None], at[:, None], data, "barrier"))


def barrier(line: Line) -> float:
    """max over γ in [0, 1] of F(γ) − [γ F(1) + (1 − γ) F(0)]: what the straight way between two models climbs."""
    inside = (line.at >= 0) & (line.at <= 1)
    gamma, loss = line.at[inside], line.loss.double().cpu()[inside]
    return float((loss - gamma * loss[-1] - (1 - gamma) * loss[0]).max())
