"""A data set in memory: samples, labels and how to use them; built from arrays, or with a part held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.random import hash_words, purpose_key
from fedflat.errors import UserError

MAX_CLASSES = 1_000_000  # a larger label is taken for a mistake, since the model has one output per class


class Augment(NamedTuple):
    """Random changes of training images, drawn for each sample anew in every epoch. The default changes nothing.

    Args:
        crop: pixels, 0 or more. Pad the image by this many on every side, then crop it back to its size at a random
            offset. 0 is off.
        flip: mirror the image left-right with probability 1/2.
        cutout: side in pixels, 0 or more, of a square that is set to the mean (0 after normalisation). Its centre is a
            random pixel. 0 is off.
        reflect: pad with the mirrored image instead of black; only used with `crop`.
        per_batch: change all images of a batch alike; without it each by itself.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0
    reflect: bool = False
    per_batch: bool = False


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with their labels. `Dataset.from_arrays` checks and converts numpy arrays.

    A sample x enters the model as (x / 255 - mean) / std if it is uint8, else as (x - mean) / std.

    Args:
        name: what reports call the data set.
        x: training samples: images uint8 [n, channels, height, width] with values 0 to 255, or floats [n, ...].
        y: training labels, int64 [n], from 0 to classes - 1.
        x_test: test samples, of the dtype and the sample shape of `x`.
        y_test: test labels, int64, one per test sample.
        classes: number of classes, which is the number of outputs of the model.
        mean: subtracted from the samples (images: after scaling to [0, 1]); one number, or one per channel.
        std: divides the samples after that; more than 0, as many numbers as `mean`.
        augment: random changes of the training images.
        owner: the client of each training sample, int64 [n], numbered from 0; -1 for samples of no client. None if
            the data do not name clients. The partition "natural" uses it.
        fingerprint: a checksum of what was read from files; "" for data of Python, whose checksum is in their name.
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
    fingerprint: str = ""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample; a sample that is no image counts as channels of one pixel."""
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
        """Return a data set made of arrays. Images are divided by 255 and not normalised further.

        Args:
            x: training samples, at least one: images uint8 [n, channels, height, width] with values 0 to 255, or
                floating-point numbers [n, ...] that are finite in float32, to which they are converted.
            y: training labels, whole numbers [n] from 0 to 999,999. The number of classes is the largest label of
                `y` and `y_test` plus 1.
            x_test: test samples, of the same dtype and sample shape as `x`.
            y_test: test labels, one per test sample.
            clients: for each client, the row numbers (0 to n - 1) of its training samples. A row belongs to one
                client at most. None: the data name no clients, and a partition assigns the rows.
            name: what reports call the data set.

        Raises:
            UserError: an array is of another kind, or the arrays do not fit together.
        """
        tensors = check_arrays("data", x, y, x_test, y_test)
        return cls(name, *tensors, tensors.classes, owner=owners_from_clients(clients, len(tensors.y)))


def default_partition(dataset: Dataset) -> str:
    """Return the partition that "auto" stands for: "natural" if the data name their clients, else "dirichlet"."""
    return "dirichlet" if dataset.owner is None else "natural"


class TrainTestTensors(NamedTuple):
    """Training and test samples with their labels."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def classes(self) -> int:
        """The largest label plus 1, whether or not all smaller labels occur."""
        return 1 + int(max(self.y.max(), self.y_test.max()))


def check_arrays(source: object, x: Any, y: Any, x_test: Any, y_test: Any) -> TrainTestTensors:
    """Convert four arrays to tensors; raise UserError about `source`, where they come from, if they cannot be used."""
    tensors = TrainTestTensors(
        _check_samples(source, "training samples", x),
        check_labels(source, "training labels", y),
        _check_samples(source, "test samples", x_test),
        check_labels(source, "test labels", y_test),
    )
    for split, samples, labels in (("training", tensors.x, tensors.y), ("test", tensors.x_test, tensors.y_test)):
        if len(samples) != len(labels):
            raise UserError(
                None, source, f"{len(samples)} {split} samples with {len(labels)} labels; give one label each"
            )
    train, test = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape[1:])}" for t in (tensors.x, tensors.x_test))
    if train != test:
        raise UserError(None, source, f"training samples are {train} and test samples {test}; all must be of one kind")
    return tensors


