"""A data set in memory: samples, labels and what is known of them; made from arrays, or with a part held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.random import hash_words, purpose_key
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
        found = check_arrays("data", x, y, x_test, y_test)
        return cls(name, *found, found.classes, owner=owners_from_clients(clients, len(found.y)))


def default_partition(dataset: Dataset) -> str:
    """What --partition auto means: natural where the data say whose they are."""
    return "dirichlet" if dataset.owner is None else "natural"


MAX_CLASSES = 1_000_000  # a label beyond is taken for a mistake: the model has an output for every class


class TrainTestTensors(NamedTuple):
    """Training and test samples with their labels."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def classes(self) -> int:
        """The number of classes: the largest label counts, whether or not those below it occur."""
        return 1 + int(max(self.y.max(), self.y_test.max()))


def check_arrays(where: object, x: Any, y: Any, x_test: Any, y_test: Any) -> TrainTestTensors:
    """Tensors of four arrays that fit together; refusals begin with `where` the arrays come from."""
    found = TrainTestTensors(
        _samples(f"{where}: training samples", x),
        check_labels(f"{where}: training labels", y),
        _samples(f"{where}: test samples", x_test),
        check_labels(f"{where}: test labels", y_test),
    )
    for half, many, classes in (("training", found.x, found.y), ("test", found.x_test, found.y_test)):
        if len(many) != len(classes):
            raise UserError(f"{where}: {len(many)} {half} samples with {len(classes)} labels; give one label each")
    one, other = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape[1:])}" for t in (found.x, found.x_test))
    if one != other:
        raise UserError(f"{where}: training samples are {one} and test samples {other}; all must be of one kind")
    return found


def _array(what: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{what} cannot be read as an array ({error})") from error


def _samples(what: str, given: Any) -> Tensor:
    """uint8 images as they are, other samples as float32; single numbers become vectors of one."""
    found = _array(what, given)
    if not found.size or not found.ndim:
        raise UserError(f"{what} have shape {list(found.shape)}; give at least one")
    if found.dtype != np.uint8 and found.dtype.kind != "f":
        raise UserError(f"{what} are {found.dtype}; allowed are uint8 for images and floating-point numbers")
    found = found[:, None] if found.ndim == 1 else found
    return torch.from_numpy(np.require(found if found.dtype == np.uint8 else _floats(what, found), None, ["C", "W"]))


def _floats(what: str, found: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what 32 bits cannot hold is refused with the rest
        floats = found.astype(np.float32, copy=False)
    if wrong := int((~np.isfinite(floats)).sum()):
        raise UserError(
            f"{what} hold {wrong} of {floats.size} numbers that are not finite in 32 bits (NaN or infinite)"
        )
    return floats


def check_labels(what: str, given: Any) -> Tensor:
    """Class numbers."""
    found = _array(what, given)
    if found.dtype.kind not in "iu" or found.ndim != 1 or found.min(initial=0) < 0:
        raise UserError(f"{what} must be a list of whole numbers from 0")
    if found.max(initial=0) >= MAX_CLASSES:
        raise UserError(
            f"{what}: the largest is {found.max()}; number the classes from 0 (at most {MAX_CLASSES:,} are possible)"
        )
    return torch.from_numpy(found.astype(np.int64))


def owners_from_clients(clients: Sequence[Sequence[int]] | None, samples: int) -> Tensor | None:
    """The client of each sample, -1 where it has none, from the rows of each client."""
    if clients is None:
        return None
    given = list(clients) if isinstance(clients, Iterable) and not isinstance(clients, Mapping | str) else []
    if not given:
        raise UserError("clients: give a list that has, for each client, the list of its row numbers")
    owner = np.full(samples, -1, dtype=np.int64)
    for number, rows in enumerate(given):
        own = _client_rows(f"clients: client {number}", rows, samples)
        if len(np.unique(own)) < len(own) or (owner[own] >= 0).any():
            raise UserError(f"clients: a row of client {number} is given twice; every row belongs to one client")
        owner[own] = number
    return torch.from_numpy(owner)


def _client_rows(who: str, given: Any, samples: int) -> np.ndarray:
    """One client's row numbers."""
    rows = _array(who, given)
    if rows.ndim == 1 and not rows.size:
        raise UserError(f"{who} has no data; give each client a list of row numbers")
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        kind = f"{rows.dtype} {list(rows.shape)}"
        raise UserError(f"{who} is {kind}; give each client a list of row numbers (np.flatnonzero makes one of a mask)")
    if wrong := rows[(rows < 0) | (rows >= samples)].tolist():
        raise UserError(f"{who} has row {wrong[0]}; rows are 0 to {samples - 1}")
    return rows


def hold_out(dataset: Dataset, share: float) -> Dataset:
    """The data set with `share` of its training samples, drawn by a hash of their row, in place of the test set."""
    if not share:
        return dataset
    order = hash_words(purpose_key("hold out"), torch.arange(len(dataset.y))).argsort(stable=True)
    count = round(share * len(dataset.y))
    if not 0 < count < len(dataset.y):
        raise UserError(
            f"--validation {share}: would hold out {count} of {len(dataset.y)} samples; hold out some, not all"
        )
    held, kept = order[:count].sort().values, order[count:].sort().values
    owner = None if dataset.owner is None else _renumbered(dataset.owner[kept])
    x, y = dataset.x, dataset.y
    return replace(dataset, x=x[kept], y=y[kept], x_test=x[held], y_test=y[held], owner=owner)


def _renumbered(owner: Tensor) -> Tensor:
    """Clients 0, 1, … of those that still have samples; −1 stays for samples of none."""
    known = owner >= 0
    numbers = torch.full_like(owner, -1)
    numbers[known] = owner[known].unique(return_inverse=True)[1]
    return numbers
