"""Layers that train many clients at once: each client is a lane with its own weights, one launch serves all lanes.

use_lane_ops    replaces the convolutions of a model by those of this package
conv.py         the operators, with their gradients and their rules for vmap
fold.py         a convolution with stride as one without
lanes.py        the operators over lanes, by the fastest way of the device
launch.py       from tensors to the Triton kernels and back
tiles.py        the sizes of the kernels' tiles
run.py          runs kernels, or compiles them ahead
triton_kernels  the kernels
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.engine.kernels import lanes
from fedflat.engine.kernels.conv import conv2d, conv_pool2d
from fedflat.engine.kernels.fold import fold_stride

__all__ = ["LaneConv2d", "conv2d", "use_lane_ops"]


class LaneConv2d(nn.Conv2d):
    """nn.Conv2d which, vmapped over clients, needs one launch per pass instead of a grouped convolution."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images [B, C, H, W]."""
        return self._convolve(x, self.bias)

    def _convolve(self, x: Tensor, bias: Tensor | None) -> Tensor:
        assert isinstance(self.padding, tuple)
        if max(self.stride) > 1 and lanes.has_triton_kernel(
            x, self.weight, ((1, 1), (0, 0), self.dilation, self.groups)
        ):
            images, filters = fold_stride(x, self.weight, self.stride, self.padding)
            return conv2d(images, filters, bias, (1, 1), (0, 0), (1, 1), 1)
        return conv2d(x, self.weight, bias, self.stride, self.padding, self.dilation, self.groups)


class LaneConvPool(LaneConv2d):
    """Convolution, ReLU and 2x2 max-pooling: one operator where there is a Triton kernel for it.

    Otherwise single operations, in the order that touches least memory: pool(relu(conv(x) + b)) is computed as
    relu(pool(conv(x)) + b), which is the same because adding b and ReLU are monotone.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, rectify and pool images [B, C, H, W]."""
        assert isinstance(self.padding, tuple)
        if lanes.has_triton_kernel(x, self.weight, (self.stride, self.padding, self.dilation, self.groups)):
            return conv_pool2d(x, self.weight, self.bias, self.padding)
        y = F.max_pool2d(self._convolve(x, None), 2)
        return torch.relu(y if self.bias is None else y + self.bias[:, None, None])


def use_lane_ops(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in which every zero-padded nn.Conv2d is a LaneConv2d; parameters keep names and values.

    Convolution, ReLU and 2x2 max-pooling in a row become one LaneConvPool, if they are in an nn.Sequential that is
    called as a whole. Subclasses of these layers stay as they are, since they may compute something else.

    Args:
        model: any model; it is not changed.
    """
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros" and isinstance(module.padding, tuple):
            module.__class__ = LaneConv2d
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for sequence in _sequences_called_whole(model):
        _fuse_pooling(sequence, uses)
    return model


def _sequences_called_whole(module: nn.Module) -> Iterator[nn.Sequential]:
    """Yield the sequences that are surely called as a whole: those that no module of the user's contains.

    The user's modules may call the layers of their sequences one by one.
    """
    if type(module) is nn.Sequential:
        yield module
    elif not type(module).__module__.startswith("fedflat.models."):
        return
    for child in module.children():
        yield from _sequences_called_whole(child)


def _fuse_pooling(sequence: nn.Sequential, uses: Counter[int]) -> None:
    """Replace convolution, ReLU, max-pooling in a row by LaneConvPool, Identity, Identity.

    A convolution that is used several times stays, because other layers may follow it elsewhere. `uses` counts the uses
    of each module by its id.
    """
    for index in range(len(sequence) - 2):
        conv, relu, pool = (sequence[index + n] for n in range(3))
        used_once = type(conv) is LaneConv2d and uses[id(conv)] == 1
        if used_once and type(relu) is nn.ReLU and _is_2x2_pooling(pool):
            conv.__class__ = LaneConvPool
            sequence[index + 1], sequence[index + 2] = nn.Identity(), nn.Identity()


def _is_2x2_pooling(layer: nn.Module) -> bool:
    """Return whether a layer is max-pooling over 2x2 windows without padding, dilation or indices."""
    if type(layer) is not nn.MaxPool2d:
        return False
    pairs = [(n, n) if isinstance(n, int) else tuple(n) for n in (layer.kernel_size, layer.stride, layer.padding)]
    plain = not layer.ceil_mode and not layer.return_indices and layer.dilation in (1, (1, 1))
    return plain and pairs == [(2, 2), (2, 2), (0, 0)]
