"""A vector of parameters, cut into parts of which every matrix begins at a multiple of 16 bytes.

A GPU multiplies matrices that begin elsewhere several times slower. They do where the parameters before them are
odd in number, such as the single temperature of an attention layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ENTRIES = 8  # 16 bytes in 16 bits


class Alignment(NamedTuple):
    """How to cut a vector.

    Args:
        pieces: lengths of the pieces that are copied, each to a multiple of 16 bytes.
        starts: where the parts begin in the copy.
        sizes: the sizes of the parts.
    """

    pieces: list[int]
    starts: list[int]
    sizes: list[int]


def find_alignment(shapes: Iterable[torch.Size]) -> Alignment | None:
    """Return how to cut a vector of parameters with these shapes; None if all matrices are where they should be.

    Filters of convolutions are not looked at, because the kernels copy them anyway.
    """
    cuts, starts, sizes, end, total = [0], list[int](), list[int](), 0, 0
    for shape in shapes:
        if len(shape) in (2, 3) and end % ENTRIES:
            cuts.append(total)
            end += -end % ENTRIES
        starts.append(end)
        sizes.append(shape.numel())
        end, total = end + sizes[-1], total + sizes[-1]
    if len(cuts) == 1:
        return None
    return Alignment([b - a for a, b in pairwise([*cuts, total])], starts, sizes)


class _SplitAligned(torch.autograd.Function):
    """The parts, as views of an aligned copy; the gradient is put together at once, without the copy's gaps."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, alignment: Alignment) -> tuple[Tensor, ...]:
        copy = torch.cat([F.pad(piece, (0, -len(piece) % ENTRIES)) for piece in w.split(alignment.pieces)])
        return tuple(copy[a : a + n] for a, n in zip(alignment.starts, alignment.sizes, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.cat(gradients), None


def split_aligned(w: Tensor, alignment: Alignment) -> tuple[Tensor, ...]:
    """Cut a vector into its parts.

    Args:
        w: all parameters, [P].
        alignment: what `find_alignment` returned.
    """
    return _SplitAligned.apply(w, alignment)
