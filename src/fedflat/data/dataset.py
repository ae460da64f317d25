"""A data set in memory: samples, labels and what is known of them; made from arrays, or with a part held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedflat.data.arrays import halves, owners


class Augment(NamedTuple):
    """Random changes of training images, drawn per sample; sizes in pixels, 0 is off."""

    crop: int = 0  # pad by this much on every side, then crop back to the original size
    flip: bool = False  # mirror left-right with probability 1/2
    cutout: int = 0  # side of a square set to the mean (0 after normalisation), centred on a random pixel
    reflect: bool = False  # pad with the mirrored image instead of black


@dataclass(frozen=True)
class Dataset:
    """Training and test samples. Images are uint8 [n, channels, height, width]; float samples are used as they are.

    `owner`, where the data have natural clients, numbers the client of each training sample.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: Augment = field(default_factory=Augment)
    owner: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample; what is no image counts as channels of one pixel."""
        sizes = self.x.shape[1:] if self.x.dim() <= 4 else [self.x[0].numel()]
        channels, height, width = (*sizes, 1, 1)[:3]
        return int(channels), int(height), int(width)

    @classmethod
    def from_arrays(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        x_test: np.ndarray,
        y_test: np.ndarray,
        clients: Sequence[Sequence[int]] | None = None,
        name: str = "own",
    ) -> Dataset:
        """A data set from arrays; `clients` lists the training rows of each client (partition "natural").

        Samples are uint8 images [n, channels, height, width] or floats [n, ...], labels whole numbers from 0.
        """
        found = halves("data", x, y, x_test, y_test)
        return cls(name, *found, found.classes, owner=owners(clients, len(found.y)))


def usual_partition(dataset: Dataset) -> str:
    """What --partition auto means: natural where the data say whose they are."""
    return "dirichlet" if dataset.owner is None else "natural"
