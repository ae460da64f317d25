"""A convolution with stride as a dense one: each s x s block of pixels becomes one pixel with s² times the channels.

With k taps and stride s, output i = Σ_u w[u] x[s i + u − p]. Writing u = s a + r gives Σ_r Σ_a w[s a + r] x_r[i + a],
where x_r has every s-th pixel of the padded image from r on: one dense convolution of ⌈k/s⌉ taps, whose channels are
those of all x_r. Taps beyond the filter are zeros. With k = 1 only x_0 is left, and nothing is computed in vain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor


def fold_stride(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return images x' and filters w' with conv2d(x', w') = conv2d(x, w, stride=stride, padding=padding).

    Args:
        x: images [B, C, H, W].
        w: filters [O, C, kh, kw].
        stride: vertical and horizontal stride.
        padding: vertical and horizontal padding.
    """
    for axis, s, p in zip((2, 3), stride, padding, strict=True):
        taps = -(-w.shape[axis] // s)
        outputs = (x.shape[axis] + 2 * p - w.shape[axis]) // s + 1
        used = min(s, w.shape[axis])  # of the s pixels of a block, those under a filter
        x = _fold(x, axis, p, s * (outputs + taps - 1), s, used)
        w = _fold(w, axis, 0, s * taps, s, used)
    return x, w


def _fold(t: Tensor, axis: int, before: int, length: int, stride: int, used: int) -> Tensor:
    """Pad or cut an axis to `length`, and move the first `used` of every `stride` entries to the channels (axis 1)."""
    pad = [before, length - before - t.shape[axis]]
    t = F.pad(t, pad if axis == 3 else [0, 0, *pad])
    blocks = t.unflatten(axis, (-1, stride)).narrow(axis + 1, 0, used)
    return blocks.movedim(axis + 1, 1).flatten(1, 2)
