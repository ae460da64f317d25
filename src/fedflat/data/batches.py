"""Which samples make which batch, and the batches themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import send_to_device
from fedflat.core.task import Batch
from fedflat.data.augment import augment_images, normalise
from fedflat.data.dataset import Augment, Dataset


class BatchPlan(NamedTuple):
    """Row numbers, mask and random key of every sample of every step; real steps of a client come first."""

    rows: Tensor
    mask: Tensor
    key: Tensor


class BatchSource(Protocol):
    """Where engines get batches from."""

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int) -> list[int]:
        """How many steps each client takes in this round."""
        ...

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int) -> BatchPlan:
        """The steps of each client under its trial's seed, [clients, steps, batch]."""
        ...

    def batch(self, plan: BatchPlan) -> Batch:
        """The samples of (a slice of) a plan."""
        ...


class ClientBatches:
    """A data set split over clients, on one device.

    The order of a client's samples in an epoch is the order of hashes of (seed, round, client, epoch, position), so it
    depends on nothing else, and augmentation hangs on the same words. `names` are the clients' numbers in these hashes
    where they are not their positions in `parts`.
    """

    def __init__(
        self,
        dataset: Dataset,
        parts: Sequence[np.ndarray],
        batch_size: int,
        epochs: int,
        spec: Augment | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        names: Sequence[int] | None = None,
    ) -> None:
        self.dataset, self.batch_size, self.epochs, self.dtype = dataset, batch_size, epochs, dtype
        self.spec = dataset.augment if spec is None else spec
        self.x, self.y = dataset.x.to(device), dataset.y.to(device)
        self.counts = [len(part) for part in parts]
        self.sizes = torch.tensor(self.counts, dtype=torch.int64, device=device)
        self._rows = torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)
        self._starts = self.sizes.cumsum(0) - self.sizes
        self._names = torch.tensor(range(len(parts)) if names is None else names, dtype=torch.int64, device=device)

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> list[int]:
        """How many steps each client takes: its batches, the last of an epoch partial, times the epochs."""
        return [-(-self.counts[client] // self.batch_size) * self.epochs for client in clients]

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> BatchPlan:
        """The steps of each client under its trial's seed, [clients, steps, batch], padded to the longest client."""
        seed, ids = send_to_device([list(seeds), list(clients)], self.sizes.device)[..., None]
        sizes, first = self.sizes[ids[:, 0]], exchange * self.epochs
        epochs = torch.arange(first, first + self.epochs, device=ids.device)
        words = hash_words(seed, purpose_key("sample"), round, self._names[ids], epochs)
        position = torch.arange(max(self.counts[client] for client in clients), device=ids.device)
        keys = hash_words(words[..., None], position)
        keys_or_last = torch.where(position < sizes[:, None, None], keys, torch.iinfo(torch.int64).max)
        order = keys_or_last.argsort(stable=True)
        return self._cut(
            self._starts[ids[:, 0]], sizes, order, hash_words(words[..., None], order, purpose_key("augment"))
        )

    def _cut(self, starts: Tensor, sizes: Tensor, order: Tensor, keys: Tensor) -> BatchPlan:
        """Cut each client's epochs [clients, epochs, samples] into batches; the last of an epoch may be partial."""
        longest, per_epoch = order.shape[-1], -(-sizes // self.batch_size)
        step = torch.arange(-(-longest // self.batch_size) * self.epochs, device=sizes.device)
        epoch, number = step // per_epoch[:, None], step % per_epoch[:, None]
        within = number[..., None] * self.batch_size + torch.arange(self.batch_size, device=sizes.device)
        mask = (within < sizes[:, None, None]) & (epoch < self.epochs)[..., None]
        flat = torch.where(mask, epoch[..., None] * longest + within, 0)
        picked, key = (t.flatten(1).gather(1, flat.flatten(1)).view_as(flat) for t in (order, keys))
        return BatchPlan(self._rows[torch.where(mask, starts[:, None, None] + picked, 0)], mask, key)

    def batch(self, plan: BatchPlan) -> Batch:
        """The samples of (a slice of) a plan, augmented and normalised."""
        data = self.dataset
        x = augment_images(self.x[plan.rows], plan.key, self.spec, data.mean, data.std, self.dtype)
        return Batch(x, self.y[plan.rows], plan.mask, plan.key)

    def test(self) -> Batch:
        """All test samples, normalised, in mixed order: models with batch statistics must not see class by class."""
        data, device = self.dataset, self.y.device
        order = hash_words(purpose_key("test"), torch.arange(len(data.y_test))).argsort(stable=True)
        y = data.y_test[order].to(device)
        x = normalise(data.x_test[order].to(device), data.mean, data.std, self.dtype)
        return Batch(x, y, torch.ones_like(y, dtype=torch.bool), None)
