"""ResNets for small images (He et al., 2016).

A 3x3 convolution without pooling, four stages of 64, 128, 256 and 512 channels, global average pooling, linear head.
Convolutions have no bias. The four variants differ in depth and normalisation: `resnet18` and `resnet10` normalise by
the batch (FedSOL), `resnet18-gn` by groups of channels (FedGloSS), `resnet18-nonorm` not at all (FedGF).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.models.layers import (
    BatchClassifier,
    BatchInfo,
    BatchNorm,
    Classifier,
    GlobalPool,
    GreyToColour,
    GroupNorm,
    Shape,
    check_image_shape,
)

Norm = Callable[[int], nn.Module]  # builds a normalisation layer for a number of channels


class ConvNorm(nn.Module):
    """A convolution and the normalisation after it, which gets the mask of the batch if the model takes one."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = norm(outputs)

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        return self.norm(self.conv(x), *mask)


class ResNetBlock(nn.Module):
    """y = relu(f₂(relu(f₁(x))) + s(x)); s is a 1x1 convolution if the shape changes, else the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride, norm)
        self.second = ConvNorm(outputs, outputs, 3, 1, norm)
        self.shortcut = ConvNorm(inputs, outputs, 1, stride, norm) if (inputs, 1) != (outputs, stride) else None

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        y = self.second(F.relu(self.first(x, *mask)), *mask)
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x, *mask)))


class ResNetBody(nn.Module):
    """First convolution, four stages of `depth` blocks each, global average pooling: [B, C, H, W] → [B, 512]."""

    def __init__(self, depth: int, norm: Norm) -> None:
        super().__init__()
        self.colour = GreyToColour()
        self.stem = ConvNorm(3, 64, 3, 1, norm)
        widths = (64, *(width for width in (64, 128, 256, 512) for _ in range(depth)))
        self.blocks = nn.ModuleList(ResNetBlock(a, b, 1 if a == b else 2, norm) for a, b in pairwise(widths))
        self.pool = GlobalPool()

    def forward(self, x: Tensor, *batch: BatchInfo) -> Tensor:
        mask = tuple(b.mask for b in batch)
        x = F.relu(self.stem(self.colour(x), *mask))
        for block in self.blocks:
            x = block(x, *mask)
        return self.pool(x)


def resnet18(shape: Shape, classes: int) -> BatchClassifier:
    """Return the ResNet-18 of FedSOL: two blocks per stage, normalised by the statistics of each batch."""
    check_image_shape("resnet18", shape, min_side=8)
    return BatchClassifier(ResNetBody(2, BatchNorm), nn.Linear(512, classes))


def resnet10(shape: Shape, classes: int) -> BatchClassifier:
    """Return the ResNet-10 of FedSOL's released code: one block per stage, normalised by each batch's statistics."""
    check_image_shape("resnet10", shape, min_side=8)
    return BatchClassifier(ResNetBody(1, BatchNorm), nn.Linear(512, classes))


def resnet18_gn(shape: Shape, classes: int) -> Classifier:
    """Return the ResNet-18 of FedGloSS: two blocks per stage, GroupNorm with 2 groups.

    The paper does not print the number of groups; its released code uses 2 in a smaller ResNet.
    """
    check_image_shape("resnet18-gn", shape, min_side=8)
    return Classifier(ResNetBody(2, lambda channels: GroupNorm(2, channels)), nn.Linear(512, classes))


def resnet18_nonorm(shape: Shape, classes: int) -> Classifier:
    """Return the ResNet-18 of FedGF: two blocks per stage, no normalisation."""
    check_image_shape("resnet18-nonorm", shape, min_side=8)
    return Classifier(ResNetBody(2, nn.Identity), nn.Linear(512, classes))
