"""The LeNet-5-like CNN of FedGF and FedGloSS (Hsu et al., 2020)."""

from __future__ import annotations

from torch import nn

from fedflat.models.layers import Classifier, Colour, Shape, image_sides


def lenet_cnn(shape: Shape, classes: int) -> Classifier:
    """Two unpadded 5x5 convolutions (64, 64 channels), each with ReLU and 2x2 max-pooling; 384 and 192 hidden units."""
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in image_sides("lenet-cnn", shape, least=16))
    features = nn.Sequential(
        Colour(),
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * rows * columns, 384), nn.ReLU()),
        *(nn.Linear(384, 192), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(192, classes))
