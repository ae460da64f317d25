"""Arithmetic on vectors, along the last axis."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(v: Tensor) -> Tensor:
    """‖v‖₂."""
    return torch.linalg.vector_norm(v, dim=-1)


def unit(v: Tensor) -> Tensor:
    """v / ‖v‖, and 0 where ‖v‖ is at rounding level, so that noise never becomes a full-length direction."""
    length = norm(v)[..., None]
    real = length > 10 * torch.finfo(v.dtype).eps
    return v * torch.where(real, 1 / torch.where(real, length, 1.0), 0.0)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ / (‖a‖ ‖b‖), 0 where either is 0."""
    return (unit(a) * unit(b)).sum(-1)
