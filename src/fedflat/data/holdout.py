"""Training samples held out to choose hyper-parameters by, so that the test set stays unseen."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedflat.core.random import hash_words, purpose_key
from fedflat.data.dataset import Dataset
from fedflat.errors import UserError


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
