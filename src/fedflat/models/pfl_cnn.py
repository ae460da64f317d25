"""The CNN of the pfl-research benchmark on CIFAR-10 (Granqvist et al., 2024), with dropout."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.models.layers import BatchClassifier, BatchInfo, Colour, Dropout, Shape, image_sides


class Body(nn.Module):
    """Two unpadded 3x3 convolutions (32, 64 channels) with ReLU, one 2x2 max-pooling, 128 hidden units."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        layers = (Colour(), nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.dropout1 = Dropout(0.25, number=1)
        self.hidden = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dropout2 = Dropout(0.5, number=2)

    def forward(self, x: Tensor, batch: BatchInfo) -> Tensor:
        x = self.dropout1(self.convolutions(x), batch.key)
        return self.dropout2(F.relu(self.hidden(x)), batch.key)


def pfl_cnn(shape: Shape, classes: int) -> BatchClassifier:
    """Dropout of 1/4 after the pooling and of 1/2 before the head."""
    return BatchClassifier(Body(*image_sides("pfl-cnn", shape, least=6)), nn.Linear(128, classes))
