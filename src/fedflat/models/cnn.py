"""Convolutional networks of the papers, and two small models for tests: from an MLP to VGG-11 and MobileNetV2.

Every builder takes the images' shape (channels, height, width) and the number of classes. It raises UserError if the
model cannot take such images. Parameters start as torch draws them by default unless the docstring says otherwise.
"""

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
    check_image_shape,
)


def mlp(shape: Shape, classes: int) -> Classifier:
    """Return a network of one hidden layer for inputs of any shape: the fastest model, for tests and first steps.

    64 hidden units with ReLU, linear head.
    """
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU()), nn.Linear(64, classes))


def digits_cnn(shape: Shape, classes: int) -> Classifier:
    """Return a small CNN for the 8x8 digits of scikit-learn.

    Two padded 3x3 convolutions (16, 32 channels), each with ReLU and 2x2 max-pooling; 64 hidden units with ReLU; linear
    head. Sides must be multiples of 4.
    """
    height, width = check_image_shape("digits-cnn", shape, min_side=4, multiple=4)
    features = nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), 64), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(64, classes))


def fedavg_cnn(shape: Shape, classes: int) -> Classifier:
    """Return the CNN of FedAvg (McMahan et al., 2017) in the form that FedSOL and its baselines use.

    Two padded 5x5 convolutions (32, 64 channels), each with ReLU and 2x2 max-pooling; 512 hidden units with ReLU;
    linear head.
    """
    height, width = check_image_shape("fedavg-cnn", shape, min_side=4)
    features = nn.Sequential(
        GreyToColour(),
        *(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(512, classes))


def lenet_cnn(shape: Shape, classes: int) -> Classifier:
    """Return the CNN of FedGF and FedGloSS (Hsu et al., 2020), which resembles LeNet-5.

    Two unpadded 5x5 convolutions (64, 64 channels), each with ReLU and 2x2 max-pooling; 384 and 192 hidden units with
    ReLU; linear head.
    """
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in check_image_shape("lenet-cnn", shape, min_side=16))
    features = nn.Sequential(
        GreyToColour(),
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * rows * columns, 384), nn.ReLU()),
        *(nn.Linear(384, 192), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(192, classes))


class PflBody(nn.Module):
    """Two unpadded 3x3 convolutions (32, 64 channels) with ReLU, one 2x2 max-pooling, 128 hidden units with ReLU.

    Dropout with probability 1/4 after the pooling and 1/2 after the hidden layer.
    """

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
    """Return the CNN of the pfl-research benchmark on CIFAR-10 (Granqvist et al., 2024), with dropout."""
    return BatchClassifier(PflBody(*check_image_shape("pfl-cnn", shape, min_side=6)), nn.Linear(128, classes))


# For each stage the output channels of its convolutions; every stage ends with a pooling.
VGG_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(shape: Shape, classes: int) -> Classifier:
    """Return VGG-11 without normalisation (Simonyan and Zisserman, 2015) for 32x32 images, as in FedSOL.

    Eight padded 3x3 convolutions with ReLU in five stages, each followed by 2x2 max-pooling; two hidden layers of 512
    units with ReLU; linear head. Smaller images are enlarged to 32x32 by repeating pixels.
    """
    check_image_shape("vgg11", shape, min_side=1, max_side=32)
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
    """Return a padded 3x3 convolution with weights drawn from N(0, 2 / (9 · outputs)) and zero bias."""
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
    """A residual connection: x + inner(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def mobilenetv2(shape: Shape, classes: int) -> Classifier:
    """Return MobileNetV2 (Sandler et al., 2018) at width 1 with GroupNorm, for landmarks (Hsu et al., 2020; FedGloSS).

    A 3x3 convolution of stride 2, 17 inverted residual blocks, 1280 features, linear head. GroupNorm has 8 groups, the
    number in TensorFlow Federated's landmark task: the papers do not print one, and every width of the network is a
    multiple of 8. The original's dropout before the classifier is left out, because neither paper mentions it.
    """
    check_image_shape("mobilenetv2", shape, min_side=32)
    last = (*_conv_norm(MOBILENET_STAGES[-1][1], 1280, 1), nn.ReLU6(), GlobalPool())
    features = nn.Sequential(GreyToColour(), *_conv_norm(3, 32, 3, stride=2), nn.ReLU6(), *_mobilenet_blocks(), *last)
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
    """Return a block that widens to inputs · expansion channels, filters each of them and projects to `outputs`.

    The filter is a depthwise 3x3 convolution, the projection is linear. The block's input is added where input and
    output have the same shape.
    """
    wide = inputs * expansion
    widen = (*_conv_norm(inputs, wide, 1), nn.ReLU6()) if expansion > 1 else ()
    depthwise = (*_conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU6())
    block = nn.Sequential(*widen, *depthwise, *_conv_norm(wide, outputs, 1))
    return AddInput(block) if inputs == outputs and stride == 1 else block


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Conv2d, GroupNorm]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, GroupNorm(MOBILENET_GROUPS, outputs)
