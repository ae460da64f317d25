"""Convolution and its gradients over lanes: x [L, B, C, H, W] with w [L, O, C/groups, kh, kw].

Lane l is one client with filters w[l]. There are four ways to compute the same thing:

    Triton kernels       on a GPU from A100 on, if the convolution is dense: stride 1, no dilation, no groups (`launch`)
    grouped convolution  on a GPU for everything else: the lanes are groups of one torch convolution
    patches              on a CPU if images are small: one matrix product per lane, batched
    lane by lane         on a CPU otherwise: one torch convolution for each lane

`how` is always (stride, padding, dilation, groups).
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

MAX_PATCH_ENTRIES = 1_000_000  # numbers in the matrix of patches; a larger one leaves the cache and is slower
_TRITON_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def few_channels(channels: int) -> bool:
    """Return whether images have too few channels for the Triton kernels to treat each filter pixel by itself."""
    return channels < 32


def _is_dense(how: tuple[Any, ...]) -> bool:
    """Return whether a convolution has stride 1, no dilation and no groups."""
    stride, _, dilation, groups = how
    return all(s == 1 for s in (*stride, *dilation, groups))


def suits_patches(images: Tensor, size: Sequence[int], how: tuple[Any, ...]) -> bool:
    """Return whether to convolve by a matrix of patches: on a CPU, if it is dense and the matrix is small.

    Args:
        images: [L, B, C, H, W].
        size: height and width of the filters.
        how: (stride, padding, dilation, groups).
    """
    return not images.is_cuda and _is_dense(how) and images.numel() * size[0] * size[1] <= MAX_PATCH_ENTRIES


def unfold_patches(x: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return the matrix of patches X [L, B OH OW, kh kw C] of images [L, B, C, H, W]."""
    kh, kw = size
    ph, pw = padding
    x = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, pw, pw, ph, ph)).contiguous()
    windows = x.unfold(2, kh, 1).unfold(3, kw, 1)  # [L, B, OH, OW, C, kh, kw]
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(x.shape[0], -1, kh * kw * x.shape[4])


def patch_conv(x: Tensor, w: Tensor, b: Tensor | None, padding: Sequence[int]) -> Tensor:
    """Compute y[l] = conv2d(x[l], w[l], b[l]) as the matrix product X[l] w[l]ᵀ + b[l]."""
    lanes, batch = x.shape[:2]
    size = w.shape[3:]
    filters = w.permute(0, 3, 4, 2, 1).reshape(lanes, -1, w.shape[1])
    X = unfold_patches(x, size, padding)
    y = torch.bmm(X, filters) if b is None else torch.baddbmm(b[:, None], X, filters)
    return y.view(lanes, batch, *filtered_sides(x.shape[3:], size, padding), -1).permute(0, 1, 4, 2, 3)


def patch_input_grad(g: Tensor, w: Tensor, padding: Sequence[int]) -> Tensor:
    """Compute the gradient with respect to x: the convolution of g with the filters rotated by 180°."""
    rotated = w.flip(3, 4).transpose(1, 2)
    return patch_conv(g, rotated, None, [k - 1 - p for k, p in zip(w.shape[3:], padding, strict=True)])


