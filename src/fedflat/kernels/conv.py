"""A 2-d convolution that stays one operator when clients are vmapped over, and its gradients.

With x: [B, C, H, W], w: [O, C/groups, kh, kw], b: [O], g: [B, O, OH, OW] (stride 1, no padding, for legibility):

    conv         y[s,o,i,j]  = b[o] + Σ_{c,u,v} w[o,c,u,v] x[s,c,i+u,j+v]
    input_grad   gx[s,c,i,j] = Σ_{o,u,v} w[o,c,u,v] g[s,o,i−u,j−v]
    weight_grad  gw[o,c,u,v] = Σ_{s,i,j} g[s,o,i,j] x[s,c,i+u,j+v]

The three are bilinear and are each other's gradients, so derivatives of any order exist. `how` is always
(stride, padding, dilation, groups). Each has a twin over lanes, with one more leading dimension on every tensor,
to which vmap maps it; fedflat.kernels.lanes computes the twins.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op
from torch.nn.grad import conv2d_input, conv2d_weight

from fedflat.kernels import lanes

_HOW = "int[] stride, int[] padding, int[] dilation, int groups"


_CONV = f"(Tensor x, Tensor w, Tensor? b, {_HOW}) -> Tensor"


_INPUT = f"(Tensor g, Tensor w, int[] size, {_HOW}) -> Tensor"


_WEIGHT = f"(Tensor g, Tensor x, int[] size, {_HOW}) -> Tensor"


@custom_op("fedflat::conv", mutates_args=(), schema=_CONV)
def _conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    return F.conv2d(x, w, b, *how)


@custom_op("fedflat::conv_input_grad", mutates_args=(), schema=_INPUT)
def _input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """`size` is the height and width of the input."""
    return conv2d_input([g.shape[0], w.shape[1] * how[3], *size], w, g, *how).contiguous()


@custom_op("fedflat::conv_weight_grad", mutates_args=(), schema=_WEIGHT)
def _weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """`size` is the height and width of the filters."""
    return conv2d_weight(x, [g.shape[1], x.shape[1] // how[3], *size], g, *how).contiguous()


_lane_conv = custom_op("fedflat::lane_conv", lanes.conv, mutates_args=(), schema=_CONV)


_lane_input_grad = custom_op("fedflat::lane_conv_input_grad", lanes.input_grad, mutates_args=(), schema=_INPUT)


_lane_weight_grad = custom_op("fedflat::lane_conv_weight_grad", lanes.weight_grad, mutates_args=(), schema=_WEIGHT)


_conv.register_fake(F.conv2d)


_input_grad.register_fake(lambda g, w, size, *how: g.new_empty(g.shape[0], w.shape[1] * how[3], *size))


_weight_grad.register_fake(lambda g, x, size, *how: g.new_empty(g.shape[1], x.shape[1] // how[3], *size))


_lane_conv.register_fake(lanes.empty_conv)


_lane_input_grad.register_fake(lanes.empty_input_grad)


_lane_weight_grad.register_fake(lanes.empty_weight_grad)


def _twin(op: Any, plain: Any, a: Tensor, b: Tensor, how: Any) -> Any:
    """The twin over lanes: an operator of its own, or plain operations around the Triton kernels."""
    return plain if lanes.covered(a, b, how) else op


def stack(t: Tensor, dim: int | None, count: int) -> Tensor:
    """The lanes of t in front; a tensor all lanes share is repeated without a copy."""
    return t.expand(count, *t.shape) if dim is None else t.movedim(dim, 0)


def _shared(op: Any, t: Tensor, dim: int | None, count: int, *rest: Any) -> Tensor:
    """op where all lanes have the same weights: one lane whose batch is everyone's."""
    return op(stack(t, dim, count).flatten(0, 1)[None], *rest)[0].unflatten(0, (count, -1))


@_conv.register_vmap
def _(info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> tuple[Tensor, int]:
    twin = _twin(_lane_conv, lanes.conv, x, w, how)
    if dims[1] is None and dims[2] is None:
        bias = None if b is None else b[None]
        return _shared(twin, x, dims[0], info.batch_size, w[None], bias, *how), 0
    stacked = [None if t is None else stack(t, d, info.batch_size) for t, d in zip((x, w, b), dims, strict=False)]
    return twin(*stacked, *how), 0


@_input_grad.register_vmap
def _(info: Any, dims: Any, g: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, int]:
    twin = _twin(_lane_input_grad, lanes.input_grad, g, w, rest[1:])
    if dims[1] is None:
        return _shared(twin, g, dims[0], info.batch_size, w[None], *rest), 0
    return twin(*(stack(t, d, info.batch_size) for t, d in zip((g, w), dims, strict=False)), *rest), 0


@_weight_grad.register_vmap
def _(info: Any, dims: Any, g: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    twin = _twin(_lane_weight_grad, lanes.weight_grad, g, x, rest[1:])
    return twin(*(stack(t, d, info.batch_size) for t, d in zip((g, x), dims, strict=False)), *rest), 0


class _Bilinear(torch.autograd.Function):
    """What the three operators share: they save their two factors and how they were combined."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.how = inputs[-4:]


class _Conv(_Bilinear):
    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
        return _conv(x, w, b, *how)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), needs = ctx.saved_tensors, ctx.needs_input_grad
        gx = InputGrad.apply(g, w, x.shape[2:], *ctx.how) if needs[0] else None
        gw = WeightGrad.apply(g, x, w.shape[2:], *ctx.how) if needs[1] else None
        return gx, gw, g.sum((0, 2, 3)) if needs[2] else None, None, None, None, None


class InputGrad(_Bilinear):
    @staticmethod
    def forward(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
        return _input_grad(g, w, size, *how)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        (g, w), needs = ctx.saved_tensors, ctx.needs_input_grad
        gg = _Conv.apply(h, w, None, *ctx.how) if needs[0] else None
        gw = WeightGrad.apply(g, h, w.shape[2:], *ctx.how) if needs[1] else None
        return gg, gw, None, None, None, None, None


class WeightGrad(_Bilinear):
    @staticmethod
    def forward(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
        return _weight_grad(g, x, size, *how)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        (g, x), needs = ctx.saved_tensors, ctx.needs_input_grad
        gg = _Conv.apply(x, h, None, *ctx.how) if needs[0] else None
        gx = InputGrad.apply(g, h, x.shape[2:], *ctx.how) if needs[1] else None
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
    """torch.nn.functional.conv2d on a batch of images, fast under vmap(grad(...))."""
    return _Conv.apply(x, w, b, stride, padding, dilation, groups)
