"""Convolution and its gradients over lanes: x [L, B, C, H, W] with w [L, O, C/groups, kh, kw].

Four ways to the same numbers: on the CPU matrix products of patches where images are small, else a loop over lanes; on
a GPU the Triton kernels where they apply (stride 1, dense, 16 or 32 bit), else one grouped convolution. Patches and the
Triton kernels keep images channels-last, i.e. [L, B, H, W, C] in memory; the others return contiguous tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from fedflat.kernels import patches
from fedflat.kernels.tiles import few

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@cache
def _has_triton(device: torch.device) -> bool:
    """Whether Triton is there and the GPU multiplies matrices in the types of the kernels, as from A100 on."""
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def covered(t: Tensor, other: Tensor, how: tuple[Any, ...]) -> bool:
    """Whether the Triton kernels compute this convolution."""
    stride, _, dilation, groups = how
    plain = all(s == 1 for s in (*stride, *dilation, groups))
    return t.is_cuda and plain and t.dtype == other.dtype and t.dtype in _DTYPES and _has_triton(t.device)


def last(t: Tensor, w: Tensor, how: tuple[Any, ...]) -> bool:
    """Whether the result for images t and filters w is channels-last."""
    return covered(t, w, how) or patches.suits(t, w.shape[3:], how)


def plain(padding: Sequence[int]) -> tuple[Any, ...]:
    """`how` of a dense convolution of stride 1."""
    return (1, 1), padding, (1, 1), 1


def filtered(sides: Sequence[int], size: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Height and width of images with these sides after a `plain` convolution with filters of this size."""
    return [n + 2 * p - k + 1 for n, p, k in zip(sides, padding, size, strict=True)]


def empty_images(like: Tensor, channels: int, height: int, width: int, channels_last: bool) -> Tensor:
    """An uninitialised [L, B, channels, height, width] in the layout the lane operators return."""
    lanes, batch = like.shape[:2]
    if channels_last:
        return like.new_empty(lanes, batch, height, width, channels).permute(0, 1, 4, 2, 3)
    return like.new_empty(lanes, batch, channels, height, width)


def empty_conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """An uninitialised result of `conv`."""
    sizes = zip(x.shape[3:], w.shape[3:], *how[:3], strict=True)
    height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    return empty_images(x, w.shape[1], height, width, last(x, w, how))


def empty_input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """An uninitialised result of `input_grad`."""
    return empty_images(g, w.shape[2] * how[3], size[0], size[1], last(g, w, how))


