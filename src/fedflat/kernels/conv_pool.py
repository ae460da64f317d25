"""Convolution, 2x2 max-pooling and ReLU as one operator, so that the image before pooling is never stored.

relu(max_pool(conv(x) + b)) comes with the corner k = 0 … 3 (in reading order) of each window that was largest. With
z: [B, O, 2h, 2w] the image before pooling, g: [B, O, h, w] the gradient after it, 0 where ReLU gave 0:

    spread            gz[s,o,2i+k₀,2j+k₁] = g[s,o,i,j] at the corner of that window, 0 at the others
    pick              y[s,o,i,j] = z[s,o,2i+k₀,2j+k₁], the transpose of spread
    pool_weight_grad  weight_grad(spread(g), x); where channels are few, without storing spread(g)

All are linear in what is differentiated, so derivatives of any order exist. An odd last row or column is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from fedflat.kernels import lanes
from fedflat.kernels.conv import InputGrad, WeightGrad, conv2d, stack


@custom_op(
    "fedflat::conv_pool",
    mutates_args=(),
    schema="(Tensor x, Tensor w, Tensor? b, int[] padding) -> (Tensor, Tensor)",
)
def _conv_pool(x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]) -> tuple[Tensor, Tensor]:
    y, corner = lanes.conv_pool(x[None], w[None], None if b is None else b[None], padding)
    return y[0], corner[0]


@custom_op("fedflat::spread", mutates_args=(), schema="(Tensor g, Tensor corner, int[] size) -> Tensor")
def _spread(g: Tensor, corner: Tensor, size: list[int]) -> Tensor:
    return lanes.spread(g, corner, size)


@custom_op(
    "fedflat::pool_weight_grad",
    mutates_args=(),
    schema="(Tensor g, Tensor corner, Tensor x, int[] size, int[] padding) -> Tensor",
)
def _pool_weight_grad(g: Tensor, corner: Tensor, x: Tensor, size: list[int], padding: list[int]) -> Tensor:
    return lanes.pool_weight_grad(g[None], corner[None], x[None], size, padding)[0]


@_conv_pool.register_fake
def _(x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]) -> tuple[Tensor, Tensor]:
    height, width = (n // 2 for n in lanes.filtered(x.shape[2:], w.shape[2:], padding))
    y = x.new_empty(len(x), height, width, len(w)).permute(0, 3, 1, 2)
    return y, torch.empty_like(y, dtype=torch.uint8)


_spread.register_fake(lambda g, corner, size: g.new_empty(len(g), *size, g.shape[1]).permute(0, 3, 1, 2))


_pool_weight_grad.register_fake(lambda g, corner, x, size, padding: g.new_empty(g.shape[1], x.shape[1], *size))


@_conv_pool.register_vmap
def _(
    info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    x, w = (stack(t, d, info.batch_size) for t, d in zip((x, w), dims, strict=False))
    return lanes.conv_pool(x, w, None if b is None else stack(b, dims[2], info.batch_size), padding), (0, 0)


@_spread.register_vmap
def _(info: Any, dims: Any, g: Tensor, corner: Tensor, size: list[int]) -> tuple[Tensor, int]:
    flat_g, flat_corner = (stack(t, d, info.batch_size).flatten(0, 1) for t, d in zip((g, corner), dims, strict=False))
    return lanes.spread(flat_g, flat_corner, size).unflatten(0, (info.batch_size, -1)), 0


@_pool_weight_grad.register_vmap
def _(info: Any, dims: Any, g: Tensor, corner: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    g, corner, x = (stack(t, d, info.batch_size) for t, d in zip((g, corner, x), dims, strict=False))
    return lanes.pool_weight_grad(g, corner, x, *rest), 0


def _pick(z: Tensor, corner: Tensor) -> Tensor:
    height, width = corner.shape[2:]
    spots = [z[:, :, k // 2 : 2 * height : 2, k % 2 : 2 * width : 2] for k in range(4)]
    return sum((torch.where(corner == k, spot, 0) for k, spot in enumerate(spots)), torch.zeros_like(spots[0]))


class _ConvPool(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, padding: Any) -> tuple[Tensor, Tensor]:
        return _conv_pool(x, w, b, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:2], *output)
        ctx.padding = inputs[3]

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        (x, w, y, corner), needs, how = ctx.saved_tensors, ctx.needs_input_grad, lanes.plain(ctx.padding)
        g = torch.where(y <= 0, 0, g)
        gb = g.sum((0, 2, 3)) if needs[2] else None
        if not needs[0]:  # the first layer
            return None, _PoolWeightGrad.apply(g, corner, x, w.shape[2:], ctx.padding), gb, None
        gz = _Spread.apply(g, corner, lanes.filtered(x.shape[2:], w.shape[2:], ctx.padding))
        gw = WeightGrad.apply(gz, x, w.shape[2:], *how) if needs[1] else None
        return InputGrad.apply(gz, w, x.shape[2:], *how), gw, gb, None


class _Spread(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, corner: Tensor, size: Any) -> Tensor:
        return _spread(g, corner, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        return _pick(h, *ctx.saved_tensors), None, None


class _PoolWeightGrad(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, corner: Tensor, x: Tensor, size: Any, padding: Any) -> Tensor:
        return _pool_weight_grad(g, corner, x, size, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.padding = inputs[4]

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        (g, corner, x), how = ctx.saved_tensors, lanes.plain(ctx.padding)
        z = conv2d(x, h, None, *how)
        gx = InputGrad.apply(_Spread.apply(g, corner, z.shape[2:]), h, x.shape[2:], *how)
        return _pick(z, corner), None, gx, None, None


def conv_pool(x: Tensor, w: Tensor, b: Tensor | None = None, padding: tuple[int, ...] = (0, 0)) -> Tensor:
    """relu(max_pool2d(conv2d(x, w, b, padding=padding), 2)) on a batch of images, fast under vmap(grad(...))."""
    return _ConvPool.apply(x, w, b, padding)[0]
