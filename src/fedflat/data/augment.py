"""Random crops, flips and cutouts of whole batches on the device, and normalisation.

What happens to a sample is a function of its key alone, so it is the same in every batch, engine and restart, and on
CPU and GPU. There are no loops over samples and nothing is copied from or to the host.
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
    """Images [..., C, H, W] with keys [...]: pad, crop and flip; normalise; cut out a square.

    The crop's offsets are uniform on {0, ..., 2 crop}²; black padding is pixel value 0 before normalisation. The
    square's centre is uniform over the pixels; what sticks out is lost, what is inside becomes 0 after normalisation.
    """
    if spec.crop or spec.flip:
        x = _move(x, key, spec)
    x = normalise(x, mean, std, dtype)
    return _cut_out(x, key, spec.cutout) if spec.cutout else x


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """(x / 255 - mean) / std for uint8 images, (x - mean) / std for other samples; one value, or one per channel.

    Computed as a x + b with a = 1 / (255 std), b = -mean / std, which is the identity for mean 0 and std 1.
    """
    full = 255 if x.dtype == torch.uint8 else 1
    scale = _per_channel(tuple(1 / (full * s) for s in std), x.device, dtype)
    shift = _per_channel(tuple(-m / s for m, s in zip(mean, std, strict=True)), x.device, dtype)
    return x.to(dtype) * scale + shift


def _per_channel(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """A constant that broadcasts over images; filled on the device: CUDA graphs allow no copy from the host."""
    parts = [torch.full((1, 1, 1), value, device=device, dtype=dtype) for value in values]
    return torch.cat(parts) if len(parts) > 1 else parts[0].view(())


def _words(key: Tensor, use: int) -> tuple[Tensor, Tensor]:
    """Two random words of each sample for one use, [..., 1]: `below` reads 32 of the 64 bits of a hash."""
    word = hash_words(key, torch.full((), use, dtype=torch.int64, device=key.device))[..., None]
    return word, word << 32


def _move(x: Tensor, key: Tensor, spec: Augment) -> Tensor:
    """Pad, crop and flip as one gather: the pixel at (i, j) comes from (row_i, column_j) of the image."""
    height, width = x.shape[-2:]
    i, j = (torch.arange(side, device=x.device).expand(*key.shape, side) for side in (height, width))
    if spec.flip:
        j = torch.where(integer_below(_words(key, _FLIP)[0], 2) == 1, width - 1 - j, j)
    if spec.crop:
        i, j = (
            k + integer_below(word, 2 * spec.crop + 1) - spec.crop
            for k, word in zip((i, j), _words(key, _CROP), strict=True)
        )
    row, column = (_bounce(k, side) if spec.reflect else k.clamp(0, side - 1) for k, side in ((i, height), (j, width)))
    source = (row[..., :, None] * width + column[..., None, :]).flatten(-2)
    moved = x.flatten(-2).gather(-1, source[..., None, :].expand(*x.shape[:-2], -1)).view_as(x)
    if spec.reflect or not spec.crop:
        return moved
    inside = (row == i)[..., :, None] & (column == j)[..., None, :]
    return torch.where(inside[..., None, :, :], moved, 0)


def _bounce(k: Tensor, side: int) -> Tensor:
    """Reflect positions off the first and the last pixel, which are not repeated, as often as it takes."""
    period = 2 * max(side - 1, 1)
    k = k.remainder(period)
    return torch.minimum(k, period - k).clamp(max=side - 1)


def _cut_out(x: Tensor, key: Tensor, side: int) -> Tensor:
    """Zeros in the square of `side` pixels around a random pixel."""
    row, column = _words(key, _CUTOUT)
    hole = _near(row, x.shape[-2], side)[..., :, None] & _near(column, x.shape[-1], side)[..., None, :]
    return torch.where(hole[..., None, :, :], 0.0, x)


def _near(word: Tensor, length: int, side: int) -> Tensor:
    """Which of `length` positions lie in [k - side // 2, k - side // 2 + side) for a random position k."""
    offset = torch.arange(length, device=word.device) - integer_below(word, length) + side // 2
    return (offset >= 0) & (offset < side)
