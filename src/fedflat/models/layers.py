"""Parts that several models share: the classifier, normalisation, dropout, and the check of the images' shape.

`BatchNorm` and `Dropout` stand for torch's own in models of your own. torch's BatchNorm would count padding as samples,
and its dropout draws from the global random state, so that results would depend on the engine.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.core.batch import current_batch
from fedflat.core.gradient import is_transformed
from fedflat.core.norm_statistics import TrackingLayer, current_statistics_use
from fedflat.core.random import hash_words, purpose_key, uniform_from
from fedflat.errors import UserError

Shape = tuple[int, int, int]  # channels, height, width

_DROPOUT = purpose_key("dropout")
_CURRENT: Any = object()  # stands for the keys of the current batch


class BatchInfo(Protocol):
    """What a layer may use of a batch beside the images; core.batch.Batch has it."""

    @property
    def mask(self) -> Tensor:
        """bool [B], False for padding samples, on which no statistic may depend."""

    @property
    def key(self) -> Tensor | None:
        """int64 [B], a hash key for every sample; None at evaluation."""


class Classifier(nn.Module):
    """A model in two parts: forward(x) = head(features(x)).

    Args:
        features: maps images [B, channels, height, width] to features [B, F].
        head: maps features [B, F] to class scores [B, classes].
    """

    takes_batch: ClassVar[bool] = False

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor, *batch: BatchInfo) -> Tensor:
        return self.head(self.features(x, *batch))


class BatchClassifier(Classifier):
    """A classifier whose features also need the batch: forward(x, batch) = head(features(x, batch)).

    The features need the mask where they normalise over samples, and the keys where they contain dropout.
    """

    takes_batch: ClassVar[bool] = True


class GreyToColour(nn.Module):
    """Repeat grey images [B, 1, H, W] to three channels. Colour images [B, 3, H, W] pass unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


