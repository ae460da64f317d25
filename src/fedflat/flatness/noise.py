"""Random vectors as hashes of (seed, use, number, position): the same on every device and in every order of drawing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedflat.core.random import hash_words, mix_bits, purpose_key, uniform_from


def _keys(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """One random word for each entry of `like`."""
    return hash_words(int(hash_words(seed, purpose_key(use), number)), torch.arange(len(like), device=like.device))


def gaussian(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """ε ~ N(0, I) of the shape, type and device of the vector `like`: √(−2 ln u) cos 2πv (Box and Muller, 1958)."""
    key = _keys(like, seed, use, number)
    u, v = (uniform_from(k, torch.float64) for k in (key, mix_bits(key)))
    return ((-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * math.pi * v)).to(like.dtype)


def signs(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """±1 with equal probability (Rademacher)."""
    return torch.where(_keys(like, seed, use, number) < 0, -1.0, 1.0).to(like.dtype)


def uniforms(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """Numbers in [0, 1)."""
    return uniform_from(_keys(like, seed, use, number), like.dtype)
