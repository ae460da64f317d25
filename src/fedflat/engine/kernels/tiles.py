"""The sizes of the tiles into which the Triton kernels cut their work.

A kernel runs many *programs*; each computes one *tile* of the result. The sizes here were the fastest in
benchmarks/kernels.py on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

from fedflat.engine.kernels.lanes import few_channels

PROGRAMS = 396  # of the weight gradient: three for each of 132 multiprocessors, which can run them at once
POOL_PROGRAMS = 264  # of the weight gradient from pooled images: two for each multiprocessor


class Tiles(NamedTuple):
    """The size of a tile, and the resources of the program that computes it.

    Args:
        pixels: output pixels.
        outputs: output channels.
        entries: filter entries (filter pixel and input channel).
        warps: warps of the program.
        stages: depth of its software pipeline.
    """

    pixels: int
    outputs: int
    entries: int
    warps: int
    stages: int


def power_of_two(n: int, least: int, most: int) -> int:
    """Return the smallest power of two that is at least n, within [least, most], themselves powers of two."""
    return max(least, min(most, 1 << (n - 1).bit_length()))


def aligned_channels(channels: int) -> int:
    """Round the number of channels up, so that loads are up to 16 bytes wide: to 4, or else to a multiple of 8."""
    return 4 if channels <= 4 else -(-channels // 8) * 8


def conv_tiles(width: int, channels: int, outputs: int, wide: bool, pool: bool) -> Tiles:
    """Return the tiles of conv and input_grad.

    Args:
        width: the width of the filters.
        channels: input channels, rounded up.
        outputs: output channels.
        wide: whether numbers have 4 bytes, not 2.
        pool: whether the result is pooled.
    """
    columns, most = power_of_two(outputs, 16, 64), 32 if wide else 64
    if few_channels(channels):
        return Tiles(128, columns, power_of_two(width * channels, 16, most), 4, 1)
    entries = most if channels % most == 0 else 32
    if outputs >= 128 and entries == 64 and not pool:
        return Tiles(128, 128, 64, 8, 3) if outputs < 512 else Tiles(64, 128, 64, 4, 4)  # 512 have few pixels
    return Tiles(256, columns, entries, 8, 3) if columns <= 32 else Tiles(128, columns, entries, 4, 3)


def weight_grad_tiles(size: int, outputs: int, wide: bool, pool: bool) -> Tiles:
    """Return the tiles of weight_grad, which sums over pixels.

    Args:
        size: the number of entries of a filter.
        outputs: output channels.
        wide: whether numbers have 4 bytes, not 2.
        pool: whether the gradient is that of pooled images.
    """
    pixels, columns = 32 if wide else 64, power_of_two(outputs, 16, 64)
    if pool:
        return Tiles(pixels // 2, columns, power_of_two(size, 16, 128), 8, 1)
    if outputs >= 128 and size >= 128 and not wide:
        return Tiles(64, 128, 128, 8, 3)
    entries = 64 if 6 * size < 5 * (-(-size // 128) * 128) else 128  # 128, unless more than a sixth would be unused
    return Tiles(pixels, columns, power_of_two(size, 16, entries), 4, 3)


def pixel_spans(pixels: int, programs: int, block: int, pool: bool) -> tuple[int, int]:
    """Divide the pixels into spans, so that the programs of all spans together fill a GPU.

    Args:
        pixels: the number of pixels.
        programs: the number of programs for each span.
        block: the number of pixels that a program handles at once.
        pool: whether the gradient is that of pooled images.

    Returns the number of spans and the number of blocks in each.
    """
    blocks, most = -(-pixels // block), POOL_PROGRAMS if pool else PROGRAMS
    per_span = -(-blocks // max(1, min(blocks, most // programs)))
    return -(-blocks // per_span), per_span
