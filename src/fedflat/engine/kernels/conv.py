"""Convolutions, with and without pooling, and their gradients, which stay one operator under vmap over clients.

With x: [B, C, H, W], w: [O, C/groups, kh, kw], b: [O], g: [B, O, OH, OW] (here with stride 1 and without padding):

    conv         y[s,o,i,j]  = b[o] + Σ_{c,u,v} w[o,c,u,v] x[s,c,i+u,j+v]
    input_grad   gx[s,c,i,j] = Σ_{o,u,v} w[o,c,u,v] g[s,o,i−u,j−v]
    weight_grad  gw[o,c,u,v] = Σ_{s,i,j} g[s,o,i,j] x[s,c,i+u,j+v]

The three are bilinear and are each other's gradients, so derivatives of any order exist. `how` is always
(stride, padding, dilation, groups). Each has a counterpart over lanes, with one more leading dimension on every tensor,
which vmap calls instead; lanes.py computes it.

relu(max_pool(conv(x) + b)) is returned with the corner k = 0 … 3 (in reading order) of the largest pixel in each 2x2
window. With z: [B, O, 2h, 2w] the image before pooling and g: [B, O, h, w] the gradient after it, set to 0 where ReLU
gave 0:

    spread            gz[s,o,2i+k₀,2j+k₁] = g[s,o,i,j] at the corner of that window, 0 at the others
    pick              y[s,o,i,j] = z[s,o,2i+k₀,2j+k₁], the transpose of spread
    pool_weight_grad  weight_grad(spread(g), x); with few channels spread(g) is not stored

All are linear in what is differentiated, so derivatives of any order exist. An odd last row or column of z is ignored,
as in torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op
from torch.nn.grad import conv2d_input, conv2d_weight

from fedflat.engine.kernels import lanes

_HOW = "int[] stride, int[] padding, int[] dilation, int groups"
_CONV = f"(Tensor x, Tensor w, Tensor? b, {_HOW}) -> Tensor"
_INPUT = f"(Tensor g, Tensor w, int[] size, {_HOW}) -> Tensor"
_WEIGHT = f"(Tensor g, Tensor x, int[] size, {_HOW}) -> Tensor"


@custom_op("fedflat::conv", mutates_args=(), schema=_CONV)
def _conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """Return y [B, O, OH, OW]."""
    return F.conv2d(x, w, b, *how)


@custom_op("fedflat::conv_input_grad", mutates_args=(), schema=_INPUT)
def _input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """Return gx [B, C, *size], where `size` is the height and width of the input."""
    return conv2d_input([g.shape[0], w.shape[1] * how[3], *size], w, g, *how).contiguous()


@custom_op("fedflat::conv_weight_grad", mutates_args=(), schema=_WEIGHT)
def _weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """Return gw [O, C/groups, *size], where `size` is the height and width of the filters."""
    return conv2d_weight(x, [g.shape[1], x.shape[1] // how[3], *size], g, *how).contiguous()


_lane_conv = custom_op("fedflat::lane_conv", lanes.lane_conv, mutates_args=(), schema=_CONV)
_lane_input_grad = custom_op("fedflat::lane_conv_input_grad", lanes.lane_input_grad, mutates_args=(), schema=_INPUT)
_lane_weight_grad = custom_op("fedflat::lane_conv_weight_grad", lanes.lane_weight_grad, mutates_args=(), schema=_WEIGHT)

_conv.register_fake(F.conv2d)
_input_grad.register_fake(lambda g, w, size, *how: g.new_empty(g.shape[0], w.shape[1] * how[3], *size))
_weight_grad.register_fake(lambda g, x, size, *how: g.new_empty(g.shape[1], x.shape[1] // how[3], *size))
_lane_conv.register_fake(lanes.empty_conv)
_lane_input_grad.register_fake(lanes.empty_input_grad)
_lane_weight_grad.register_fake(lanes.empty_weight_grad)


def _over_lanes(op: Any, function: Any, a: Tensor, b: Tensor, patches: bool, how: Any) -> Any:
    """Return the counterpart over lanes: a custom operator, or the function itself if tracing should look into it.

    It should with Triton, for the compiler, and with patches, whose matrix serves two operators.
    """
    return function if patches or lanes.has_triton_kernel(a, b, how) else op


def lanes_in_front(t: Tensor, dim: int | None, count: int) -> Tensor:
    """Return t with the vmapped dimension `dim` in front; a tensor that all `count` lanes share is expanded."""
    return t.expand(count, *t.shape) if dim is None else t.movedim(dim, 0)


def _with_shared_weights(op: Any, t: Tensor, dim: int | None, count: int, *rest: Any) -> Tensor:
    """Call op if all lanes have the same weights: as one lane whose batch has the samples of all lanes."""
    return op(lanes_in_front(t, dim, count).flatten(0, 1)[None], *rest)[0].unflatten(0, (count, -1))


@_conv.register_vmap
def _(info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> tuple[Tensor, int]:
    op = _over_lanes(_lane_conv, lanes.lane_conv, x, w, lanes.suits_patches(x, w.shape[-2:], how), how)
    if dims[1] is None and dims[2] is None:
        bias = None if b is None else b[None]
        return _with_shared_weights(op, x, dims[0], info.batch_size, w[None], bias, *how), 0
    stacked = [
        None if t is None else lanes_in_front(t, d, info.batch_size) for t, d in zip((x, w, b), dims, strict=False)
    ]
    return op(*stacked, *how), 0


@_input_grad.register_vmap
def _(info: Any, dims: Any, g: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, int]:
    patches = lanes.suits_patches(g, w.shape[-2:], rest[1:])
    op = _over_lanes(_lane_input_grad, lanes.lane_input_grad, g, w, patches, rest[1:])
    if dims[1] is None:
        return _with_shared_weights(op, g, dims[0], info.batch_size, w[None], *rest), 0
    return op(*(lanes_in_front(t, d, info.batch_size) for t, d in zip((g, w), dims, strict=False)), *rest), 0


@_weight_grad.register_vmap
def _(info: Any, dims: Any, g: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    patches = lanes.suits_patches(x, rest[0], rest[1:])
    op = _over_lanes(_lane_weight_grad, lanes.lane_weight_grad, g, x, patches, rest[1:])
    return op(*(lanes_in_front(t, d, info.batch_size) for t, d in zip((g, x), dims, strict=False)), *rest), 0


class _Bilinear(torch.autograd.Function):
    """Base of the three bilinear operators: saves their two factors and `how` for the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.how = inputs[-4:]


