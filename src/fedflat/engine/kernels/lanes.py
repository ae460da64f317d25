"""Convolution and its gradients over lanes: x [L, B, C, H, W] with w [L, O, C/groups, kh, kw].

On a GPU these are the Triton kernels of `launch`; on a CPU one matrix product per lane where images are small, else one
grouped convolution.
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


def few_entries(channels: int) -> bool:
    """Whether a tap has too few entries for a block of its own."""
    return channels < 32


MAX_PATCH_ENTRIES = 1_000_000  # numbers in X: beyond a processor's cache a library's convolution is faster


def suits_patches(images: Tensor, size: Sequence[int], how: tuple[Any, ...]) -> bool:
    """Whether patches of `size` from every pixel of `images` make a small matrix; strides and groups are left out."""
    stride, _, dilation, groups = how
    plain = all(s == 1 for s in (*stride, *dilation, groups))
    return not images.is_cuda and plain and images.numel() * size[0] * size[1] <= MAX_PATCH_ENTRIES


def unfold_patches(x: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """[L, B, C, H, W] -> X [L, B OH OW, kh kw C]."""
    kh, kw = size
    ph, pw = padding
    x = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, pw, pw, ph, ph)).contiguous()
    windows = x.unfold(2, kh, 1).unfold(3, kw, 1)  # [L, B, OH, OW, C, kh, kw]
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(x.shape[0], -1, kh * kw * x.shape[4])


def patch_conv(x: Tensor, w: Tensor, b: Tensor | None, padding: Sequence[int]) -> Tensor:
    """y[l] = conv2d(x[l], w[l], b[l])."""
    lanes, batch, _, height, width = x.shape
    size = w.shape[3:]
    filters = w.permute(0, 3, 4, 2, 1).reshape(lanes, -1, w.shape[1])
    X = unfold_patches(x, size, padding)
    y = torch.bmm(X, filters) if b is None else torch.baddbmm(b[:, None], X, filters)
    rows, columns = (n + 2 * p - k + 1 for n, p, k in zip((height, width), padding, size, strict=True))
    return y.view(lanes, batch, rows, columns, -1).permute(0, 1, 4, 2, 3)


def patch_input_grad(g: Tensor, w: Tensor, padding: Sequence[int]) -> Tensor:
    """The convolution of g with the filters turned round."""
    turned = w.flip(3, 4).transpose(1, 2)
    return patch_conv(g, turned, None, [k - 1 - p for k, p in zip(w.shape[3:], padding, strict=True)])


def patch_weight_grad(g: Tensor, x: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """gw[l] = X[l]ᵀ g[l]."""
    lanes, outputs = g.shape[0], g.shape[2]
    rows = g.permute(0, 1, 3, 4, 2).reshape(lanes, -1, outputs)
    gw = torch.bmm(rows.transpose(1, 2), unfold_patches(x, size, padding))
    return gw.view(lanes, outputs, *size, -1).permute(0, 1, 4, 2, 3).contiguous()


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@cache
def _has_triton(device: torch.device) -> bool:
    """Whether Triton is there and the GPU multiplies matrices in the types of the kernels, as from A100 on."""
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def has_triton_kernel(t: Tensor, other: Tensor, how: tuple[Any, ...]) -> bool:
    """Whether the Triton kernels compute this convolution."""
    stride, _, dilation, groups = how
    plain = all(s == 1 for s in (*stride, *dilation, groups))
    return t.is_cuda and plain and t.dtype == other.dtype and t.dtype in _DTYPES and _has_triton(t.device)


def is_channels_last(t: Tensor, w: Tensor, how: tuple[Any, ...]) -> bool:
    """Whether the result for images t and filters w is channels-last."""
    return has_triton_kernel(t, w, how) or suits_patches(t, w.shape[3:], how)


def dense_options(padding: Sequence[int]) -> tuple[Any, ...]:
    """`how` of a dense convolution of stride 1."""
    return (1, 1), padding, (1, 1), 1


def filtered_sides(sides: Sequence[int], size: Sequence[int], padding: Sequence[int]) -> list[int]:
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
    return empty_images(x, w.shape[1], height, width, is_channels_last(x, w, how))


def empty_input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """An uninitialised result of `input_grad`."""
    return empty_images(g, w.shape[2] * how[3], size[0], size[1], is_channels_last(g, w, how))


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


def lane_conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """y[l] = conv2d(x[l], w[l], b[l])."""
    if suits_patches(x, w.shape[3:], how):
        return patch_conv(x, w, b, how[1])
    if not x.is_cuda:
        return _each(lambda x, w, b: F.conv2d(x, w, b, *how), x, w, b)
    if not has_triton_kernel(x, w, how):
        return grouped_conv(x, w, b, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_conv(x, w, b, how[1])


def lane_input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """The gradient with respect to x[l] of Σ g[l] · conv2d(x[l], w[l])."""
    if suits_patches(g, w.shape[3:], how):
        return patch_input_grad(g, w, how[1])
    if not g.is_cuda:
        shape = [g.shape[1], w.shape[2] * how[3], *size]
        return _each(lambda g, w: conv2d_input(shape, w, g, *how), g, w)
    if not has_triton_kernel(g, w, how):
        return grouped_input_grad(g, w, size, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_input_grad(g, w, how[1])


def lane_weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """The gradient with respect to w[l] of Σ g[l] · conv2d(x[l], w[l])."""
    if suits_patches(x, size, how):
        return patch_weight_grad(g, x, size, how[1])
    if not g.is_cuda:
        shape = [g.shape[2], x.shape[2] // how[3], *size]
        return _each(lambda g, x: conv2d_weight(x, shape, g, *how), g, x)
    if not has_triton_kernel(g, x, how):
        return grouped_weight_grad(g, x, size, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_weight_grad(g, x, size, how[1])


def _windows(z: Tensor) -> Tensor:
    """[..., H, W] -> [..., h, w, 4]: the 2x2 windows, their pixels in reading order."""
    return z.unfold(-2, 2, 2).unfold(-2, 2, 2).flatten(-2)


def lane_conv_pool(x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]) -> tuple[Tensor, Tensor]:
    """y[l] = relu(max_pool2d(conv2d(x[l], w[l], b[l]), 2)) and the corner of each window it came from."""
    how = dense_options(padding)
    if not has_triton_kernel(x, w, how):
        y, corner = _windows(lane_conv(x, w, b, *how)).max(-1)
        return torch.relu(y), corner.to(torch.uint8)
    from fedflat.engine.kernels import launch

    return launch.launch_conv_pool(x, w, b, padding)


def lane_spread(g: Tensor, corner: Tensor, size: list[int]) -> Tensor:
    """[B, C, h, w] -> [B, C, *size]: g at its corner of each window, 0 elsewhere."""
    if g.is_cuda and _has_triton(g.device):
        from fedflat.engine.kernels import launch

        return launch.launch_spread(g, corner, size)
    out, (height, width) = g.new_zeros(*g.shape[:2], *size), g.shape[2:]
    for k in range(4):
        out[:, :, k // 2 : 2 * height : 2, k % 2 : 2 * width : 2] = torch.where(corner == k, g, 0)
    return out


def lane_pool_weight_grad(g: Tensor, corner: Tensor, x: Tensor, size: list[int], padding: list[int]) -> Tensor:
    """weight_grad of the gradient that `spread` makes of g."""
    how = dense_options(padding)
    if not (has_triton_kernel(g, x, how) and few_entries(x.shape[2])):
        spread_out = lane_spread(g.flatten(0, 1), corner.flatten(0, 1), filtered_sides(x.shape[3:], size, padding))
        return lane_weight_grad(spread_out.unflatten(0, g.shape[:2]), x, size, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_pool_weight_grad(g, corner, x, size, padding)
