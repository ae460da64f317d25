"""Operators over lanes (many clients, each with its own weights, in one launch) as layers of a model."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.engine.kernels import lanes
from fedflat.engine.kernels.conv import conv2d, conv_pool2d

__all__ = ["LaneConv2d", "conv2d", "use_lane_ops"]


class LaneConv2d(nn.Conv2d):
    """nn.Conv2d whose vmap over clients is one launch per pass instead of a grouped convolution."""

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, self.bias)

    def _convolve(self, x: Tensor, bias: Tensor | None) -> Tensor:
        assert isinstance(self.padding, tuple)
        return conv2d(x, self.weight, bias, self.stride, self.padding, self.dilation, self.groups)


class LaneConvPool(LaneConv2d):
    """Convolution, ReLU and 2x2 max-pooling, one operator where a GPU has a kernel for it.

    Elsewhere in the order that touches least memory: pool(relu(conv(x) + b)) = relu(pool(conv(x)) + b), for adding b
    and ReLU are monotone.
    """

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.padding, tuple)
        if lanes.has_triton_kernel(x, self.weight, (self.stride, self.padding, self.dilation, self.groups)):
            return conv_pool2d(x, self.weight, self.bias, self.padding)
        y = F.max_pool2d(self._convolve(x, None), 2)
        return torch.relu(y if self.bias is None else y + self.bias[:, None, None])


def use_lane_ops(model: nn.Module) -> nn.Module:
    """A copy of `model` with every zero-padded nn.Conv2d made a LaneConv2d; parameters keep names and values.

    In an nn.Sequential that is called as a whole, a ReLU and a 2x2 max-pooling that follow are taken into a
    LaneConvPool. Subclasses of these layers stay as they are, since they may compute something else.
    """
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros" and isinstance(module.padding, tuple):
            module.__class__ = LaneConv2d
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for sequence in _called_whole(model):
        _take_in_pooling(sequence, uses)
    return model


def _called_whole(module: nn.Module) -> Iterator[nn.Sequential]:
    """The sequences none of whose layers is called by itself, as other people's modules may do with theirs."""
    if type(module) is nn.Sequential:
        yield module
    elif not type(module).__module__.startswith("fedflat.models."):
        return
    for child in module.children():
        yield from _called_whole(child)


def _take_in_pooling(sequence: nn.Sequential, uses: Counter[int]) -> None:
    """Make each conv, ReLU, max-pooling in a row one layer; the places of the others stay, empty.

    Not a convolution in several places, which may have others behind it there.
    """
    for place in range(len(sequence) - 2):
        conv, relu, pool = (sequence[place + n] for n in range(3))
        plain = type(conv) is LaneConv2d and uses[id(conv)] == 1
        if plain and type(relu) is nn.ReLU and _is_plain_pooling(pool):
            conv.__class__ = LaneConvPool
            sequence[place + 1], sequence[place + 2] = nn.Identity(), nn.Identity()


def _is_plain_pooling(layer: nn.Module) -> bool:
    """Whether a layer takes the largest of each 2x2 pixels and no more."""
    if type(layer) is not nn.MaxPool2d:
        return False
    pairs = [(n, n) if isinstance(n, int) else tuple(n) for n in (layer.kernel_size, layer.stride, layer.padding)]
    plain = not layer.ceil_mode and not layer.return_indices and layer.dilation in (1, (1, 1))
    return plain and pairs == [(2, 2), (2, 2), (0, 0)]
