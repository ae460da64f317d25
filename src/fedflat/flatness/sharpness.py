"""Measures of sharpness: low-pass filter, worst case within a radius, flatness discrepancy, local against global λ1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.task import Task
from fedflat.core.vectors import norm, unit
from fedflat.flatness.hessian import Hessian, largest_eigenpairs
from fedflat.flatness.objective import (
    Objective,
    gaussian_noise,
    join_objectives,
    loss_and_gradient,
    losses_at,
    mean_loss,
)
from fedflat.progress import with_bar


class LowPassLoss(NamedTuple):
    """The loss F(w), its mean under noise, that mean's standard error, and the mean of every pair of opposite draws."""

    loss: float
    value: float
    error: float
    pairs: Tensor


def low_pass_loss(
    task: Task, w: Tensor, data: Objective, sigma: float = 0.01, draws: int = 100, seed: int = 0
) -> LowPassLoss:
    """(F * N(0, σ²I))(w) = E F(w + τ) with τ ~ N(0, σ²I), over `draws` draws in pairs ±τ.

    Opposite draws cancel the gradient's contribution: on a quadratic only ½ τᵀHτ varies, with mean ½ σ² tr H.
    """
    count = max(1, draws // 2)
    values = []
    for numbers in with_bar(torch.arange(count).split(max(1, data.lanes() // 2)), f"{data.label} low-pass filter"):
        noise = torch.stack([sigma * gaussian_noise(w, seed, "low pass", n) for n in numbers.tolist()])
        values.append(losses_at(task, torch.cat([w + noise, w - noise]), data).view(2, -1).mean(0))
    pairs = torch.cat(values).double().cpu()
    error = float(pairs.std()) / math.sqrt(count) if count > 1 else math.nan
    return LowPassLoss(float(mean_loss(task, w, data)), float(pairs.mean()), error, pairs)


class WorstCaseSharpness(NamedTuple):
    """F(w), ∇F(w), and how far the loss rises within ρ: at SAM's point, and at the highest point found."""

    loss: Tensor
    gradient: Tensor
    one_step: Tensor
    rise: Tensor


class FlatnessDiscrepancy(NamedTuple):
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


def worst_case_sharpness(
    task: Task, w: Tensor, data: Objective, rho: float, steps: int = 20, seed: int = 0
) -> WorstCaseSharpness:
    """max F(w + δ) − F(w) over ‖δ‖ ≤ ρ by δ ← ρ unit(∇F(w + δ)) from δ = 0, `steps` times; the highest point counts.

    The first step is SAM's; where ∇F(w) = 0 it is 0, and the search begins in a random direction instead. Where F is
    convex every step climbs, and fixed points satisfy the optimality conditions; in general the result is a lower bound
    of the maximum.
    """
    start, gradient = loss_and_gradient(task, w, data)
    level = not unit(gradient).any()
    rises, direction = [torch.zeros_like(start)], gaussian_noise(w, seed, "ascent", 0) if level else gradient
    for _ in range(steps):
        value, direction = loss_and_gradient(task, w + rho * unit(direction), data)
        rises.append(value - start)
    one_step = rises[0 if level else min(1, steps)].clamp(min=0)
    return WorstCaseSharpness(start, gradient, one_step, torch.stack(rises).max())


def flatness_discrepancy(
    task: Task,
    w: Tensor,
    ends: Tensor,
    own: Sequence[Objective],
    sizes: Sequence[float],
    rho: float = 0.1,
    steps: int = 20,
    seed: int = 0,
) -> FlatnessDiscrepancy:
    """Δ_F = | max F(w + δ) − F(w) − Σ p_i [max F_i(w_i + δ_i) − F_i(w_i)] | over ‖δ‖, ‖δ_i‖ ≤ ρ.

    `ends` [n, P] are the clients' models w_i, `own` their data, p_i = sizes_i / Σ sizes and F = Σ p_i F_i.
    """
    label = f"{own[0].label} discrepancy"
    here = worst_case_sharpness(task, w, join_objectives(own, sizes, label), rho, steps, seed)
    pairs = with_bar(list(zip(ends, own, strict=True)), label)
    there = [worst_case_sharpness(task, end, data, rho, steps, seed) for end, data in pairs]
    at_w = torch.stack([loss_and_gradient(task, w, data)[1] for data in own])
    return _compare(w, ends, torch.tensor(sizes).to(w) / sum(sizes), here, there, at_w, rho)


def _compare(
    w: Tensor,
    ends: Tensor,
    p: Tensor,
    here: WorstCaseSharpness,
    there: list[WorstCaseSharpness],
    at_w: Tensor,
    rho: float,
) -> FlatnessDiscrepancy:
    """Put the definition and the bound together."""
    rises, one_step, slopes = (
        torch.stack(values) for values in zip(*((s.rise, s.one_step, norm(s.gradient)) for s in there), strict=True)
    )
    distances = norm(ends - w)
    sigma = norm(at_w - here.gradient).max()
    change = norm(at_w - torch.stack([s.gradient for s in there]))
    smoothness = torch.where(distances > 0, change / distances, 0.0).max()
    drift = smoothness * rho * (p @ distances)
    return FlatnessDiscrepancy(
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


class LocalGlobalCurvature(NamedTuple):
    """λ1 of one client's model on its own data (λ_{1,l}) and on all data (λ_{1,g})."""

    own: float
    all: float


def local_and_global_curvature(
    task: Task, ends: Tensor, own: Sequence[Objective], everything: Objective, seed: int = 0
) -> list[LocalGlobalCurvature]:
    """λ1 of every client's model, by Lanczos, on both objectives."""
    return [
        LocalGlobalCurvature(
            *(
                float(largest_eigenpairs(Hessian(task, end, part), 1, seed=seed).values[0])
                for part in (data, everything)
            )
        )
        for end, data in zip(ends, own, strict=True)
    ]
