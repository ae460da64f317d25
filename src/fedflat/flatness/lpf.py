"""The low-pass-filter measure of flatness (Bisla et al., 2022; FedGF, Table 2)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.task import Task
from fedflat.flatness.data import Data, loss, losses
from fedflat.flatness.noise import gaussian
from fedflat.progress import with_bar


class LowPass(NamedTuple):
    """The loss F(w), its mean under noise, that mean's standard error, and the mean of every pair of opposite draws."""

    loss: float
    value: float
    error: float
    pairs: Tensor


def low_pass(task: Task, w: Tensor, data: Data, sigma: float = 0.01, draws: int = 100, seed: int = 0) -> LowPass:
    """(F * N(0, σ²I))(w) = E F(w + τ) with τ ~ N(0, σ²I), over `draws` draws in pairs ±τ.

    Opposite draws cancel the gradient's contribution: on a quadratic only ½ τᵀHτ varies, with mean ½ σ² tr H.
    """
    count = max(1, draws // 2)
    values = []
    for numbers in with_bar(torch.arange(count).split(max(1, data.lanes() // 2)), f"{data.label} low-pass filter"):
        noise = torch.stack([sigma * gaussian(w, seed, "low pass", n) for n in numbers.tolist()])
        values.append(losses(task, torch.cat([w + noise, w - noise]), data).view(2, -1).mean(0))
    pairs = torch.cat(values).double().cpu()
    error = float(pairs.std()) / math.sqrt(count) if count > 1 else math.nan
    return LowPass(float(loss(task, w, data)), float(pairs.mean()), error, pairs)
