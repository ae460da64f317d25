"""A data set in memory: samples, labels and how to use them; built from arrays, or with a part held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.batch import Samples, map_samples
from fedflat.core.random import hash_words, purpose_key
from fedflat.data.arrays import as_array, check_arrays, count_outputs, input_tensors
from fedflat.data.torch_datasets import stack_samples
from fedflat.errors import UserError


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
    """Training and test samples with their targets. `Dataset.from_arrays` checks and converts numpy arrays.

    A sample x enters the model as (x / 255 - mean) / std if it is uint8, as (x - mean) / std if it is a float, and as
    it is if it is another whole number (a token).

    Args:
        name: what reports call the data set.
        x: training samples: images uint8 [n, channels, height, width] with values 0 to 255, floats [n, ...], or tokens
            int64 [n, length]. Several inputs are a tuple, or a dict by the name of the model's argument.
        y: training targets: labels int64 [n] from 0 to classes - 1; 0 or 1 for each label, int64 [n, labels]; numbers,
            float32 [n] or [n, numbers]; or tokens int64 [n, length], -100 where they do not count.
        x_test: test samples, of the dtype and the sample shape of `x`.
        y_test: test targets, one per test sample.
        classes: how many outputs the model has: classes, labels, numbers or tokens.
        mean: subtracted from the samples (images: after scaling to [0, 1]); one number, or one per channel.
        std: divides the samples after that; more than 0, as many numbers as `mean`.
        augment: random changes of the training images.
        owner: the client of each training sample, int64 [n], numbered from 0; -1 for samples of no client. None if
            the data do not name clients. The partition "natural" uses it.
        fingerprint: a checksum of what was read from files; "" for data of Python, whose checksum is in their name.
        test_owner: the client of each test sample, numbered as in `owner`; -1 for samples of no client. None if clients
            have no test samples of their own.
    """

    name: str
    x: Samples
    y: Tensor
    x_test: Samples
    y_test: Tensor
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: Augment = field(default_factory=Augment)
    owner: Tensor | None = None
    fingerprint: str = ""
    test_owner: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample; a sample that is no image counts as channels of one pixel."""
        x = input_tensors(self.x)[0]
        sizes = x.shape[1:] if x.dim() <= 4 else [x[0].numel()]
        channels, height, width = (*sizes, 1, 1)[:3]
        return int(channels), int(height), int(width)

    @property
    def task(self) -> str:
        """The task that "auto" stands for, from the kind of the targets."""
        if self.y.is_floating_point():
            return "regression"
        if self.y.dim() == 1:
            return "classification"
        return "multilabel" if input_tensors(self.x)[0].is_floating_point() else "next-token"

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: np.ndarray,
        x_test: Any,
        y_test: np.ndarray,
        clients: Sequence[Sequence[int]] | None = None,
        name: str = "own",
        classes: int | None = None,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        augment: Augment | None = None,
        test_clients: Sequence[Sequence[int]] | None = None,
    ) -> Dataset:
        """Return a data set made of arrays. Images are divided by 255, and normalised if `mean` and `std` are given.

        Args:
            x: training samples, at least one: images uint8 [n, channels, height, width] with values 0 to 255,
                floating-point numbers [n, ...] that are finite in float32, to which they are converted, or whole
                numbers [n, length] (tokens). A tuple or dict of such arrays is given to the model as several inputs.
            y: training targets [n, ...]: whole numbers from 0 are classes, floating-point numbers are for regression,
                whole numbers [n, labels] are 0 or 1 for each label, or tokens [n, length] if `x` are tokens too.
            x_test: test samples, of the same dtype and sample shape as `x`.
            y_test: test targets, one per test sample.
            clients: for each client, the row numbers (0 to n - 1) of its training samples. A row belongs to one
                client at most. None: the data name no clients, and a partition assigns the rows.
            name: what reports call the data set.
            classes: the number of classes or tokens, where not all of them occur in the data.
            mean: subtracted from the samples (images: after scaling to [0, 1]); one number, or one per channel.
            std: divides the samples after that; more than 0, as many numbers as `mean`.
            augment: random changes of the training images, none unless given.
            test_clients: for each client of `clients`, the row numbers of its test samples, which may be none. None:
                clients have no test samples of their own.

        Raises:
            UserError: an array is of another kind, or the arrays do not fit together.
        """
        tensors = check_arrays("data", x, y, x_test, y_test)
        owner = owners_from_clients(clients, len(tensors.y))
        test_owner = _test_owners(clients, test_clients, len(tensors.y_test))
        outputs = count_outputs("data", tensors, classes)
        dataset = cls(name, *tensors, outputs, owner=owner, test_owner=test_owner)
        means, stds = (tuple(np.atleast_1d(np.asarray(v, float)).tolist()) for v in (mean, std))
        _check_normalisation(dataset, means, stds)
        return replace(dataset, mean=means, std=stds, augment=_check_augment(dataset, augment or Augment()))

    @classmethod
    def from_torch(cls, train: Any, test: Any, **options: Any) -> Dataset:
        """Return a data set made of two map-style data sets of torch. Every sample is read once, and kept in memory.

        Args:
            train: training samples: has a length and gives pairs (x, y) by number, such as TensorDataset or Subset.
                What x and y may be is said at `from_arrays`; images of pillow are allowed too.
            test: test samples, of the same kind.
            options: the other arguments of `from_arrays`, such as clients, mean, std or augment.

        Raises:
            UserError: samples cannot be read, do not fit together, or come from random transforms.
        """
        x, y = stack_samples("train", train)
        x_test, y_test = stack_samples("test", test)
        return cls.from_arrays(x, y, x_test, y_test, **options)


