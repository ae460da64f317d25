"""What the rest of the library knows of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.errors import UserError


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
        """Channels, height and width of a sample; plain vectors count as channels of one pixel."""
        channels, height, width = (*self.x.shape[1:], 1, 1)[:3]
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
        """A data set from arrays; `clients` lists the training rows of each client (partition "natural")."""
        xs = [torch.as_tensor(np.asarray(a)) for a in (x, x_test)]
        xs = [a if a.dtype == torch.uint8 else a.to(torch.float32) for a in xs]
        ys = [_labels(a) for a in (y, y_test)]
        for part, samples, labels in zip(("training", "test"), xs, ys, strict=True):
            if len(samples) != len(labels) or not len(labels):
                raise UserError(f"data: {len(samples)} {part} samples with {len(labels)} labels; give one label each")
        classes = int(torch.cat(ys).max()) + 1
        return cls(name, xs[0], ys[0], xs[1], ys[1], classes, owner=_owners(clients, len(ys[0])))


def _labels(y: np.ndarray) -> Tensor:
    """Class numbers; anything else is refused."""
    labels = torch.as_tensor(np.asarray(y))
    if labels.dtype.is_floating_point or labels.dim() != 1 or bool((labels < 0).any()):
        raise UserError("data: labels must be a list of whole numbers from 0")
    return labels.to(torch.int64)


def _owners(clients: Sequence[Sequence[int]] | None, samples: int) -> Tensor | None:
    """The client of each sample, -1 where it has none."""
    if clients is None:
        return None
    owner = np.full(samples, -1, dtype=np.int64)
    for number, rows in enumerate(map(np.asarray, clients)):
        if not len(rows) or rows.dtype.kind not in "iu":
            raise UserError(f"clients: client {number} has no data; give each client a list of row numbers")
        if rows.min() < 0 or rows.max() >= samples:
            raise UserError(f"clients: client {number} has row {rows.max()}; rows are 0 to {samples - 1}")
        if len(np.unique(rows)) < len(rows) or (owner[rows] >= 0).any():
            raise UserError(f"clients: a row of client {number} is given twice; every row belongs to one client")
        owner[rows] = number
    return torch.from_numpy(owner)