def _as_array(source: object, what: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(None, source, f"{what} cannot be read as an array ({error})") from error


def _check_samples(source: object, what: str, values: Any) -> Tensor:
    """Return uint8 images as they are and other samples as float32; single numbers become vectors of length 1."""
    array = _as_array(source, what, values)
    if not array.size or not array.ndim:
        raise UserError(None, source, f"{what} have shape {list(array.shape)}; give at least one")
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise UserError(
            None, source, f"{what} are {array.dtype}; allowed are uint8 for images and floating-point numbers"
        )
    array = array[:, None] if array.ndim == 1 else array
    array = array if array.dtype == np.uint8 else _finite_float32(source, what, array)
    return torch.from_numpy(np.require(array, None, ["C", "W"]))


def _finite_float32(source: object, what: str, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinite and are refused below
        floats = array.astype(np.float32, copy=False)
    if bad := int((~np.isfinite(floats)).sum()):
        problem = f"{what} hold {bad} of {floats.size} numbers that are not finite in 32 bits (NaN or infinite)"
        raise UserError(None, source, problem)
    return floats


def check_labels(source: object, what: str, values: Any) -> Tensor:
    """Return labels as int64; raise UserError if they are not a list of whole numbers from 0 to MAX_CLASSES - 1."""
    labels = _as_array(source, what, values)
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or labels.min(initial=0) < 0:
        raise UserError(None, source, f"{what} must be a list of whole numbers from 0")
    if (largest := labels.max(initial=0)) >= MAX_CLASSES:
        raise UserError(
            None,
            source,
            f"{what}: the largest is {largest}; number the classes from 0 (at most {MAX_CLASSES:,} are possible)",
        )
    return torch.from_numpy(labels.astype(np.int64))


def owners_from_clients(clients: Sequence[Sequence[int]] | None, samples: int) -> Tensor | None:
    """Return the client of each sample, -1 if it has none, from the row numbers of each client."""
    if clients is None:
        return None
    row_lists = list(clients) if isinstance(clients, Iterable) and not isinstance(clients, Mapping | str) else []
    if not row_lists:
        raise UserError(None, "clients", "give a list that has, for each client, the list of its row numbers")
    owner = np.full(samples, -1, dtype=np.int64)
    for client, values in enumerate(row_lists):
        rows = _check_rows(client, values, samples)
        if len(np.unique(rows)) < len(rows) or (owner[rows] >= 0).any():
            raise UserError(
                None, "clients", f"a row of client {client} is given twice; every row belongs to one client"
            )
        owner[rows] = client
    return torch.from_numpy(owner)


def _check_rows(client: int, values: Any, samples: int) -> np.ndarray:
    """Return the row numbers of one client; raise UserError if there are none or they cannot be row numbers."""
    rows = _as_array("clients", f"client {client}", values)
    if rows.ndim == 1 and not rows.size:
        raise UserError(None, "clients", f"client {client} has no data; give each client a list of row numbers")
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        advice = "give each client a list of row numbers (np.flatnonzero makes one of a mask)"
        raise UserError(None, "clients", f"client {client} is {rows.dtype} {list(rows.shape)}; {advice}")
    if outside := rows[(rows < 0) | (rows >= samples)].tolist():
        raise UserError(None, "clients", f"client {client} has row {outside[0]}; rows are 0 to {samples - 1}")
    return rows


def hold_out(dataset: Dataset, share: float) -> Dataset:
    """Replace the test set by a share of the training samples, so that options can be chosen without the test set.

    The samples are chosen by a hash of their row number: equal shares of equal data hold out the same samples.

    Args:
        dataset: the data set, which is not changed.
        share: part of the training samples to hold out, from 0 to 1; 0 returns the data set itself.

    Raises:
        UserError: no sample or every sample would be held out.
    """
    if not share:
        return dataset
    order = hash_words(purpose_key("hold out"), torch.arange(len(dataset.y))).argsort(stable=True)
    count = round(share * len(dataset.y))
    if not 0 < count < len(dataset.y):
        problem = f"would hold out {count} of {len(dataset.y)} samples; hold out some, not all"
        raise UserError("validation", share, problem)
    held, kept = order[:count].sort().values, order[count:].sort().values
    owner = None if dataset.owner is None else _renumber_clients(dataset.owner[kept])
    x, y = dataset.x, dataset.y
    return replace(dataset, x=x[kept], y=y[kept], x_test=x[held], y_test=y[held], owner=owner)


def _renumber_clients(owner: Tensor) -> Tensor:
    """Number the clients that still have samples 0, 1, …; -1 stays for samples of no client."""
    owned = owner >= 0
    numbers = torch.full_like(owner, -1)
    numbers[owned] = owner[owned].unique(return_inverse=True)[1]
    return numbers