def _check_normalisation(dataset: Dataset, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Raise UserError if `mean` and `std` do not fit the samples."""
    channels = dataset.shape[0]
    if len(mean) != len(std) or len(mean) not in (1, channels):
        raise UserError("mean", mean, f"give one number, or one for each of {channels} channels, and as many as in std")
    if any(t.dtype == torch.uint8 for t in input_tensors(dataset.x)) and max(mean) > 1:
        raise UserError("mean", mean, "must be between 0 and 1: images are divided by 255 before it is subtracted")
    if not all(np.isfinite([*mean, *std])) or min(std) <= 0:
        raise UserError("std", std, "must be more than 0, and all numbers finite")


def _check_augment(dataset: Dataset, augment: Augment) -> Augment:
    """Raise UserError if the samples cannot be augmented; else return `augment`."""
    if not isinstance(augment, Augment):
        allowed = "must be a fedflat.Augment, such as Augment(crop=4, flip=True, per_batch=True)"
        raise UserError("augment", augment, allowed)
    if augment != Augment() and (not isinstance(dataset.x, Tensor) or dataset.x.dim() != 4):
        raise UserError("augment", augment, "only images [n, channels, height, width] can be augmented")
    return augment


def default_partition(dataset: Dataset) -> str:
    """Return the partition that "auto" stands for.

    It is "natural" if the data name their clients, else "dirichlet" if the targets are classes, else "iid".
    """
    if dataset.owner is not None:
        return "natural"
    return "dirichlet" if dataset.task == "classification" else "iid"


def owners_from_clients(
    clients: Sequence[Sequence[int]] | None, samples: int, argument: str = "clients"
) -> Tensor | None:
    """Return the client of each sample, -1 if it has none, from the row numbers of each client.

    Args:
        clients: for each client, its row numbers; None for None.
        samples: the number of samples.
        argument: what messages begin with; only with "clients" every client must have a row.
    """
    if clients is None:
        return None
    row_lists = list(clients) if isinstance(clients, Iterable) and not isinstance(clients, Mapping | str) else []
    if not row_lists:
        raise UserError(None, argument, "give a list that has, for each client, the list of its row numbers")
    owner = np.full(samples, -1, dtype=np.int64)
    for client, values in enumerate(row_lists):
        rows = _check_rows(argument, client, values, samples)
        if len(np.unique(rows)) < len(rows) or (owner[rows] >= 0).any():
            raise UserError(None, argument, f"a row of client {client} is given twice; every row belongs to one client")
        owner[rows] = client
    return torch.from_numpy(owner)


def _check_rows(argument: str, client: int, values: Any, samples: int) -> np.ndarray:
    """Return the row numbers of one client; raise UserError if they cannot be row numbers."""
    rows = as_array(argument, f"client {client}", values)
    if rows.ndim == 1 and not rows.size:
        if argument == "clients":
            raise UserError(None, argument, f"client {client} has no data; give each client a list of row numbers")
        return rows.astype(np.int64)
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        advice = "give each client a list of row numbers (np.flatnonzero makes one of a mask)"
        raise UserError(None, argument, f"client {client} is {rows.dtype} {list(rows.shape)}; {advice}")
    if outside := rows[(rows < 0) | (rows >= samples)].tolist():
        raise UserError(None, argument, f"client {client} has row {outside[0]}; rows are 0 to {samples - 1}")
    return rows


def _test_owners(clients: Any, test_clients: Any, samples: int) -> Tensor | None:
    """Return the client of each test sample; raise UserError if `test_clients` does not go with `clients`."""
    if test_clients is None:
        return None
    if clients is None or len(clients) != len(test_clients):
        known = "no clients" if clients is None else f"{len(clients)} clients"
        raise UserError(None, "test_clients", f"has {len(test_clients)} lists for {known}; give one for each client")
    return owners_from_clients(test_clients, samples, "test_clients")


def dataset_tensors(dataset: Dataset) -> dict[str, Tensor]:
    """Return the tensors of a data set by name, for a checksum; several inputs are x.0, x.1 and so on."""
    tensors = {f.name: value for f in fields(dataset) if isinstance(value := getattr(dataset, f.name), Tensor)}
    several = {name: x for name in ("x", "x_test") if not isinstance(x := getattr(dataset, name), Tensor)}
    return tensors | {f"{name}.{n}": t for name, x in several.items() for n, t in enumerate(input_tensors(x))}


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
    owners = (None, None) if dataset.owner is None else _renumber_clients(dataset.owner, kept, held)
    (x, y), (x_test, y_test) = ((map_samples(lambda t: t[rows], dataset.x), dataset.y[rows]) for rows in (kept, held))
    return replace(dataset, x=x, y=y, x_test=x_test, y_test=y_test, owner=owners[0], test_owner=owners[1])


def _renumber_clients(owner: Tensor, kept: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Number the clients of kept rows 0, 1, …; returns those of kept and of held rows, -1 for samples of no client."""
    left = owner[kept].unique()
    left = left[left >= 0]
    numbers = torch.full((int(owner.max()) + 2,), -1)  # the last place is that of -1
    numbers[left] = torch.arange(len(left))
    return numbers[owner[kept]], numbers[owner[held]]