class _Conv(_Bilinear):
    """conv(x, w, b) with its gradient."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
        return _conv(x, w, b, *how)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), needs = ctx.saved_tensors, ctx.needs_input_grad
        gx = _InputGrad.apply(g, w, x.shape[2:], *ctx.how) if needs[0] else None
        gw = _WeightGrad.apply(g, x, w.shape[2:], *ctx.how) if needs[1] else None
        return gx, gw, g.sum((0, 2, 3)) if needs[2] else None, None, None, None, None


class _InputGrad(_Bilinear):
    """input_grad(g, w) with its gradient."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
        return _input_grad(g, w, size, *how)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        (g, w), needs = ctx.saved_tensors, ctx.needs_input_grad
        gg = _Conv.apply(h, w, None, *ctx.how) if needs[0] else None
        gw = _WeightGrad.apply(g, h, w.shape[2:], *ctx.how) if needs[1] else None
        return gg, gw, None, None, None, None, None


class _WeightGrad(_Bilinear):
    """weight_grad(g, x) with its gradient."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
        return _weight_grad(g, x, size, *how)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        (g, x), needs = ctx.saved_tensors, ctx.needs_input_grad
        gg = _Conv.apply(x, h, None, *ctx.how) if needs[0] else None
        gx = _InputGrad.apply(g, h, x.shape[2:], *ctx.how) if needs[1] else None
        return gg, gx, None, None, None, None, None


def conv2d(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Compute torch.nn.functional.conv2d on a batch of images; fast under vmap(grad(...)).

    Args:
        x: images [B, C, H, W].
        w: filters [O, C/groups, kh, kw].
        b: biases [O].
        stride, padding, dilation: (vertical, horizontal).
        groups: the number of groups of channels.
    """
    return _Conv.apply(x, w, b, stride, padding, dilation, groups)


@custom_op(
    "fedflat::conv_pool",
    mutates_args=(),
    schema="(Tensor x, Tensor w, Tensor? b, int[] padding) -> (Tensor, Tensor)",
)
def _conv_pool_op(x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]) -> tuple[Tensor, Tensor]:
    """Return the pooled image and the corners [B, O, h, w]."""
    y, corner = lanes.lane_conv_pool(x[None], w[None], None if b is None else b[None], padding)
    return y[0], corner[0]


@custom_op("fedflat::spread", mutates_args=(), schema="(Tensor g, Tensor corner, int[] size) -> Tensor")
def _spread_op(g: Tensor, corner: Tensor, size: list[int]) -> Tensor:
    """Return gz [B, O, *size]."""
    return lanes.lane_spread(g, corner, size)


@custom_op(
    "fedflat::pool_weight_grad",
    mutates_args=(),
    schema="(Tensor g, Tensor corner, Tensor x, int[] size, int[] padding) -> Tensor",
)
def _pool_weight_grad_op(g: Tensor, corner: Tensor, x: Tensor, size: list[int], padding: list[int]) -> Tensor:
    """Return gw [O, C, *size]."""
    return lanes.lane_pool_weight_grad(g[None], corner[None], x[None], size, padding)[0]


