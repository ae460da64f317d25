"""Pieces that several methods share: SAM's gradient, the direction of an average step, control variates.

Control variates estimate each client's gradient c_k and the mean gradient c; their difference is the client's drift:

Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit

StepCount = Literal["plain", "momentum"]


def sam_grad(task: Task, w: Tensor, batch: Batch, rho: float | Tensor) -> Tensor:
    """∇f(w + ρ ∇f(w) / ‖∇f(w)‖), both gradients on the same batch; the number 0 for ρ costs one gradient only."""
    g = task.grad(w, batch)
    if isinstance(rho, float | int) and not rho:
        return g
    return task.grad(w + rho * unit(g), batch)


def warmed_up_radius(rho: float, round: Tensor, rounds: int) -> Tensor:
    """ρ(t) = 0.001 + (ρ − 0.001) t / T_s until round T_s, ρ from then on, and always where T_s or ρ is 0 (FedGloSS)."""
    if not rounds or not rho:
        return torch.full_like(round, rho)
    return 0.001 + (rho - 0.001) * (round / rounds).clamp(max=1)


def effective_steps(local: Local) -> Tensor:
    """a = (K − m (1 − m^K) / (1 − m)) / (1 − m): with momentum m, K steps along g move w by a·η·g (K where m = 0)."""
    m, steps = local.momentum, local.steps
    return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


def mean_direction(delta: Tensor, local: Local, steps: StepCount) -> Tensor:
    """−(w_k − w) / (K η), the direction of the client's average step; K as it is or corrected for momentum."""
    return -delta / (local.lr * (effective_steps(local) if steps == "momentum" else local.steps))


class ControlServer(NamedTuple):
    params: Tensor
    c: Tensor


class ControlMessage(NamedTuple):
    params: Tensor
    c: Tensor


class ControlClient(NamedTuple):
    c: Tensor


class ControlReply(NamedTuple):
    delta: Tensor
    c: Tensor


def init_controls(params: Tensor) -> tuple[ControlServer, ControlClient]:
    """No drift known."""
    return ControlServer(params, torch.zeros_like(params)), ControlClient(torch.zeros_like(params))


def control_reply(
    w: Tensor, msg: ControlMessage, client: ControlClient, local: Local, steps: StepCount
) -> tuple[ControlReply, ControlClient]:
    """The changes of the model and of the client's control variate."""
    change = mean_direction(w - msg.params, local, steps) - msg.c
    return ControlReply(w - msg.params, change), ControlClient(client.c + change)


def update_controls(server: ControlServer, cohort: Cohort) -> ControlServer:
    """Average the models; c is the mean over all clients, most of which did not change theirs."""
    c = server.c + cohort.size / cohort.population * cohort.uniform.c
    return ControlServer(server.params + cohort.mean.delta, c)
