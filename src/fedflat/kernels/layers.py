"""Layers that compute with the operators of this package, and how to put them into a model."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fedflat.kernels.conv import conv2d


class LaneConv2d(nn.Conv2d):
    """nn.Conv2d whose vmap over clients is one launch per pass instead of a grouped convolution."""

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.padding, tuple)
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def use_lane_ops(model: nn.Module) -> nn.Module:
    """A copy of `model` with every zero-padded nn.Conv2d made a LaneConv2d; parameters keep names and values.

    Subclasses of nn.Conv2d stay as they are, since they may compute something else.
    """
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros" and isinstance(module.padding, tuple):
            module.__class__ = LaneConv2d
    return model
