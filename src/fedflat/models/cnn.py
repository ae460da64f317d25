"""Convolutional networks of the papers, from an MLP for tests to VGG-11 and MobileNetV2."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.models.layers import (
    BatchClassifier,
    BatchInfo,
    Classifier,
    Dropout,
    GlobalPool,
    GreyToColour,
    GroupNorm,
    Shape,
    image_sides,
)


def mlp(shape: Shape, classes: int) -> Classifier:
    """Flatten, 64 hidden units with ReLU, linear head."""
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU()), nn.Linear(64, classes))


def digits_cnn(shape: Shape, classes: int) -> Classifier:
    """Two 3x3 convolutions (16, 32 channels), each with ReLU and 2x2 max-pooling; 64 hidden units; linear head."""
    height, width = image_sides("digits-cnn", shape, least=4, multiple=4)
    features = nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), 64), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(64, classes))


def fedavg_cnn(shape: Shape, classes: int) -> Classifier:
    """Two padded 5x5 convolutions (32, 64 channels), each with ReLU and 2x2 max-pooling; 512 hidden units."""
    height, width = image_sides("fedavg-cnn", shape, least=4)
    features = nn.Sequential(
        GreyToColour(),
        *(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(512, classes))


def lenet_cnn(shape: Shape, classes: int) -> Classifier:
    """Two unpadded 5x5 convolutions (64, 64 channels), each with ReLU and 2x2 max-pooling; 384 and 192 hidden units."""
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in image_sides("lenet-cnn", shape, least=16))
    features = nn.Sequential(
        GreyToColour(),
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * rows * columns, 384), nn.ReLU()),
        *(nn.Linear(384, 192), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(192, classes))


class PflBody(nn.Module):
    """Two unpadded 3x3 convolutions (32, 64 channels) with ReLU, one 2x2 max-pooling, 128 hidden units."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        layers = (GreyToColour(), nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.dropout1 = Dropout(0.25, number=1)
        self.hidden = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dropout2 = Dropout(0.5, number=2)

    def forward(self, x: Tensor, batch: BatchInfo) -> Tensor:
        x = self.dropout1(self.convolutions(x), batch.key)
        return self.dropout2(F.relu(self.hidden(x)), batch.key)


def pfl_cnn(shape: Shape, classes: int) -> BatchClassifier:
    """Dropout of 1/4 after the pooling and of 1/2 before the head."""
    return BatchClassifier(PflBody(*image_sides("pfl-cnn", shape, least=6)), nn.Linear(128, classes))


# Output channels of the convolutions between poolings.
VGG_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(shape: Shape, classes: int) -> Classifier:
    """Eight 3x3 convolutions in five pooled stages, two hidden layers of 512 units; smaller images grow to 32x32."""
    image_sides("vgg11", shape, least=1, most=32)
    hidden = (nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    features = nn.Sequential(
        GreyToColour(), nn.UpsamplingNearest2d(size=(32, 32)), *_vgg_convolutions(), nn.Flatten(), *hidden
    )
    return Classifier(features, nn.Linear(512, classes))


def _vgg_convolutions() -> list[nn.Module]:
    layers: list[nn.Module] = []
    inputs = 3
    for stage in VGG_STAGES:
        for outputs in stage:
            layers += [_vgg_convolution(inputs, outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return layers


def _vgg_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3x3 with weights from N(0, 2 / (9 outputs)) and zero bias."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * outputs)))
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    return convolution


MOBILENET_GROUPS = 8


# Table 2 of the paper: expansion, output channels, repeats, stride of the first repeat.
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class AddInput(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def mobilenetv2(shape: Shape, classes: int) -> Classifier:
    """Stem, 17 inverted residual blocks, 1280 features, linear head."""
    image_sides("mobilenetv2", shape, least=32)
    ends = (*_conv_norm(MOBILENET_STAGES[-1][1], 1280, 1), nn.ReLU6(), GlobalPool())
    features = nn.Sequential(GreyToColour(), *_conv_norm(3, 32, 3, stride=2), nn.ReLU6(), *_mobilenet_blocks(), *ends)
    return Classifier(features, nn.Linear(1280, classes))


def _mobilenet_blocks() -> list[nn.Module]:
    blocks: list[nn.Module] = []
    inputs = 32
    for expansion, outputs, repeats, stride in MOBILENET_STAGES:
        for repeat in range(repeats):
            blocks.append(_inverted_residual(inputs, outputs, expansion, stride if repeat == 0 else 1))
            inputs = outputs
    return blocks


def _inverted_residual(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
    """Widen by `expansion`, filter each channel, project back linearly; with a shortcut where the shape is kept."""
    wide = inputs * expansion
    widen = (*_conv_norm(inputs, wide, 1), nn.ReLU6()) if expansion > 1 else ()
    filtered = (*_conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU6())
    block = nn.Sequential(*widen, *filtered, *_conv_norm(wide, outputs, 1))
    return AddInput(block) if inputs == outputs and stride == 1 else block


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Conv2d, GroupNorm]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, GroupNorm(MOBILENET_GROUPS, outputs)
