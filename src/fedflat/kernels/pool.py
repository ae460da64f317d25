"""2x2 max-pooling as plain operations on channels-last images, which a compiler fuses with what stands around them.

A CPU, where nothing is compiled, takes PyTorch's own.

With x: [B, C, 2h, 2w] and the corners k = 0 … 3 of a window in reading order:

    y[s,c,i,j] = x[s,c,2i+k₀,2j+k₁] for the first corner k of the largest value
    gx[s,c,2i+k₀,2j+k₁] = g[s,c,i,j] at that corner, 0 at the others
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _MaxPool(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        windows = x.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
        best = windows[:, :, 0, :, 0]
        corner = torch.zeros_like(best, dtype=torch.uint8)
        for k in (1, 2, 3):
            other = windows[:, :, k // 2, :, k % 2]
            better = (other > best) | (other != other)  # a number that is none spreads, as in torch
            best, corner = torch.where(better, other, best), torch.where(better, k, corner)
        return best.permute(0, 3, 1, 2), corner

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
        (corner,) = ctx.saved_tensors
        k = torch.arange(4, dtype=torch.uint8, device=g.device).view(2, 1, 2, 1)
        picked = corner[:, :, None, :, None] == k
        spread = torch.where(picked, g.permute(0, 2, 3, 1)[:, :, None, :, None], 0)
        return spread.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


def max_pool(x: Tensor) -> Tensor:
    """torch.nn.functional.max_pool2d(x, 2); an odd last row or column is left out."""
    if not x.is_cuda:
        return F.max_pool2d(x, 2)
    return spread_pool(x)


def spread_pool(x: Tensor) -> Tensor:
    """`max_pool` by the operations above."""
    height, width = (n // 2 * 2 for n in x.shape[2:])
    return _MaxPool.apply(x[:, :, :height, :width])[0]
