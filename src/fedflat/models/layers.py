"""What several architectures share: the classifier itself, checks of its input, and layers that see the batch."""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedflat.core.random import hash_words, purpose_key, uniform_from
from fedflat.errors import UserError

Shape = tuple[int, int, int]


_DROPOUT = purpose_key("dropout")


class BatchInfo(Protocol):
    """What a layer may know of the batch beside the images."""

    @property
    def mask(self) -> Tensor:
        """[B] bool; False marks a padding sample, which no statistic may depend on."""

    @property
    def key(self) -> Tensor | None:
        """[B] int64 hash keys of the samples, None at evaluation."""


class Classifier(nn.Module):
    """forward(x) = head(features(x)); `features` maps [B, channels, height, width] to [B, F]."""

    takes_batch: ClassVar[bool] = False

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor, *batch: BatchInfo) -> Tensor:
        return self.head(self.features(x, *batch))


class BatchClassifier(Classifier):
    """forward(x, batch) = head(features(x, batch)), for features that look across the batch or draw random numbers."""

    takes_batch: ClassVar[bool] = True


class GreyToColour(nn.Module):
    """Repeat a grey image to three channels; a colour image passes unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


class GlobalPool(nn.Module):
    """The mean over all pixels, [B, C, H, W] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class BatchNorm(nn.Module):
    """Normalise [B, channels, ...] by the statistics of this batch, in training and at evaluation; no running averages.

    Over the N samples with mask m_n = 1 and all P pixels p (of vectors, 1), per channel:
    μ = Σ m_n x_np / (N P), σ² = Σ m_n (x_np − μ)² / (N P) (biased), y = γ (x − μ) / √(σ² + 1e-5) + β.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        wide, others, ones = _wide(x), (0, *range(2, x.dim())), [1] * (x.dim() - 2)
        real = mask.view(-1, 1, *ones).to(wide.dtype)
        share = real / (real.sum().clamp(min=1) * math.prod(x.shape[2:]))  # clamp: a batch of padding only stays finite
        centred = wide - (wide * share).sum(others, keepdim=True)
        variance = (centred.square() * share).sum(others, keepdim=True)
        normal = (centred * torch.rsqrt(variance + 1e-5)).to(x.dtype)
        return normal * self.weight.view(-1, *ones) + self.bias.view(-1, *ones)


def _wide(x: Tensor) -> Tensor:
    """`x` in at least 32 bits: sums over a batch leave the range of 16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class GroupNorm(nn.Module):
    """Normalise each sample over the pixels and channels of each of `groups` equal groups, as nn.GroupNorm does.

    Written out because torch's own cannot be traced under vmap with varying sizes.
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        grouped = _wide(x).unflatten(1, (self.groups, -1))
        centred = grouped - grouped.mean((2, 3, 4), keepdim=True)
        variance = centred.square().mean((2, 3, 4), keepdim=True)
        normal = (centred * torch.rsqrt(variance + 1e-5)).flatten(1, 2).to(x.dtype)
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


class Dropout(nn.Module):
    """Zero each unit with probability p and divide the others by 1 − p; the identity without keys.

    Unit u of a sample with key k is dropped where uniform(fold(k, 'dropout', number, u)) < p, so the outcome depends
    on the sample's key only, whatever the batch around it. Layers of one model are numbered from 1.
    """

    def __init__(self, p: float, number: int) -> None:
        super().__init__()
        self.p = p
        self.number = number

    def forward(self, x: Tensor, key: Tensor | None) -> Tensor:
        if key is None:
            return x
        units = torch.arange(x[0].numel(), device=x.device)
        keep = uniform_from(hash_words(key[:, None], _DROPOUT, self.number, units)) >= self.p
        return x * keep.view(x.shape) / (1 - self.p)


def image_sides(model: str, shape: Shape, least: int, most: int | None = None, multiple: int = 1) -> tuple[int, int]:
    """Height and width of an input that `model` can take, else a UserError."""
    sides = shape[1:]
    fits = len(shape) == 3 and shape[0] in (1, 3)
    fits = fits and all(s >= least and s % multiple == 0 and (most is None or s <= most) for s in sides)
    if not fits:
        limit = f" and at most {most}" if most else ""
        factor = f", multiples of {multiple}" if multiple > 1 else ""
        raise UserError(
            f"--model {model}: cannot take input of shape {'x'.join(map(str, shape))}, it needs images of 1 or 3 "
            f"channels with sides of at least {least}{limit} pixels{factor}"
        )
    return sides
