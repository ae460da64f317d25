"""How the convolution kernels cut their work into tiles: fixed by the shapes alone, so that results repeat.

The choices are the best of benchmarks/kernels.py on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

PROGRAMS = 512  # of the weight gradient: about four for each multiprocessor of a large GPU


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


def conv_tiles(size: int, channels: int, outputs: int, wide: bool) -> Tiles:
    """Tiles of conv and input_grad for filters of `size` entries; `wide` is for 4-byte numbers."""
    columns = power(outputs, 16, 64)
    if channels < 32:
        return Tiles(128, columns, power(size, 16, 64 if wide else 128), 4, 1)
    return Tiles(256, columns, 32 if wide else power(min(channels, 64), 32, 64), 8, 3)


def weight_grad_tiles(size: int, outputs: int, wide: bool) -> Tiles:
    """Tiles of weight_grad, where pixels are what is summed over."""
    return Tiles(32 if wide else 64, power(outputs, 16, 64), power(size, 16, 128), 4, 3)


def spans(pixels: int, programs: int, block: int) -> tuple[int, int]:
    """How many spans of pixels, and blocks in each, make `programs` times spans about PROGRAMS."""
    blocks = -(-pixels // block)
    each = -(-blocks // max(1, min(blocks, PROGRAMS // programs)))
    return -(-blocks // each), each