@_conv_pool_op.register_fake
def _(x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]) -> tuple[Tensor, Tensor]:
    height, width = (n // 2 for n in lanes.filtered_sides(x.shape[2:], w.shape[2:], padding))
    y = x.new_empty(len(x), height, width, len(w)).permute(0, 3, 1, 2)
    return y, torch.empty_like(y, dtype=torch.uint8)


_spread_op.register_fake(lambda g, corner, size: g.new_empty(len(g), *size, g.shape[1]).permute(0, 3, 1, 2))
_pool_weight_grad_op.register_fake(lambda g, corner, x, size, padding: g.new_empty(g.shape[1], x.shape[1], *size))


@_conv_pool_op.register_vmap
def _(
    info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    x, w = (lanes_in_front(t, d, info.batch_size) for t, d in zip((x, w), dims, strict=False))
    bias = None if b is None else lanes_in_front(b, dims[2], info.batch_size)
    return lanes.lane_conv_pool(x, w, bias, padding), (0, 0)


@_spread_op.register_vmap
def _(info: Any, dims: Any, g: Tensor, corner: Tensor, size: list[int]) -> tuple[Tensor, int]:
    flat_g, flat_corner = (
        lanes_in_front(t, d, info.batch_size).flatten(0, 1) for t, d in zip((g, corner), dims, strict=False)
    )
    return lanes.lane_spread(flat_g, flat_corner, size).unflatten(0, (info.batch_size, -1)), 0


@_pool_weight_grad_op.register_vmap
def _(info: Any, dims: Any, g: Tensor, corner: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    g, corner, x = (lanes_in_front(t, d, info.batch_size) for t, d in zip((g, corner, x), dims, strict=False))
    return lanes.lane_pool_weight_grad(g, corner, x, *rest), 0


def _pick(z: Tensor, corner: Tensor) -> Tensor:
    """Return the pixel of z at the corner of each window [B, O, h, w]."""
    height, width = corner.shape[2:]
    pixels = [z[:, :, k // 2 : 2 * height : 2, k % 2 : 2 * width : 2] for k in range(4)]
    return sum((torch.where(corner == k, pixel, 0) for k, pixel in enumerate(pixels)), torch.zeros_like(pixels[0]))


class _ConvPool(torch.autograd.Function):
    """relu(max_pool(conv(x, w, b))) and its corners, with their gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, padding: Any) -> tuple[Tensor, Tensor]:
        return _conv_pool_op(x, w, b, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:2], *output)
        ctx.padding = inputs[3]

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        (x, w, y, corner), needs, how = ctx.saved_tensors, ctx.needs_input_grad, lanes.dense_options(ctx.padding)
        g = torch.where(y <= 0, 0, g)
        gb = g.sum((0, 2, 3)) if needs[2] else None
        if not needs[0]:  # the first layer of a model
            return None, _PoolWeightGrad.apply(g, corner, x, w.shape[2:], ctx.padding), gb, None
        gz = _Spread.apply(g, corner, lanes.filtered_sides(x.shape[2:], w.shape[2:], ctx.padding))
        gw = _WeightGrad.apply(gz, x, w.shape[2:], *how) if needs[1] else None
        return _InputGrad.apply(gz, w, x.shape[2:], *how), gw, gb, None


class _Spread(torch.autograd.Function):
    """spread(g, corner) with its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, corner: Tensor, size: Any) -> Tensor:
        return _spread_op(g, corner, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        return _pick(h, *ctx.saved_tensors), None, None


class _PoolWeightGrad(torch.autograd.Function):
    """pool_weight_grad(g, corner, x) with its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, corner: Tensor, x: Tensor, size: Any, padding: Any) -> Tensor:
        return _pool_weight_grad_op(g, corner, x, size, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.padding = inputs[4]

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        (g, corner, x), how = ctx.saved_tensors, lanes.dense_options(ctx.padding)
        z = conv2d(x, h, None, *how)
        gx = _InputGrad.apply(_Spread.apply(g, corner, z.shape[2:]), h, x.shape[2:], *how)
        return _pick(z, corner), None, gx, None, None


def conv_pool2d(x: Tensor, w: Tensor, b: Tensor | None = None, padding: tuple[int, ...] = (0, 0)) -> Tensor:
    """Compute relu(max_pool2d(conv2d(x, w, b, padding=padding), 2)) on images; fast under vmap(grad(...)).

    Args:
        x: images [B, C, H, W].
        w: filters [O, C, kh, kw].
        b: biases [O].
        padding: (vertical, horizontal).
    """
    return _ConvPool.apply(x, w, b, padding)[0]