def patch_weight_grad(g: Tensor, x: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Compute the gradient with respect to w: gw[l] = g[l]ᵀ X[l]."""
    lanes, outputs = g.shape[0], g.shape[2]
    rows = g.permute(0, 1, 3, 4, 2).reshape(lanes, -1, outputs)
    gw = torch.bmm(rows.transpose(1, 2), unfold_patches(x, size, padding))
    return gw.view(lanes, outputs, *size, -1).permute(0, 1, 4, 2, 3).contiguous()


@cache
def _has_triton(device: torch.device) -> bool:
    """Return whether Triton is installed and the GPU multiplies matrices in the kernels' types, as from A100 on."""
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def has_triton_kernel(t: Tensor, other: Tensor, how: tuple[Any, ...]) -> bool:
    """Return whether the Triton kernels can convolve these two tensors."""
    same_dtype = t.dtype == other.dtype and t.dtype in _TRITON_DTYPES
    return t.is_cuda and _is_dense(how) and same_dtype and _has_triton(t.device)


def is_channels_last(t: Tensor, w: Tensor, how: tuple[Any, ...]) -> bool:
    """Return whether the result for images t [L, B, C, H, W] and filters w is channels-last in memory."""
    return has_triton_kernel(t, w, how) or suits_patches(t, w.shape[3:], how) or _stays_channels_last(t)


def _stays_channels_last(t: Tensor) -> bool:
    """Return whether images are channels-last and on a CPU, where a convolution keeps the order that it finds."""
    return not t.is_cuda and t[0].is_contiguous(memory_format=torch.channels_last) and not t[0].is_contiguous()


def dense_options(padding: Sequence[int]) -> tuple[Any, ...]:
    """Return `how` of a dense convolution with this padding."""
    return (1, 1), padding, (1, 1), 1


def filtered_sides(sides: Sequence[int], size: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Return height and width of an image after a dense convolution.

    Args:
        sides: height and width of the image.
        size: height and width of the filters.
        padding: vertical and horizontal padding.
    """
    return [n + 2 * p - k + 1 for n, p, k in zip(sides, padding, size, strict=True)]


def empty_images(like: Tensor, channels: int, height: int, width: int, channels_last: bool) -> Tensor:
    """Return uninitialised images [L, B, channels, height, width] in the memory layout of the lane operators."""
    lanes, batch = like.shape[:2]
    if channels_last:
        return like.new_empty(lanes, batch, height, width, channels).permute(0, 1, 4, 2, 3)
    return like.new_empty(lanes, batch, channels, height, width)


def empty_conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """Return an uninitialised result of `lane_conv`."""
    sizes = zip(x.shape[3:], w.shape[3:], *how[:3], strict=True)
    height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    return empty_images(x, w.shape[1], height, width, is_channels_last(x, w, how))


def empty_input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """Return an uninitialised result of `lane_input_grad`."""
    return empty_images(g, w.shape[2] * how[3], size[0], size[1], is_channels_last(g, w, how))


def empty_weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """Return an uninitialised result of `lane_weight_grad`."""
    return g.new_empty(g.shape[0], g.shape[2], x.shape[2] // how[3], *size)


def _lane_by_lane(op: Callable[..., Tensor], *lanes: Tensor | None) -> list[Tensor]:
    """Call op on every lane."""
    count = next(t.shape[0] for t in lanes if t is not None)
    return [op(*(None if t is None else t[i] for t in lanes)) for i in range(count)]


def _stack_images(images: list[Tensor], like: Tensor) -> Tensor:
    """Stack images [B, C, H, W] of all lanes; channels-last if `like` is."""
    if _stays_channels_last(like):
        return torch.stack([t.movedim(1, -1) for t in images]).movedim(-1, 2)
    return torch.stack(images).contiguous()


def _one_input_grad(g: Tensor, w: Tensor, images: Tensor, *how: Any) -> Tensor:
    """Compute the gradient of one lane as torch.nn.grad.conv2d_input does, which ignores the layout of the images."""
    stride, padding, dilation, groups = how
    options = (stride, padding, dilation, False, [0, 0], groups)
    return torch.ops.aten.convolution_backward(g, images, w, None, *options, (True, False, False))[0]


def _lanes_to_channels(t: Tensor) -> Tensor:
    """Turn [L, B, C, H, W] into [B, L C, H, W]: each lane is a group of channels."""
    return t.transpose(0, 1).flatten(1, 2)


def _channels_to_lanes(t: Tensor, lanes: int) -> Tensor:
    """Turn [B, L C, H, W] into [L, B, C, H, W], contiguous."""
    return t.unflatten(1, (lanes, -1)).transpose(0, 1).contiguous()


def _lanes_as_groups(lanes: int, how: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `how` with the lanes as further groups."""
    stride, padding, dilation, groups = how
    return stride, padding, dilation, lanes * groups


def grouped_conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """Compute `lane_conv` as one torch convolution whose groups are the lanes."""
    lanes, bias = x.shape[0], None if b is None else b.flatten(0, 1)
    return _channels_to_lanes(
        F.conv2d(_lanes_to_channels(x), w.flatten(0, 1), bias, *_lanes_as_groups(lanes, how)), lanes
    )


def grouped_input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """Compute `lane_input_grad` with the lanes as groups."""
    lanes, batch = g.shape[:2]
    shape = [batch, lanes * w.shape[2] * how[3], *size]
    return _channels_to_lanes(
        conv2d_input(shape, w.flatten(0, 1), _lanes_to_channels(g), *_lanes_as_groups(lanes, how)), lanes
    )


def grouped_weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """Compute `lane_weight_grad` with the lanes as groups."""
    lanes, outputs = g.shape[0], g.shape[2]
    shape = [lanes * outputs, x.shape[2] // how[3], *size]
    gw = conv2d_weight(_lanes_to_channels(x), shape, _lanes_to_channels(g), *_lanes_as_groups(lanes, how))
    return gw.unflatten(0, (lanes, outputs)).contiguous()


def lane_conv(x: Tensor, w: Tensor, b: Tensor | None, *how: Any) -> Tensor:
    """Compute y[l] = conv2d(x[l], w[l], b[l]).

    Args:
        x: images [L, B, C, H, W].
        w: filters [L, O, C/groups, kh, kw].
        b: biases [L, O].
        how: stride, padding, dilation, groups.
    """
    if suits_patches(x, w.shape[3:], how):
        return patch_conv(x, w, b, how[1])
    if not x.is_cuda:
        return _stack_images(_lane_by_lane(lambda x, w, b: F.conv2d(x, w, b, *how), x, w, b), x)
    if not has_triton_kernel(x, w, how):
        return grouped_conv(x, w, b, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_conv(x, w, b, how[1])


def lane_input_grad(g: Tensor, w: Tensor, size: list[int], *how: Any) -> Tensor:
    """Compute the gradient of Σ g[l] · conv2d(x[l], w[l]) with respect to x[l].

    Args:
        g: the gradient with respect to the output [L, B, O, OH, OW].
        w: filters [L, O, C/groups, kh, kw].
        size: height and width of x.
        how: stride, padding, dilation, groups.
    """
    if suits_patches(g, w.shape[3:], how):
        return patch_input_grad(g, w, how[1])
    if not g.is_cuda:
        images = empty_input_grad(g, w, size, *how)[0]  # of which only the shape and the layout matter
        return _stack_images(_lane_by_lane(lambda g, w: _one_input_grad(g, w, images, *how), g, w), g)
    if not has_triton_kernel(g, w, how):
        return grouped_input_grad(g, w, size, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_input_grad(g, w, how[1])


def lane_weight_grad(g: Tensor, x: Tensor, size: list[int], *how: Any) -> Tensor:
    """Compute the gradient of Σ g[l] · conv2d(x[l], w[l]) with respect to w[l].

    Args:
        g: the gradient with respect to the output [L, B, O, OH, OW].
        x: images [L, B, C, H, W].
        size: height and width of the filters.
        how: stride, padding, dilation, groups.
    """
    if suits_patches(x, size, how):
        return patch_weight_grad(g, x, size, how[1])
    if not g.is_cuda:
        shape = [g.shape[2], x.shape[2] // how[3], *size]
        return torch.stack(_lane_by_lane(lambda g, x: conv2d_weight(x, shape, g, *how), g, x)).contiguous()
    if not has_triton_kernel(g, x, how):
        return grouped_weight_grad(g, x, size, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_weight_grad(g, x, size, how[1])


def _windows(z: Tensor) -> Tensor:
    """Turn [..., H, W] into its 2x2 windows [..., h, w, 4], their pixels in reading order."""
    return z.unfold(-2, 2, 2).unfold(-2, 2, 2).flatten(-2)


def lane_conv_pool(x: Tensor, w: Tensor, b: Tensor | None, padding: list[int]) -> tuple[Tensor, Tensor]:
    """Compute y[l] = relu(max_pool2d(conv2d(x[l], w[l], b[l]), 2)), and the corner of the largest pixel in each window.

    Args:
        x: images [L, B, C, H, W].
        w: filters [L, O, C, kh, kw].
        b: biases [L, O].
        padding: vertical and horizontal padding.

    Returns y and the corners 0 … 3 in reading order, both [L, B, O, h, w].
    """
    how = dense_options(padding)
    if not has_triton_kernel(x, w, how):
        y, corner = _windows(lane_conv(x, w, b, *how)).max(-1)
        return torch.relu(y), corner.to(torch.uint8)
    from fedflat.engine.kernels import launch

    return launch.launch_conv_pool(x, w, b, padding)


def lane_spread(g: Tensor, corner: Tensor, size: list[int]) -> Tensor:
    """Spread g [B, C, h, w] to [B, C, *size]: the value of g at its corner of each 2x2 window, 0 elsewhere."""
    if g.is_cuda and _has_triton(g.device):
        from fedflat.engine.kernels import launch

        return launch.launch_spread(g, corner, size)
    out, (height, width) = g.new_zeros(*g.shape[:2], *size), g.shape[2:]
    for k in range(4):
        out[:, :, k // 2 : 2 * height : 2, k % 2 : 2 * width : 2] = torch.where(corner == k, g, 0)
    return out


def lane_pool_weight_grad(g: Tensor, corner: Tensor, x: Tensor, size: list[int], padding: list[int]) -> Tensor:
    """Compute `lane_weight_grad` of the spread gradient, with few channels without storing it.

    Args:
        g: the gradient with respect to the pooled images [L, B, O, h, w].
        corner: the corners of the largest pixels, of the same shape.
        x: images [L, B, C, H, W].
        size: height and width of the filters.
        padding: vertical and horizontal padding.
    """
    how = dense_options(padding)
    if not (has_triton_kernel(g, x, how) and few_channels(x.shape[2])):
        spread_out = lane_spread(g.flatten(0, 1), corner.flatten(0, 1), filtered_sides(x.shape[3:], size, padding))
        return lane_weight_grad(spread_out.unflatten(0, g.shape[:2]), x, size, *how)
    from fedflat.engine.kernels import launch

    return launch.launch_pool_weight_grad(g, corner, x, size, padding)
