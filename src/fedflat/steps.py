"""Pieces of local training that several methods share."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedflat.method import Local
from fedflat.task import Batch, Task
from fedflat.vectors import unit

Steps = Literal["plain", "momentum"]


def sam_grad(task: Task, w: Tensor, batch: Batch, rho: float | Tensor) -> Tensor:
    """∇f(w + ρ ∇f(w) / ‖∇f(w)‖), both gradients on the same batch; the number 0 for ρ costs one gradient only."""
    g = task.grad(w, batch)
    if isinstance(rho, float | int) and not rho:
        return g
    return task.grad(w + rho * unit(g), batch)


def warmed_up(rho: float, round: Tensor, rounds: int) -> Tensor:
    """ρ(t) = 0.001 + (ρ − 0.001) t / T_s until round T_s, ρ from then on, and always where T_s or ρ is 0 (FedGloSS)."""
    if not rounds or not rho:
        return torch.full_like(round, rho)
    return 0.001 + (rho - 0.001) * (round / rounds).clamp(max=1)


def effective_steps(local: Local) -> Tensor:
    """a = (K − m (1 − m^K) / (1 − m)) / (1 − m): with momentum m, K steps along g move w by a·η·g (K where m = 0)."""
    m, steps = local.momentum, local.steps
    return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


def mean_direction(delta: Tensor, local: Local, steps: Steps) -> Tensor:
    """−(w_k − w) / (K η), the direction of the client's average step; K as it is or corrected for momentum."""
    return -delta / (local.lr * (effective_steps(local) if steps == "momentum" else local.steps))
