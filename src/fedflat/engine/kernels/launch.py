# mypy: disable-error-code="import-not-found,import-untyped"
"""Launches the Triton kernels: brings tensors into their layout, and allocates the results.

The kernels take dense channels-last images and filters. Plain torch operations around them bring tensors into that
form, because torch.compile can fuse those with the casts and the augmentation next to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from fedflat.engine.kernels.lanes import few_channels, filtered_sides
from fedflat.engine.kernels.run import run_kernel, tile_op
from fedflat.engine.kernels.tiles import (
    Tiles,
    aligned_channels,
    conv_tiles,
    pixel_spans,
    power_of_two,
    weight_grad_tiles,
)
from fedflat.engine.kernels.triton_kernels import add_parts_kernel, conv_kernel, spread_kernel, weight_grad_kernel


def _precision() -> str:
    """Return how float32 numbers are multiplied: exactly, or the fast way if torch's allow_tf32 is set."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _uses_bf16_products(x: Tensor) -> bool:
    """Return whether the weight gradient multiplies float32 numbers as sums of bf16 numbers.

    Hopper GPUs multiply transposed operands fast only in 16 bits.
    """
    return x.element_size() == 4 and _precision() == "tf32"


def _bf16_factors(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return bf16 tensors with three times the batch (dimension 1), which have nearly the same weight gradient.

    A number is high + low, where high has its first 8 bits and low the next 8. Of the four products low · low is left
    out. The error, 2⁻¹⁶, is smaller than that of tf32.
    """
    (g_high, g_low), (x_high, x_low) = (_high_and_low(t) for t in (g, x))
    return torch.cat([g_high, g_high, g_low], 1), torch.cat([x_high, x_low, x_high], 1)


def _high_and_low(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return a float32 tensor as the sum of two of bf16. Bits are masked: compiled code would not round twice."""
    high = (t.view(torch.int32) & -65536).view(torch.float32)
    return high.to(torch.bfloat16), (t - high).to(torch.bfloat16)


def _dense(t: Tensor, padding: Sequence[int] = (0, 0)) -> Tensor:
    """Turn images or filters [L, N, C, H, W] into [L, N, H, W, C'], dense within a lane; a view if possible.

    Zeros are added as padding, and as further channels for wide loads.
    """
    t, added = t.permute(0, 1, 3, 4, 2), aligned_channels(t.shape[2]) - t.shape[2]
    if added or any(padding):
        t = F.pad(t, (0, added, padding[1], padding[1], padding[0], padding[0]))
    return t if t[0].is_contiguous() else t.contiguous()


def _filter_pairs(w: Tensor) -> Tensor:
    """Turn filters [L, O, C, kh, kw] into pairs [L, 2 O, C, kh, kw + 1], for a pixel and its right neighbour."""
    return torch.cat([F.pad(w, (0, 1)), F.pad(w, (1, 0))], 1)


def _tiles_for(w: Tensor, pool: bool = False) -> Tiles:
    """Return the tiles of conv for these filters."""
    return conv_tiles(w.shape[4], aligned_channels(w.shape[2]), w.shape[1], w.element_size() == 4, pool)


def launch_conv(x: Tensor, w: Tensor, b: Tensor | None, padding: Sequence[int], tiles: Tiles | None = None) -> Tensor:
    """Compute `lane_conv` (stride 1, no groups), channels-last. `tiles` replaces the built-in choice."""
    tiles, size = tiles or _tiles_for(w), filtered_sides(x.shape[3:], w.shape[3:], padding)
    images, offset = _image_and_offset(x, padding, tiles)
    return _convolve(images, _dense(w).contiguous(), b, w.shape[1], size, offset, tiles, False).permute(0, 1, 4, 2, 3)


def launch_conv_pool(
    x: Tensor, w: Tensor, b: Tensor | None, padding: Sequence[int], tiles: Tiles | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `lane_conv_pool`, channels-last. `tiles` replaces the built-in choice."""
    tiles, size = tiles or _tiles_for(w, pool=True), [n // 2 for n in filtered_sides(x.shape[3:], w.shape[3:], padding)]
    images, offset = _image_and_offset(x, padding, tiles)
    filters = _dense(w if _blocks_in_pixels(x, tiles) else _filter_pairs(w)).contiguous()
    y, corner = _convolve_pool(images, filters, b, w.shape[1], size, offset, tiles)
    return y.permute(0, 1, 4, 2, 3), corner.permute(0, 1, 4, 2, 3)


def _blocks_in_pixels(x: Tensor, tiles: Tiles) -> bool:
    """Return whether each block of filter entries lies within one pixel of the filter."""
    return aligned_channels(x.shape[2]) % tiles.entries == 0


def _image_and_offset(x: Tensor, padding: Sequence[int], tiles: Tiles) -> tuple[Tensor, list[int]]:
    """Return the dense images and the position (row, column) of the first filter in them.

    The images get their padding if a block of filter entries covers more than one pixel of the filter.
    """
    if _blocks_in_pixels(x, tiles):
        return _dense(x), [-p for p in padding]
    return _dense(x, padding), [0, 0]


def launch_input_grad(g: Tensor, w: Tensor, padding: Sequence[int], tiles: Tiles | None = None) -> Tensor:
    """Compute `lane_input_grad`, channels-last: the convolution of g with the filters rotated by 180°.

    In 16 bits the kernel rotates them as it reads them; in 32 bits matrix products need the order of a copy.
    """
    rotated, outer = w.flip(3, 4).transpose(1, 2), [k - 1 - p for k, p in zip(w.shape[3:], padding, strict=True)]
    tiles = tiles or _tiles_for(rotated)
    if w.element_size() == 4 or w.shape[1] % tiles.entries:
        return launch_conv(g, rotated, None, outer, tiles)
    filters, size = _dense(w).contiguous(), filtered_sides(g.shape[3:], w.shape[3:], outer)
    offset = [-p for p in outer]
    return _convolve(_dense(g), filters, None, w.shape[2], size, offset, tiles, True).permute(0, 1, 4, 2, 3)


def launch_weight_grad(
    g: Tensor, x: Tensor, size: Sequence[int], padding: Sequence[int], tiles: Tiles | None = None
) -> Tensor:
    """Compute `lane_weight_grad`, contiguous.

    Images with few channels get their padding first, because checking bounds in the kernel is slower.
    """
    images, offset = (_dense(x, padding), [0, 0]) if few_channels(x.shape[2]) else (_dense(x), [*padding])
    factors = _bf16_factors(_dense(g), images) if _uses_bf16_products(x) else (_dense(g), images)
    return _weight_grad(factors[0], None, factors[1], g.shape[2], x.shape[2], [*size], offset, x.dtype, tiles)


def launch_pool_weight_grad(
    g: Tensor, corner: Tensor, x: Tensor, size: Sequence[int], padding: Sequence[int], tiles: Tiles | None = None
) -> Tensor:
    """Compute `lane_pool_weight_grad`: the sum of the gradients of both filters of a pair."""
    images, size = _dense(x, padding), [size[0], size[1] + 1]
    grads, corners = _dense(g).contiguous(), _dense(corner).contiguous()
    if _uses_bf16_products(x):
        (grads, images), corners = _bf16_factors(grads, images), torch.cat([corners] * 3, 1)
    pairs = _weight_grad(grads, corners, images, g.shape[2], x.shape[2], size, [0, 0], x.dtype, tiles)
    left, right = pairs.chunk(2, 1)
    return (left[..., :-1] + right[..., 1:]).contiguous()


def launch_spread(g: Tensor, corner: Tensor, size: Sequence[int]) -> Tensor:
    """Compute `lane_spread`, channels-last."""
    dense = (t.permute(0, 2, 3, 1).contiguous() for t in (g, corner))
    return _spread(*dense, [*size]).permute(0, 3, 1, 2)


def _launch_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    corner: Tensor,
    offset: list[int],
    tiles: list[int],
    rotated: bool = False,
) -> None:
    """Run conv_kernel into y; if `corner` is another tensor than y, pool and write the corners into it."""
    lanes, batch, height, width, channels = x.shape
    rows, columns, outputs = y.shape[2:]
    block, pool, pixels = Tiles(*tiles), corner is not y, batch * rows * columns
    rows_per_pixel = 1 if not pool else 4 if channels % block.entries == 0 else 2
    grid = (triton.cdiv(pixels * rows_per_pixel, block.pixels), triton.cdiv(outputs, block.outputs), lanes)
    bias = w if b is None else b if b.stride(1) == 1 else b.contiguous()
    shape = (height, width, channels, rows, columns, outputs, *w.shape[2:4], *offset)
    how = (b is not None, pool, rotated, w.shape[4], _precision())
    strides = x.stride(0), bias.stride(0)
    constants = (*shape, *how, *block[:3])
    options = {"num_warps": block.warps, "num_stages": block.stages}
    run_kernel(conv_kernel, grid, x, w, bias, y, corner, pixels, *strides, *constants, **options)


@tile_op(
    "tile_conv",
    "(Tensor x, Tensor w, Tensor? b, int outputs, int[] size, int[] offset, int[] tiles, bool rotated) -> Tensor",
)
def _convolve(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    outputs: int,
    size: list[int],
    offset: list[int],
    tiles: list[int],
    rotated: bool,
) -> Tensor:
    """y[l,s,i,j,o] = b[l,o] + Σ w[l,o,u,v,c] x[l, s, i + offset₀ + u, j + offset₁ + v, c].

    If `rotated`, with w[l, c, kh − 1 − u, kw − 1 − v, o] instead.
    """
    y = x.new_empty(*x.shape[:2], *size, outputs)
    _launch_conv(x, w, b, y, y, offset, tiles, rotated)
    return y


@tile_op(
    "tile_conv_pool",
    "(Tensor x, Tensor w, Tensor? b, int outputs, int[] size, int[] offset, int[] tiles) -> (Tensor, Tensor)",
)
def _convolve_pool(
    x: Tensor, w: Tensor, b: Tensor | None, outputs: int, size: list[int], offset: list[int], tiles: list[int]
) -> tuple[Tensor, Tensor]:
    """Return ReLU of the largest pixel in each 2x2 window of `_convolve`, and its corner; `size` is after pooling."""
    y = x.new_empty(*x.shape[:2], *size, outputs)
    corner = torch.empty_like(y, dtype=torch.uint8)
    _launch_conv(x, w, b, y, corner, offset, tiles)
    return y, corner


@tile_op(
    "tile_weight_grad",
    "(Tensor g, Tensor? corner, Tensor x, int outputs, int depth, int[] size, int[] padding, ScalarType dtype,"
    " int[]? tiles) -> Tensor",
)
def _weight_grad(
    g: Tensor,
    corner: Tensor | None,
    x: Tensor,
    outputs: int,
    depth: int,
    size: list[int],
    padding: list[int],
    dtype: torch.dtype,
    tiles: list[int] | None,
) -> Tensor:
    """gw[l,o,c,u,v] = Σ g[l,s,i,j,o] x[l,s,i+u−p,j+v−q,c] for o < outputs and c < depth, in dtype.

    With corners it returns the gradients of filter pairs, all left ones first.
    """
    lanes, batch, height, width, channels = x.shape
    pixels, entries = batch * g.shape[2] * g.shape[3], size[0] * size[1] * channels
    pool = corner is not None
    block = Tiles(*tiles) if tiles else weight_grad_tiles(entries, outputs, x.element_size() == 4, pool)
    programs = triton.cdiv(entries, block.entries) * triton.cdiv(outputs, block.outputs)
    count, steps = pixel_spans(pixels, programs * lanes, block.pixels, pool)
    filters = 2 * outputs if pool else outputs
    parts = x.new_empty(lanes, count, filters, entries, dtype=torch.float32)
    shape = (height, width, channels, g.shape[2], g.shape[3], outputs, g.shape[4], *size, -padding[0], -padding[1])
    constants = (*shape, pool, steps, _precision(), *block[:3])
    options = {"num_warps": block.warps, "num_stages": block.stages}
    tensors, strides = (g, corner if pool else g, x, parts), (g.stride(0), x.stride(0))
    run_kernel(weight_grad_kernel, (programs, count, lanes), *tensors, pixels, *strides, *constants, **options)
    gw = x.new_empty(lanes, filters, depth, *size, dtype=dtype)
    taps, columns = size[0] * size[1], triton.next_power_of_2(size[0] * size[1])
    rows = power_of_two(channels, 4, max(4, 1024 // columns))
    grid = (filters, triton.cdiv(channels, rows), lanes)
    run_kernel(add_parts_kernel, grid, parts, gw, count, filters, depth, channels, taps, rows, columns)
    return gw


@tile_op("tile_spread", "(Tensor g, Tensor corner, int[] size) -> Tensor")
def _spread(g: Tensor, corner: Tensor, size: list[int]) -> Tensor:
    """Return g at its corner of each window [B, *size, C]; every thread moves 8 neighbouring numbers."""
    batch, rows, columns, channels = g.shape
    even = size == [2 * rows, 2 * columns]
    y = (g.new_empty if even else g.new_zeros)(batch, *size, channels)
    block, windows = power_of_two(channels, 8, 128), batch * rows * columns
    grid = (triton.cdiv(windows, 1024 // block), triton.cdiv(channels, block))
    constants = (rows, columns, *size, channels, 1024 // block, block)
    run_kernel(spread_kernel, grid, g, corner, y, windows, *constants, num_warps=4)
    return y
