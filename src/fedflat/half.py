"""Gradients in 16-bit floats with 5 bits of exponent: scaled up inside the model, so that small ones are not lost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SCALE = 256.0  # gradients of 2⁻²⁴/256 … 65504/256 survive


class _ScaleGrad(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.factor, None


def entering(x: Tensor) -> Tensor:
    """A tensor on its way into the model: its gradient comes back at its true size."""
    return _ScaleGrad.apply(x, 1 / SCALE)


def leaving(y: Tensor) -> Tensor:
    """A tensor on its way out: gradients enter the model enlarged."""
    return _ScaleGrad.apply(y, SCALE)