class GlobalPool(nn.Module):
    """The mean over all pixels, [B, C, H, W] → [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class BatchNorm(TrackingLayer):
    """Batch normalisation by the moments of the batch itself or, at evaluation, by running averages if it keeps them.

    For every channel, over the N samples n whose mask m_n is 1 and the P pixels p of each (P = 1 for vectors):

    μ = Σ m_n x_np / (N P);  σ² = Σ m_n (x_np − μ)² / (N P) (biased);  y = γ (x − μ) / √(σ² + 1e-5) + β

    With `track` it has the buffers of nn.BatchNorm, which follow the batches of training as there; n = N P:

    running_mean ← (1 − a) running_mean + a μ;  running_var ← (1 − a) running_var + a σ² n / (n − 1)

    Of a single value (n = 1) there is no variance, and running_var stays.

    Where torch's own function computes the same, it is called, because it is faster on a CPU.

    Called as norm(x, mask) with x of [B, channels, ...] and the bool mask [B] of the batch, or as norm(x) inside a
    model that a Task calls; then the mask is that of the current batch. Outside a Task it is a plain layer of torch,
    without padding: train() and eval() say whether it normalises by the batch or by running averages.

    Args:
        channels: the number of channels of the input.
        affine: whether to learn γ and β; else they are 1 and 0.
        eps: what is added to σ².
        momentum: the share a of the newest batch.
    """

    def __init__(self, channels: int, affine: bool = True, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.channels = channels
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, None)

    def track(self) -> None:
        """Keep running averages from now on; new ones start as torch's, with means of 0 and variances of 1."""
        if self.running_mean is None:
            self.running_mean, self.running_var = torch.zeros(self.channels), torch.ones(self.channels)
            self.num_batches_tracked = torch.tensor(0)  # torch's layers have it; here it stays

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        use, wide, ones = current_statistics_use(), _at_least_float32(x), [1] * (x.dim() - 2)
        by_averages = not self.training if use is None else use.running
        if by_averages and self.running_mean is not None:
            mean, variance = (average.view(-1, *ones).to(wide.dtype) for average in self.averages())
            centred = wide - mean
        else:
            mask = self._mask(x) if mask is None else mask
            if self._as_in_torch(x, mask):
                return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
            centred, variance = self._centred(wide, mask)
        normalised = (centred * torch.rsqrt(variance + self.eps)).to(x.dtype)
        if self.weight is None or self.bias is None:
            return normalised
        return normalised * self.weight.view(-1, *ones) + self.bias.view(-1, *ones)

    def _mask(self, x: Tensor) -> Tensor:
        """Return which rows of x are no padding: all, outside a Task."""
        if current_statistics_use() is None:
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        return _mask_of_rows(current_batch().mask, len(x))

    def _as_in_torch(self, x: Tensor, mask: Tensor) -> bool:
        """Return whether torch's own function computes the same: for one model, without padding and running averages.

        Never on a GPU, where asking the mask would mean to wait.
        """
        plain = not x.is_cuda and not is_transformed() and self.running_mean is None
        return plain and x.numel() > self.channels and x.dtype.itemsize >= 4 and bool(mask.all())

    def _centred(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return x − μ and σ² of the batch, [1, channels, 1, ...], and update the running averages."""
        axes, real = (0, *range(2, x.dim())), mask.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
        count = real.sum().clamp(min=1) * math.prod(x.shape[2:])  # clamp: finite where all is padding
        share = real / count
        mean = (x * share).sum(axes, keepdim=True)
        centred = x - mean
        variance = (centred.square() * share).sum(axes, keepdim=True)
        self._update_averages(mean.detach().flatten(), variance.detach().flatten(), count)
        return centred, variance

    def _update_averages(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Hand the next running averages to the Task; outside a Task, in training, keep them."""
        if self.running_mean is None:
            return
        use = current_statistics_use()
        if use is None and self.training:
            self.running_mean, self.running_var = self._next_averages(self.averages(), mean, variance, count)
        elif use is not None and use.updated is not None:
            before = use.updated.get(self, self.averages())  # a layer may be called twice
            use.updated[self] = self._next_averages(before, mean, variance, count)

    def _next_averages(
        self, before: tuple[Tensor, Tensor], mean: Tensor, variance: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        unbiased = variance * (count / (count - 1).clamp(min=1))
        unbiased = torch.where(count > 1, unbiased, before[1].to(variance.dtype))
        return self._average(before[0], mean), self._average(before[1], unbiased)

    def _average(self, old: Tensor, new: Tensor) -> Tensor:
        return ((1 - self.momentum) * old + self.momentum * new).to(old.dtype)


def _mask_of_rows(mask: Tensor, rows: int) -> Tensor:
    """Return the mask of `rows` rows of which several in a row may belong to one sample (tokens of one text)."""
    return mask.repeat_interleave(rows // len(mask), output_size=rows) if rows != len(mask) else mask


def _at_least_float32(x: Tensor) -> Tensor:
    """Return x with at least 32 bits, because sums over a batch or an image leave the range of 16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class GroupNorm(nn.Module):
    """Group normalisation of each sample over the pixels and channels of each group, as nn.GroupNorm does.

    Written out where many models are vectorised, because torch's own cannot be traced there with varying sizes.

    Args:
        groups: the number of groups, which divides `channels`.
        channels: the number of channels of the input [B, channels, height, width].
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        if not is_transformed():
            return F.group_norm(x, self.groups, self.weight, self.bias)
        grouped = _at_least_float32(x).unflatten(1, (self.groups, -1))
        centred = grouped - grouped.mean((2, 3, 4), keepdim=True)
        variance = centred.square().mean((2, 3, 4), keepdim=True)
        normalised = (centred * torch.rsqrt(variance + 1e-5)).flatten(1, 2).to(x.dtype)
        return normalised * self.weight[:, None, None] + self.bias[:, None, None]


class Dropout(nn.Module):
    """Dropout: set each unit to 0 with probability p and divide the others by 1 − p. Without keys, the identity.

    Unit u of a sample with key k is dropped if the uniform number of hash(k, "dropout", number, u) is less than p. The
    outcome depends on the sample's key alone and not on the rest of the batch.

    Called as dropout(x, batch.key) with x of [B, ...], or as dropout(x) inside a model that a Task calls; then the keys
    are those of the current batch. Outside a Task it is a plain layer of torch, which drops units in training mode.

    Args:
        p: the probability.
        number: a number for this layer, different from those of the model's other dropout layers.
        whole_channels: drop whole channels of [B, channels, ...], as nn.Dropout2d does.
    """

    def __init__(self, p: float, number: int, whole_channels: bool = False) -> None:
        super().__init__()
        self.p, self.number, self.whole_channels = p, number, whole_channels

    def forward(self, x: Tensor, key: Tensor | None = _CURRENT) -> Tensor:
        if key is _CURRENT and current_statistics_use() is None:
            return (torch.feature_dropout if self.whole_channels else torch.dropout)(x, self.p, self.training)
        key = current_batch().key if key is _CURRENT else key
        if key is None or self.p == 0:
            return x
        count = x[0].numel() * (len(x) // len(key))  # several rows may belong to one sample
        channels = x.shape[1] if self.whole_channels else count
        units = torch.arange(channels, device=x.device)
        keep = uniform_from(hash_words(key[:, None], _DROPOUT, self.number, units)) >= self.p
        keep = keep[..., None].expand(-1, -1, count // channels) if self.whole_channels else keep
        return x * keep.reshape(x.shape) / (1 - self.p)


def check_image_shape(
    model: str, shape: Shape, min_side: int, max_side: int | None = None, multiple: int = 1
) -> tuple[int, int]:
    """Return height and width of the images, or raise UserError if the model cannot take them.

    Args:
        model: the model's name, for the message.
        shape: channels, height and width; the channels must be 1 or 3.
        min_side: the smallest height and width in pixels.
        max_side: the largest, if there is a limit.
        multiple: height and width must be multiples of this.
    """
    sides = shape[1:]
    fits = len(shape) == 3 and shape[0] in (1, 3)
    fits = fits and all(s >= min_side and s % multiple == 0 and (max_side is None or s <= max_side) for s in sides)
    if not fits:
        limit = f" and at most {max_side}" if max_side else ""
        factor = f", multiples of {multiple}" if multiple > 1 else ""
        raise UserError(
            "model",
            model,
            f"cannot take input of shape {'x'.join(map(str, shape))}, it needs images of 1 or 3 channels with sides of "
            f"at least {min_side}{limit} pixels{factor}",
        )
    return sides
