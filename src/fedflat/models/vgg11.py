"""VGG-11 without normalisation (Simonyan and Zisserman, 2015) for 32x32 images, as in FedSOL."""

from __future__ import annotations

import math

from torch import nn

from fedflat.models.layers import Classifier, Colour, Shape, image_sides

# Output channels of the convolutions between poolings.
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(shape: Shape, classes: int) -> Classifier:
    """Eight 3x3 convolutions in five pooled stages, two hidden layers of 512 units; smaller images grow to 32x32."""
    image_sides("vgg11", shape, least=1, most=32)
    hidden = (nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    features = nn.Sequential(Colour(), nn.UpsamplingNearest2d(size=(32, 32)), *_convolutions(), nn.Flatten(), *hidden)
    return Classifier(features, nn.Linear(512, classes))


def _convolutions() -> list[nn.Module]:
    layers: list[nn.Module] = []
    inputs = 3
    for stage in STAGES:
        for outputs in stage:
            layers += [_convolution(inputs, outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return layers


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3x3 with weights from N(0, 2 / (9 outputs)) and zero bias."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * outputs)))
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    return convolution
