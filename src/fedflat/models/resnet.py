"""ResNets for small images (He et al., 2016): 3x3 stem without pooling, stages of 64, 128, 256 and 512 channels.

Four variants: `resnet18` and `resnet10` with batch statistics (FedSOL), `resnet18-gn` with GroupNorm (FedGloSS),
`resnet18-nonorm` without any normalisation (FedGF). Convolutions have no bias in any of them.
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
    image_sides,
)

Norm = Callable[[int], nn.Module]


class ConvNorm(nn.Module):
    """A convolution and the normalisation after it. `mask` is passed on to layers that look across the batch."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = norm(outputs)

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        return self.norm(self.conv(x), *mask)


class ResNetBlock(nn.Module):
    """y = relu(f₂(relu(f₁(x))) + s(x)), where s is a 1x1 convolution where the shape changes, else the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride, norm)
        self.second = ConvNorm(outputs, outputs, 3, 1, norm)
        self.shortcut = ConvNorm(inputs, outputs, 1, stride, norm) if (inputs, 1) != (outputs, stride) else None

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        y = self.second(F.relu(self.first(x, *mask)), *mask)
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x, *mask)))


class ResNetBody(nn.Module):
    """Stem, four stages of `depth` blocks each, global average pooling: [B, C, H, W] -> [B, 512]."""

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
    """Two blocks a stage, normalised by the statistics of the batch at hand."""
    image_sides("resnet18", shape, least=8)
    return BatchClassifier(ResNetBody(2, BatchNorm), nn.Linear(512, classes))


def resnet10(shape: Shape, classes: int) -> BatchClassifier:
    """One block a stage, normalised by the statistics of the batch at hand."""
    image_sides("resnet10", shape, least=8)
    return BatchClassifier(ResNetBody(1, BatchNorm), nn.Linear(512, classes))


def resnet18_gn(shape: Shape, classes: int) -> Classifier:
    """GroupNorm with 2 groups: FedGloSS does not print the number, its released code uses 2 in a smaller ResNet."""
    image_sides("resnet18-gn", shape, least=8)
    return Classifier(ResNetBody(2, lambda channels: GroupNorm(2, channels)), nn.Linear(512, classes))


def resnet18_nonorm(shape: Shape, classes: int) -> Classifier:
    """No normalisation anywhere."""
    image_sides("resnet18-nonorm", shape, least=8)
    return Classifier(ResNetBody(2, nn.Identity), nn.Linear(512, classes))
