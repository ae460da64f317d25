"""How the convolution kernels cut their work into tiles: fixed by the shapes alone, so that results repeat.

The choices are the best of benchmarks/kernels.py on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

PROGRAMS = 396  # of the weight gradient: three for each of 132 multiprocessors, which have room for them at once


POOL_PROGRAMS = 264  # of that of pooled images: two


class Tiles(NamedTuple):
    """Pixels, outputs and filter entries of a tile; warps of a program; depth of its software pipeline."""

    pixels: int
    outputs: int
    entries: int
    warps: int
    stages: int


def power(n: int, least: int, most: int) -> int:
    """The smallest power of two that is at least n, within [least, most], themselves powers of two."""
    return max(least, min(most, 1 << (n - 1).bit_length()))


def aligned(channels: int) -> int:
    """Channels with those added that make loads wide, up to 16 bytes: 4 for coloured images, else a multiple of 8."""
    return 4 if channels <= 4 else -(-channels // 8) * 8


def few(channels: int) -> bool:
    """Whether a tap has too few entries for a block of its own."""
    return channels < 32


def conv_tiles(width: int, channels: int, outputs: int, wide: bool) -> Tiles:
    """Tiles of conv and input_grad for filters of this width; `wide` is for 4-byte numbers."""
    columns, most = power(outputs, 16, 64), 32 if wide else 64
    if few(channels):
        return Tiles(128, columns, power(width * channels, 16, most), 4, 1)
    entries = most if channels % most == 0 else 32
    return Tiles(256, columns, entries, 8, 3) if columns <= 32 else Tiles(128, columns, entries, 4, 3)


def weight_grad_tiles(size: int, outputs: int, wide: bool, pool: bool) -> Tiles:
    """Tiles of weight_grad, where pixels are what is summed over."""
    pixels, columns = 32 if wide else 64, power(outputs, 16, 64)
    if pool:
        return Tiles(pixels // 2, columns, power(size, 16, 128), 8, 1)
    entries = 64 if 6 * size < 5 * (-(-size // 128) * 128) else 128  # unless 128 leave more than a sixth unused
    return Tiles(pixels, columns, power(size, 16, entries), 4, 3)


def spans(pixels: int, programs: int, block: int, pool: bool) -> tuple[int, int]:
    """How many spans of pixels, and blocks in each, fill a GPU with `programs` for each span."""
    blocks, most = -(-pixels // block), POOL_PROGRAMS if pool else PROGRAMS
    each = -(-blocks // max(1, min(blocks, most // programs)))
    return -(-blocks // each), each
