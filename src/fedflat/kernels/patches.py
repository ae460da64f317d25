"""The convolution over lanes on a CPU as one matrix product per lane: for images so small that calls cost most.

With X[l] the matrix whose rows are the patches x[l,s,:,i:i+kh,j:j+kw] (one row for each sample s and position i, j) and
W[l] the filters as columns: y[l] = X[l] W[l], gw[l] = X[l]ᵀ g[l], and gx is the convolution of g with the filters
turned round. Images are kept channels-last, where pooling is quickest too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MOST = 1_000_000  # numbers in X: beyond a processor's cache a library's convolution is faster


def suits(images: Tensor, size: Sequence[int], how: tuple[Any, ...]) -> bool:
    """Whether patches of `size` from every pixel of `images` make a small matrix; strides and groups are left out."""
    stride, _, dilation, groups = how
    plain = all(s == 1 for s in (*stride, *dilation, groups))
    return not images.is_cuda and plain and images.numel() * size[0] * size[1] <= MOST


def unfold(x: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """[L, B, C, H, W] -> X [L, B OH OW, kh kw C]."""
    kh, kw = size
    ph, pw = padding
    x = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, pw, pw, ph, ph)).contiguous()
    windows = x.unfold(2, kh, 1).unfold(3, kw, 1)  # [L, B, OH, OW, C, kh, kw]
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(x.shape[0], -1, kh * kw * x.shape[4])


def conv(x: Tensor, w: Tensor, b: Tensor | None, padding: Sequence[int]) -> Tensor:
    """y[l] = conv2d(x[l], w[l], b[l])."""
    lanes, batch, _, height, width = x.shape
    size = w.shape[3:]
    filters = w.permute(0, 3, 4, 2, 1).reshape(lanes, -1, w.shape[1])
    X = unfold(x, size, padding)
    y = torch.bmm(X, filters) if b is None else torch.baddbmm(b[:, None], X, filters)
    rows, columns = (n + 2 * p - k + 1 for n, p, k in zip((height, width), padding, size, strict=True))
    return y.view(lanes, batch, rows, columns, -1).permute(0, 1, 4, 2, 3)


def input_grad(g: Tensor, w: Tensor, padding: Sequence[int]) -> Tensor:
    """The convolution of g with the filters turned round."""
    turned = w.flip(3, 4).transpose(1, 2)
    return conv(g, turned, None, [k - 1 - p for k, p in zip(w.shape[3:], padding, strict=True)])


def weight_grad(g: Tensor, x: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """gw[l] = X[l]ᵀ g[l]."""
    lanes, outputs = g.shape[0], g.shape[2]
    rows = g.permute(0, 1, 3, 4, 2).reshape(lanes, -1, outputs)
    gw = torch.bmm(rows.transpose(1, 2), unfold(x, size, padding))
    return gw.view(lanes, outputs, *size, -1).permute(0, 1, 4, 2, 3).contiguous()
