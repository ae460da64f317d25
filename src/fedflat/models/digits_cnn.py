"""A small CNN for the 8x8 digits of scikit-learn."""

from __future__ import annotations

from torch import nn

from fedflat.models.layers import Classifier, Shape, image_sides


def digits_cnn(shape: Shape, classes: int) -> Classifier:
    """Two 3x3 convolutions (16, 32 channels), each with ReLU and 2x2 max-pooling; 64 hidden units; linear head."""
    height, width = image_sides("digits-cnn", shape, least=4, multiple=4)
    features = nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), 64), nn.ReLU()),
    )
    return Classifier(features, nn.Linear(64, classes))
