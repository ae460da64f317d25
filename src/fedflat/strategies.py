"""How a proximal gradient may be used: FedSOL's own way and those it is compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedflat.errors import UserError
from fedflat.task import Task
from fedflat.vectors import unit

Gradient = Callable[[Tensor], Tensor]


def combine(strategy: str, local: Gradient, proximal: Gradient, climb: Gradient, w: Tensor, beta: float) -> Tensor:
    """The direction at w from ∇f = local, g_p = ∇L_p = proximal and ε(g) = climb.

    | strategy | direction | |
    |---|---|---|
    | A0 | ∇f(w) | FedAvg |
    | A1 | ∇f(w + ε(g_p)) | FedSOL |
    | A2 | ∇f(w) + β ∇L_p(w + ε(g_p)) | |
    | A3 | ∇f(w + ε(g_p)) + β ∇L_p(w + ε(g_p)) | |
    | A4 | ∇f(w + ε_c) + β ∇L_p(w + ε_c), ε_c = ε(∇f + β g_p) | SAM of the sum |
    | A5 | ∇f(w) + β ∇L_p(w) | the term as a part of the loss (eq. 2) |
    | A6 | ∇f(w + ε(g_p)) + β ∇L_p(w) | |
    | project | ∇f − min(⟨∇f, g_p⟩, 0) g_p / ‖g_p‖² | eq. 3 |
    """
    if strategy == "A0":
        return local(w)
    g = proximal(w)
    if strategy == "A5":
        return local(w) + beta * g
    if strategy == "project":
        return project(local(w), g)
    up = w + climb(local(w) + beta * g if strategy == "A4" else g)
    if strategy == "A2":
        return local(w) + beta * proximal(up)
    added = {"A3": proximal, "A4": proximal, "A6": lambda v: g}
    return local(up) + beta * added[strategy](up) if strategy in added else local(up)


def project(g: Tensor, p: Tensor) -> Tensor:
    """Take from g what opposes p: g − min(⟨g, p⟩, 0) p / ‖p‖²."""
    p = unit(p)
    return g - (g * p).sum().clamp(max=0) * p


def part(task: Task, name: str, g: Tensor) -> Tensor:
    """g on the parameters of the "head", the "body" or "all", and 0 elsewhere."""
    if name == "all":
        return g
    head = task.mask("head.", g.device)
    return torch.where(head if name == "head" else ~head, g, 0)


def check_parts(task: Task, perturb: str, proximal: str) -> None:
    """Refuse a perturbation of parts that the model does not have or the proximal loss does not see."""
    if perturb != "all" and not task.has_head:
        raise UserError(f"--perturb {perturb}: the model has no parts `features` and `head`; use --perturb all")
    if proximal == "moon" and not task.has_head:
        raise UserError("--proximal moon: the model has no parts `features` and `head`; use another term")
    if proximal == "moon" and perturb == "head":
        raise UserError("--perturb head: MOON's proximal loss does not depend on the head; use body or all")