def empty_weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """An uninitialised result of `weight_grad`."""
    return g.new_empty(g.shape[0], g.shape[2], x.shape[2] // how[3], *size)


def _each(op: Callable[..., Tensor], *lanes: Tensor | None) -> Tensor:
    """op on every lane, stacked."""
    count = next(t.shape[0] for t in lanes if t is not None)
    return torch.stack([op(*(None if t is None else t[i] for t in lanes)) for i in range(count)]).contiguous()


def _side_by_side(t: Tensor) -> Tensor:
    """[L, B, C, H, W] -> [B, L C, H, W]: the lanes as groups of channels."""
    return t.transpose(0, 1).flatten(1, 2)


def _apart(t: Tensor, lanes: int) -> Tensor:
    """[B, L C, H, W] -> [L, B, C, H, W] contiguous."""
    return t.unflatten(1, (lanes, -1)).transpose(0, 1).contiguous()


def _grouped(lanes: int, how: tuple[Any, ...]) -> tuple[Any, ...]:
    """`how` of a convolution that has the lanes as groups."""
    stride, padding, dilation, groups = how
    return stride, padding, dilation, lanes * groups


def grouped_conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """`conv` as one convolution whose groups are the lanes."""
    lanes, bias = x.shape[0], None if b is None else b.flatten(0, 1)
    return _apart(F.conv2d(_side_by_side(x), w.flatten(0, 1), bias, *_grouped(lanes, how)), lanes)


def grouped_input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """`input_grad` with the lanes as groups."""
    lanes, batch = g.shape[:2]
    shape = [batch, lanes * w.shape[2] * how[3], *size]
    return _apart(conv2d_input(shape, w.flatten(0, 1), _side_by_side(g), *_grouped(lanes, how)), lanes)


def grouped_weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """`weight_grad` with the lanes as groups."""
    lanes, outputs = g.shape[0], g.shape[2]
    shape = [lanes * outputs, x.shape[2] // how[3], *size]
    gw = conv2d_weight(_side_by_side(x), shape, _side_by_side(g), *_grouped(lanes, how))
    return gw.unflatten(0, (lanes, outputs)).contiguous()


def conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """y[l] = conv2d(x[l], w[l], b[l])."""
    if patches.suits(x, w.shape[3:], how):
        return patches.conv(x, w, b, how[1])
    if not x.is_cuda:
        return _each(lambda x, w, b: F.conv2d(x, w, b, *how), x, w, b)
    if not covered(x, w, how):
        return grouped_conv(x, w, b, *how)
    from fedflat.kernels import conv_launch

    return conv_launch.conv(x, w, b, how[1])


def input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """The gradient with respect to x[l] of Σ g[l] · conv2d(x[l], w[l])."""
    if patches.suits(g, w.shape[3:], how):
        return patches.input_grad(g, w, how[1])
    if not g.is_cuda:
        shape = [g.shape[1], w.shape[2] * how[3], *size]
        return _each(lambda g, w: conv2d_input(shape, w, g, *how), g, w)
    if not covered(g, w, how):
        return grouped_input_grad(g, w, size, *how)
    from fedflat.kernels import conv_launch

    return conv_launch.input_grad(g, w, how[1])


def weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """The gradient with respect to w[l] of Σ g[l] · conv2d(x[l], w[l])."""
    if patches.suits(x, size, how):
        return patches.weight_grad(g, x, size, how[1])
    if not g.is_cuda:
        shape = [g.shape[2], x.shape[2] // how[3], *size]
        return _each(lambda g, x: conv2d_weight(x, shape, g, *how), g, x)
    if not covered(g, x, how):
        return grouped_weight_grad(g, x, size, *how)
    from fedflat.kernels import conv_launch

    return conv_launch.weight_grad(g, x, size, how[1])


def _windows(z: Tensor) -> Tensor:
    """[..., H, W] -> [..., h, w, 4]: the 2x2 windows, their pixels in reading order."""
    return z.unfold(-2, 2, 2).unfold(-2, 2, 2).flatten(-2)


def conv_pool(x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]) -> tuple[Tensor, Tensor]:
    """y[l] = relu(max_pool2d(conv2d(x[l], w[l], b[l]), 2)) and the corner of each window it came from."""
    how = plain(padding)
    if not covered(x, w, how):
        y, corner = _windows(conv(x, w, b, *how)).max(-1)
        return torch.relu(y), corner.to(torch.uint8)
    from fedflat.kernels import conv_launch

    return conv_launch.conv_pool(x, w, b, padding)


def spread(g: Tensor, corner: Tensor, size: list[int]) -> Tensor:
    """[B, C, h, w] -> [B, C, *size]: g at its corner of each window, 0 elsewhere."""
    if g.is_cuda and _has_triton(g.device):
        from fedflat.kernels import conv_launch

        return conv_launch.spread(g, corner, size)
    out, (height, width) = g.new_zeros(*g.shape[:2], *size), g.shape[2:]
    for k in range(4):
        out[:, :, k // 2 : 2 * height : 2, k % 2 : 2 * width : 2] = torch.where(corner == k, g, 0)
    return out


def pool_weight_grad(g: Tensor, corner: Tensor, x: Tensor, size: list[int], padding: list[int]) -> Tensor:
    """weight_grad of the gradient that `spread` makes of g."""
    how = plain(padding)
    if not (covered(g, x, how) and few(x.shape[2])):
        spread_out = spread(g.flatten(0, 1), corner.flatten(0, 1), filtered(x.shape[3:], size, padding))
        return weight_grad(spread_out.unflatten(0, g.shape[:2]), x, size, *how)
    from fedflat.kernels import conv_launch

    return conv_launch.pool_weight_grad(g, corner, x, size, padding)
