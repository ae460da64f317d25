"""Flatness discrepancy between the global model and the local ones (FedGF, Definition 1 and Theorem 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.task import Task
from fedflat.core.vectors import norm, unit
from fedflat.flatness.data import Data, join, loss_and_gradient
from fedflat.flatness.noise import gaussian
from fedflat.progress import with_bar


class Sharpness(NamedTuple):
    """F(w), ∇F(w), and how far the loss rises within ρ: at SAM's point, and at the highest point found."""

    loss: Tensor
    gradient: Tensor
    one_step: Tensor
    rise: Tensor


class Discrepancy(NamedTuple):
    """Δ_F, its two parts, its first-order form, and the terms of its bound."""

    value: float
    one_step: float  # Δ_F with SAM's single step for both maxima
    first_order: float  # ρ |‖∇F(w)‖ − Σ p_i ‖∇F_i(w_i)‖|
    global_rise: float
    local_rises: list[float]
    distances: list[float]  # ‖w − w_i‖
    sigma_g: float  # max_i ‖∇F_i(w) − ∇F(w)‖, the least that Assumption 2 allows
    smoothness: float  # max_i ‖∇F_i(w) − ∇F_i(w_i)‖ / ‖w − w_i‖, the least L that Assumption 1 allows
    bound: float  # ρ σ_g + L ρ Σ p_i ‖w − w_i‖
    printed_bound: float  # the same with σ_g², as equation (19) has it


def sharpness(task: Task, w: Tensor, data: Data, rho: float, steps: int = 20, seed: int = 0) -> Sharpness:
    """max F(w + δ) − F(w) over ‖δ‖ ≤ ρ by δ ← ρ unit(∇F(w + δ)) from δ = 0, `steps` times; the highest point counts.

    The first step is SAM's; where ∇F(w) = 0 it is 0, and the search begins in a random direction instead. Where F is
    convex every step climbs, and fixed points satisfy the optimality conditions; in general the result is a lower bound
    of the maximum.
    """
    start, gradient = loss_and_gradient(task, w, data)
    level = not unit(gradient).any()
    rises, direction = [torch.zeros_like(start)], gaussian(w, seed, "ascent", 0) if level else gradient
    for _ in range(steps):
        value, direction = loss_and_gradient(task, w + rho * unit(direction), data)
        rises.append(value - start)
    one_step = rises[0 if level else min(1, steps)].clamp(min=0)
    return Sharpness(start, gradient, one_step, torch.stack(rises).max())


def discrepancy(
    task: Task,
    w: Tensor,
    ends: Tensor,
    own: Sequence[Data],
    sizes: Sequence[float],
    rho: float = 0.1,
    steps: int = 20,
    seed: int = 0,
) -> Discrepancy:
    """Δ_F = | max F(w + δ) − F(w) − Σ p_i [max F_i(w_i + δ_i) − F_i(w_i)] | over ‖δ‖, ‖δ_i‖ ≤ ρ.

    `ends` [n, P] are the clients' models w_i, `own` their data, p_i = sizes_i / Σ sizes and F = Σ p_i F_i.
    """
    label = f"{own[0].label} discrepancy"
    here = sharpness(task, w, join(own, sizes, label), rho, steps, seed)
    pairs = with_bar(list(zip(ends, own, strict=True)), label)
    there = [sharpness(task, end, data, rho, steps, seed) for end, data in pairs]
    at_w = torch.stack([loss_and_gradient(task, w, data)[1] for data in own])
    return _compare(w, ends, torch.tensor(sizes).to(w) / sum(sizes), here, there, at_w, rho)


def _compare(
    w: Tensor, ends: Tensor, p: Tensor, here: Sharpness, there: list[Sharpness], at_w: Tensor, rho: float
) -> Discrepancy:
    """Put the definition and the bound together."""
    rises, one_step, slopes = (
        torch.stack(values) for values in zip(*((s.rise, s.one_step, norm(s.gradient)) for s in there), strict=True)
    )
    distances = norm(ends - w)
    sigma = norm(at_w - here.gradient).max()
    change = norm(at_w - torch.stack([s.gradient for s in there]))
    smoothness = torch.where(distances > 0, change / distances, 0.0).max()
    drift = smoothness * rho * (p @ distances)
    return Discrepancy(
        value=float(abs(here.rise - p @ rises)),
        one_step=float(abs(here.one_step - p @ one_step)),
        first_order=float(rho * abs(norm(here.gradient) - p @ slopes)),
        global_rise=float(here.rise),
        local_rises=rises.tolist(),
        distances=distances.tolist(),
        sigma_g=float(sigma),
        smoothness=float(smoothness),
        bound=float(rho * sigma + drift),
        printed_bound=float(rho * sigma**2 + drift),
    )
