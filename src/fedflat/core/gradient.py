"""Gradients, by the fastest way that torch has for the place where they are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


def is_transformed() -> bool:
    """Return whether torch.func differentiates or vectorises the code that calls this, or torch compiles it."""
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None


def grad(function: Callable[[Any], Any], has_aux: bool = False) -> Callable[[Any], Any]:
    """Return the function that computes the gradient ∇f(w) of a scalar function f; the same as torch.func.grad.

    Where nothing else differentiates or vectorises, torch's autograd computes the gradient of a vector in less time.
    Everywhere else torch.func.grad computes it.

    Args:
        function: f, of a vector or of named tensors; with `has_aux` it returns f(w) and something else.
        has_aux: whether it does; the result is then the pair of the gradient and this something.
    """

    def gradient(w: Any) -> Any:
        if torch.is_grad_enabled() or is_transformed() or not isinstance(w, Tensor):
            return torch.func.grad(function, has_aux=has_aux)(w)
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            value, more = function(leaf) if has_aux else (function(leaf), None)
            constant = isinstance(value, Tensor) and not value.requires_grad
            found = torch.zeros_like(w) if constant else torch.autograd.grad(value, leaf, materialize_grads=True)[0]
        return (found, tree_map_only(Tensor, Tensor.detach, more)) if has_aux else found

    return gradient
