"""Sharpness: low-pass filter, highest loss within a radius, flatness discrepancy, λ1 of local models."""

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
    """The low-pass filtered loss, from `low_pass_loss`.

    Args:
        loss: F(w).
        value: the mean of F(w + τ) over the draws of τ.
        error: the standard error of that mean; not a number if there is only one pair.
        pairs: the mean of F(w + τ) and F(w − τ) for every pair of draws, [draws / 2].
    """

    loss: float
    value: float
    error: float
    pairs: Tensor


def low_pass_loss(
    task: Task, w: Tensor, data: Objective, sigma: float = 0.01, draws: int = 100, seed: int = 0
) -> LowPassLoss:
    """Return the low-pass filter measure (F * N(0, σ²I))(w) = E F(w + τ), τ ~ N(0, σ²I) (Bisla et al., 2022).

    FedGF, Table 2, reports it. The draws come in pairs ±τ, so that the contribution of the gradient cancels: on a
    quadratic only ½ τᵀHτ varies, and the mean is F(w) + ½ σ² tr H.

    Args:
        task: the model and its loss.
        w: the parameters, [P].
        data: the samples of F.
        sigma: the standard deviation σ of the noise in each parameter.
        draws: the number of noise vectors, an even number.
        seed: seed of the noise.
    """
    count = max(1, draws // 2)
    values = []
    pairs_per_pass = max(1, data.models_per_pass() // 2)
    for numbers in with_bar(torch.arange(count).split(pairs_per_pass), f"{data.label} low-pass filter"):
        noise = torch.stack([sigma * gaussian_noise(w, seed, "low pass", n) for n in numbers.tolist()])
        values.append(losses_at(task, torch.cat([w + noise, w - noise]), data).view(2, -1).mean(0))
    pairs = torch.cat(values).double().cpu()
    error = float(pairs.std()) / math.sqrt(count) if count > 1 else math.nan
    return LowPassLoss(float(mean_loss(task, w, data)), float(pairs.mean()), error, pairs)


class WorstCaseSharpness(NamedTuple):
    """How far the loss rises within a radius ρ, from `worst_case_sharpness`.

    Args:
        loss: F(w).
        gradient: ∇F(w), [P].
        one_step: F(w + ρ unit(∇F(w))) − F(w), the rise at SAM's point; 0 if it is negative.
        rise: the largest rise found.
    """

    loss: Tensor
    gradient: Tensor
    one_step: Tensor
    rise: Tensor


def worst_case_sharpness(
    task: Task, w: Tensor, data: Objective, rho: float, steps: int = 20, seed: int = 0
) -> WorstCaseSharpness:
    """Return max F(w + δ) − F(w) over ‖δ‖ ≤ ρ, the sharpness that SAM minimises (Foret et al., 2021).

    The search repeats δ ← ρ unit(∇F(w + δ)) from δ = 0 and keeps the highest loss. Its first step is SAM's. If
    ∇F(w) = 0 it starts in a random direction instead, and `one_step` is 0. If F is convex every step climbs, and fixed
    points satisfy the optimality conditions; in general the result is a lower bound of the maximum.

    Args:
        task: the model and its loss.
        w: the parameters, [P].
        data: the samples of F.
        rho: the radius ρ.
        steps: steps of the search, one gradient each.
        seed: seed of the random direction.
    """
    start, gradient = loss_and_gradient(task, w, data)
    level = not unit(gradient).any()
    rises, direction = [torch.zeros_like(start)], gaussian_noise(w, seed, "ascent", 0) if level else gradient
    for _ in range(steps):
        value, direction = loss_and_gradient(task, w + rho * unit(direction), data)
        rises.append(value - start)
    one_step = rises[0 if level else min(1, steps)].clamp(min=0)
    return WorstCaseSharpness(start, gradient, one_step, torch.stack(rises).max())


class FlatnessDiscrepancy(NamedTuple):
    """Δ_F, its two parts, its first-order form, and the terms of its bound, from `flatness_discrepancy`."""

    value: float
    one_step: float  # Δ_F with SAM's single step for both maxima
    first_order: float  # ρ |‖∇F(w)‖ − Σ p_i ‖∇F_i(w_i)‖|, which is Δ_F up to O(ρ²)
    global_rise: float  # max F(w + δ) − F(w)
    local_rises: list[float]  # max F_i(w_i + δ_i) − F_i(w_i) of every client
    distances: list[float]  # ‖w − w_i‖ of every client
    sigma_g: float  # max_i ‖∇F_i(w) − ∇F(w)‖, the least that Assumption 2 allows
    smoothness: float  # max_i ‖∇F_i(w) − ∇F_i(w_i)‖ / ‖w − w_i‖, the least L that Assumption 1 allows
    bound: float  # ρ σ_g + L ρ Σ p_i ‖w − w_i‖
    printed_bound: float  # the same with σ_g², as equation (19) has it


def flatness_discrepancy(
    task: Task,
    w: Tensor,
    local_models: Tensor,
    local_data: Sequence[Objective],
    sizes: Sequence[float],
    rho: float = 0.1,
    steps: int = 20,
    seed: int = 0,
) -> FlatnessDiscrepancy:
    """Return the flatness discrepancy between the global and the local models (FedGF, Definition 1 and Theorem 2).

    Δ_F = | max F(w + δ) − F(w) − Σ p_i [max F_i(w_i + δ_i) − F_i(w_i)] | over ‖δ‖, ‖δ_i‖ ≤ ρ, where
    p_i = sizes_i / Σ sizes and F = Σ p_i F_i. The maxima are those of `worst_case_sharpness`.

    Args:
        task: the model and its loss.
        w: the parameters of the global model, [P].
        local_models: the parameters w_i of the clients' models, [clients, P].
        local_data: the samples of every client's loss F_i.
        sizes: the clients' weights, usually their numbers of samples.
        rho: the radius ρ.
        steps: steps of every search for a maximum.
        seed: seed of the searches.
    """
    label = f"{local_data[0].label} discrepancy"
    at_global = worst_case_sharpness(task, w, join_objectives(local_data, sizes, label), rho, steps, seed)
    pairs = with_bar(list(zip(local_models, local_data, strict=True)), label)
    at_local = [worst_case_sharpness(task, w_i, data, rho, steps, seed) for w_i, data in pairs]
    gradients = torch.stack([loss_and_gradient(task, w, data)[1] for data in local_data])
    p = torch.tensor(sizes).to(w) / sum(sizes)
    return _discrepancy_and_bound(p, norm(local_models - w), at_global, at_local, gradients, rho)


def _discrepancy_and_bound(
    p: Tensor,
    distances: Tensor,
    at_global: WorstCaseSharpness,
    at_local: list[WorstCaseSharpness],
    gradients: Tensor,
    rho: float,
) -> FlatnessDiscrepancy:
    """Compute Δ_F and its bound from ‖w − w_i‖, the sharpness at w and at every w_i, and ∇F_i(w) [clients, P]."""
    rises, one_step, slopes = (
        torch.stack(values) for values in zip(*((s.rise, s.one_step, norm(s.gradient)) for s in at_local), strict=True)
    )
    sigma = norm(gradients - at_global.gradient).max()
    change = norm(gradients - torch.stack([s.gradient for s in at_local]))
    smoothness = torch.where(distances > 0, change / distances, 0.0).max()
    drift = smoothness * rho * (p @ distances)
    return FlatnessDiscrepancy(
        value=float(abs(at_global.rise - p @ rises)),
        one_step=float(abs(at_global.one_step - p @ one_step)),
        first_order=float(rho * abs(norm(at_global.gradient) - p @ slopes)),
        global_rise=float(at_global.rise),
        local_rises=rises.tolist(),
        distances=distances.tolist(),
        sigma_g=float(sigma),
        smoothness=float(smoothness),
        bound=float(rho * sigma + drift),
        printed_bound=float(rho * sigma**2 + drift),
    )


class LocalGlobalCurvature(NamedTuple):
    """λ1 of one client's model on its own data (`own`, λ_{1,l}) and on all data (`all`, λ_{1,g})."""

    own: float
    all: float


def local_and_global_curvature(
    task: Task, local_models: Tensor, local_data: Sequence[Objective], all_data: Objective, seed: int = 0
) -> list[LocalGlobalCurvature]:
    """Return λ1 of the Hessian of every client's model, on its own data and on all data (FedGloSS, Table 1).

    Args:
        task: the model and its loss.
        local_models: the parameters of the clients' models, [clients, P].
        local_data: the samples of every client.
        all_data: the samples of all clients together.
        seed: seed of the Lanczos start vectors.
    """

    def lambda1(w: Tensor, data: Objective) -> float:
        return float(largest_eigenpairs(Hessian(task, w, data), 1, seed=seed).values[0])

    pairs = zip(local_models, local_data, strict=True)
    return [LocalGlobalCurvature(lambda1(w_i, data), lambda1(w_i, all_data)) for w_i, data in pairs]
