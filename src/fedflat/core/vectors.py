"""Norm, direction and angle of vectors, along the last axis: [..., P] in, one result for every leading index.

All three are pure tensor arithmetic and run under torch.func.vmap, so that a method's step may use them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def norm(v: Tensor) -> Tensor:
    """Return the Euclidean norm ‖v‖ = √(Σ v_i²).

    Args:
        v: one vector [P], or several [..., P].

    Returns:
        A scalar tensor for one vector, [...] for several.
    """
    return torch.linalg.vector_norm(v, dim=-1)


def unit(v: Tensor) -> Tensor:
    """Return the direction v / ‖v‖ of v, and 0 where ‖v‖ ≤ 10 ε with the machine epsilon ε of v's dtype.

    A vector that short is rounding noise (1.2e-6 in float32): dividing it by its norm would make a full-length step in
    a random direction, and a division by zero would give NaN. Perturbations are written ρ · unit(gradient), so they are
    0 where there is no gradient.

    Args:
        v: one vector [P], or several [..., P].

    Returns:
        A tensor of v's shape: vectors of norm 1 or 0.
    """
    length = norm(v)[..., None]
    nonzero = length > 10 * torch.finfo(v.dtype).eps
    return v * torch.where(nonzero, 1 / torch.where(nonzero, length, 1.0), 0.0)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine ⟨a, b⟩ / (‖a‖ ‖b‖) of the angle between a and b, and 0 where `unit` of either is 0.

    Args:
        a: one vector [P], or several [..., P].
        b: as many vectors of the same length; leading axes broadcast.

    Returns:
        A scalar tensor for one pair, [...] for several; between −1 and 1 up to rounding.
    """
    return (unit(a) * unit(b)).sum(-1)
