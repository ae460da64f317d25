"""The CNN of FedAvg (McMahan et al., 2017) in the form FedSOL and its baselines use."""

from __future__ import annotations

from torch import nn

from fedflat.models.layers import Classifier, Colour, Shape, image_sides


def fedavg_cnn(shape: Shape, classes: int) -> Classifier:
    """Two padded 5x5 convolutions (32, 64 channels), each with ReLU and 2x2 max-pooling; 512 hidden units."""
    height, width = image_sides("fedavg-cnn", shape, least=4)
    features = nn.Sequential(
        Colour(),
        *(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(512, classes))
