"""One hidden layer, for any input: the quickest model, for tests and first steps."""

from __future__ import annotations

import math

from torch import nn

from fedflat.models.layers import Classifier, Shape


def mlp(shape: Shape, classes: int) -> Classifier:
    """Flatten, 64 hidden units with ReLU, linear head."""
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU()), nn.Linear(64, classes))
