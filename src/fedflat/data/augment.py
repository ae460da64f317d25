"""Random crops, flips and cutouts of whole batches on the device, and normalisation.

How a sample is changed depends on its random key alone, or, with `per_batch`, on that of the first sample of its batch.
It is therefore the same in every engine, after a restart, and on CPU and GPU. There is no loop over samples, and
nothing is copied from or to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedflat.core.random import hash_words, integer_below, purpose_key
from fedflat.data.dataset import Augment

_CROP, _FLIP, _CUTOUT = purpose_key("crop"), purpose_key("flip"), purpose_key("cutout")


def augment_images(
    x: Tensor,
    key: Tensor,
    spec: Augment,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return training samples after augmentation and normalisation: pad, crop and flip; normalise; cut out a square.

    The offsets of the crop are uniform on {0, ..., 2 crop}². Black padding is pixel value 0 before normalisation. The
    centre of the square is uniform over the pixels, so a part of it may lie outside the image; the pixels inside it
    become 0 after normalisation.

    Args:
        x: images [..., C, H, W]; samples of any other shape if `spec` changes nothing.
        key: random int64 words [...], one per sample; with `spec.per_batch` the last axis is the batch.
        spec: what to change.
        mean: as in `normalise`.
        std: as in `normalise`.
        dtype: of the result.
    """
    if spec.per_batch:
        key = key[..., :1].expand_as(key)
    if spec.crop or spec.flip:
        x = _crop_and_flip(x, key, spec)
    x = normalise(x, mean, std, dtype)
    return _cut_out(x, key, spec.cutout) if spec.cutout else x


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (x / 255 - mean) / std for uint8 images, (x - mean) / std for floats; other whole numbers (tokens) stay.

    Computed as a x + b with b = -mean / std and a = 1 / (255 std) for uint8, else a = 1 / std. For floats with mean 0
    and std 1 this is the identity.

    Args:
        x: images [..., C, H, W], or samples of any other shape if `mean` and `std` have one value.
        mean: one value for all channels, or one per channel.
        std: as many values as `mean`.
        dtype: of the result.
    """
    if x.dtype != torch.uint8 and not x.is_floating_point():  # tokens
        return x
    largest = 255 if x.dtype == torch.uint8 else 1
    scale = _per_channel(tuple(1 / (largest * s) for s in std), x.device, dtype)
    shift = _per_channel(tuple(-m / s for m, s in zip(mean, std, strict=True)), x.device, dtype)
    return x.to(dtype) * scale + shift


def _per_channel(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a constant that broadcasts over images. It is filled on the device: CUDA graphs allow no host copies."""
    parts = [torch.full((1, 1, 1), value, device=device, dtype=dtype) for value in values]
    return torch.cat(parts) if len(parts) > 1 else parts[0].view(())


def _words(key: Tensor, purpose: int) -> tuple[Tensor, Tensor]:
    """Return two random words [..., 1] per sample for one purpose: `integer_below` reads the upper 32 of 64 bits."""
    word = hash_words(key, torch.full((), purpose, dtype=torch.int64, device=key.device))[..., None]
    return word, word << 32


def _crop_and_flip(x: Tensor, key: Tensor, spec: Augment) -> Tensor:
    """Pad, crop and flip as one gather: the new pixel (i, j) is the old pixel (row_i, column_j)."""
    height, width = x.shape[-2:]
    i, j = (torch.arange(side, device=x.device).expand(*key.shape, side) for side in (height, width))
    if spec.flip:
        j = torch.where(integer_below(_words(key, _FLIP)[0], 2) == 1, width - 1 - j, j)
    if spec.crop:
        i, j = (
            k + integer_below(word, 2 * spec.crop + 1) - spec.crop
            for k, word in zip((i, j), _words(key, _CROP), strict=True)
        )
    row, column = (_reflect(k, side) if spec.reflect else k.clamp(0, side - 1) for k, side in ((i, height), (j, width)))
    source = (row[..., :, None] * width + column[..., None, :]).flatten(-2)
    moved = x.flatten(-2).gather(-1, source[..., None, :].expand(*x.shape[:-2], -1)).view_as(x)
    if spec.reflect or not spec.crop:
        return moved
    inside = (row == i)[..., :, None] & (column == j)[..., None, :]
    return torch.where(inside[..., None, :, :], moved, 0)


def _reflect(k: Tensor, side: int) -> Tensor:
    """Mirror positions at the first and the last pixel, which are not repeated, until they lie in the image."""
    period = 2 * max(side - 1, 1)
    k = k.remainder(period)
    return torch.minimum(k, period - k).clamp(max=side - 1)


def _cut_out(x: Tensor, key: Tensor, side: int) -> Tensor:
    """Set the square of `side` x `side` pixels around a random pixel to 0."""
    row, column = _words(key, _CUTOUT)
    hole = _in_window(row, x.shape[-2], side)[..., :, None] & _in_window(column, x.shape[-1], side)[..., None, :]
    return torch.where(hole[..., None, :, :], 0.0, x)


def _in_window(word: Tensor, length: int, side: int) -> Tensor:
    """Return which of `length` positions lie in [k - side // 2, k - side // 2 + side) for a random position k."""
    offset = torch.arange(length, device=word.device) - integer_below(word, length) + side // 2
    return (offset >= 0) & (offset < side)
