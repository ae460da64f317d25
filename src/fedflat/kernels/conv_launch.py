# mypy: disable-error-code="import-not-found,import-untyped"
"""From lanes of any strides to the Triton kernels and back: what fedflat.kernels.lanes calls on a GPU.

The kernels are operators on dense channels-last images and filters. Bringing tensors into that form is left to plain
operations around them, which a compiler fuses with the casts and the augmentation that stand there anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.library import custom_op

from fedflat.kernels.conv_triton import add_parts_kernel, conv_kernel, weight_grad_kernel
from fedflat.kernels.tiles import Tiles, conv_tiles, spans, weight_grad_tiles


def _precision(quick: str = "tf32") -> str:
    """How float32 numbers are multiplied: exactly, or the quick way where the user told PyTorch so."""
    return quick if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _aligned(t: Tensor) -> Tensor:
    """t [L, …, C] dense within a lane, with zeros for further channels where that makes loads wide.

    Loads move up to 16 bytes: C becomes 4 (images of three channels) or a multiple of 8.
    """
    channels = t.shape[-1]
    wide = 4 if channels <= 4 else -(-channels // 8) * 8
    if wide > channels:
        return F.pad(t, (0, wide - channels))
    return t if t[0].is_contiguous() else t.contiguous()


def _images(t: Tensor) -> Tensor:
    """[L, B, C, H, W] -> [L, B, H, W, C'], a view where it can be."""
    return _aligned(t.permute(0, 1, 3, 4, 2))


def conv(x: Tensor, w: Tensor, b: Tensor | None, padding: Sequence[int], tiles: Tiles | None = None) -> Tensor:
    """y[l] = conv2d(x[l], w[l], b[l]), channels-last."""
    filters = _aligned(w.permute(0, 1, 3, 4, 2))
    size = [n + 2 * p - k + 1 for n, p, k in zip(x.shape[3:], padding, w.shape[3:], strict=True)]
    return _convolve(_images(x), filters, b, size, [-p for p in padding], 1, tiles).permute(0, 1, 4, 2, 3)


def input_grad(g: Tensor, w: Tensor, size: Sequence[int], padding: Sequence[int], tiles: Tiles | None = None) -> Tensor:
    """The gradient with respect to x, channels-last: a convolution of g that steps backwards."""
    filters = _aligned(w.permute(0, 2, 3, 4, 1))
    return _convolve(_images(g), filters, None, [*size], [*padding], -1, tiles).permute(0, 1, 4, 2, 3)


def weight_grad(
    g: Tensor, x: Tensor, size: Sequence[int], padding: Sequence[int], tiles: Tiles | None = None
) -> Tensor:
    """The gradient with respect to w, contiguous."""
    return _weight_grad(_images(g), _images(x), g.shape[2], x.shape[2], [*size], [*padding], tiles)


@custom_op(
    "fedflat::tile_conv",
    mutates_args=(),
    schema="(Tensor x, Tensor w, Tensor? b, int[] size, int[] offset, int step, int[]? tiles) -> Tensor",
)
def _convolve(
    x: Tensor, w: Tensor, b: Tensor | None, size: list[int], offset: list[int], step: int, tiles: list[int] | None
) -> Tensor:
    """y[l,s,i,j,o] = b[l,o] + Σ w[l,o,u,v,c] x[l, s, i + offset₀ + step u, j + offset₁ + step v, c]."""
    lanes, batch, height, width, channels = x.shape
    outputs, kh, kw = w.shape[1:4]
    block = Tiles(*tiles) if tiles else conv_tiles(kh * kw * channels, channels, outputs, x.element_size() == 4)
    y = x.new_empty(lanes, batch, *size, outputs)
    pixels = batch * size[0] * size[1]
    grid = (triton.cdiv(pixels, block.pixels), triton.cdiv(outputs, block.outputs), lanes)
    bias = w if b is None else b if b.stride(1) == 1 else b.contiguous()
    shape = (height, width, channels, *size, outputs, kh, kw, *offset, step, b is not None, _precision())
    conv_kernel[grid](
        x, w, bias, y, pixels, x.stride(0), bias.stride(0), *shape, *block[:3],
        num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip
    return y


@custom_op(
    "fedflat::tile_weight_grad",
    mutates_args=(),
    schema="(Tensor g, Tensor x, int outputs, int depth, int[] size, int[] padding, int[]? tiles) -> Tensor",
)
def _weight_grad(
    g: Tensor, x: Tensor, outputs: int, depth: int, size: list[int], padding: list[int], tiles: list[int] | None
) -> Tensor:
    """gw[l,o,c,u,v] = Σ g[l,s,i,j,o] x[l,s,i+u−p,j+v−q,c] for o < outputs and c < depth.

    Hopper multiplies transposed operands on its fast path only in 16 bits: three bf16 products replace a tf32 one.
    """
    lanes, batch, height, width, channels = x.shape
    pixels, entries = batch * g.shape[2] * g.shape[3], size[0] * size[1] * channels
    block = Tiles(*tiles) if tiles else weight_grad_tiles(entries, outputs, x.element_size() == 4)
    programs = triton.cdiv(entries, block.entries) * triton.cdiv(outputs, block.outputs)
    count, steps = spans(pixels, programs * lanes, block.pixels)
    parts = x.new_empty(lanes, count, outputs, entries, dtype=torch.float32)
    shape = (height, width, channels, g.shape[2], g.shape[3], outputs, g.shape[4], *size, -padding[0], -padding[1])
    weight_grad_kernel[programs, count, lanes](
        g, x, parts, pixels, g.stride(0), x.stride(0), *shape, steps, _precision("bf16x3"), *block[:3],
        num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip
    gw = x.new_empty(lanes, outputs, depth, *size)
    grid = (triton.cdiv(outputs * entries, 256), lanes)
    add_parts_kernel[grid](parts, gw, count, outputs, depth, channels, size[0] * size[1], 256)
    return gw


_convolve.register_fake(lambda x, w, b, size, *_: x.new_empty(*x.shape[:2], *size, w.shape[1]))
_weight_grad.register_fake(lambda g, x, outputs, depth, size, *_: x.new_empty(len(x), outputs, depth, *size))
