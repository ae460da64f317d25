"""Batches of clients: which samples each step takes, and the augmented, normalised samples themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedflat.core.batch import Batch, Samples, map_samples
from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import send_to_device
from fedflat.data.augment import augment_images, normalise
from fedflat.data.dataset import Augment, Dataset

StepCounts = Callable[[Sequence[int], int, Sequence[int]], list[int]]  # (seeds, round, clients) → steps of each client


class BatchPlan(NamedTuple):
    """The samples of every step of every client, [clients, steps, batch]. Steps that only pad a client come last.

    Args:
        rows: row numbers in the training set, int64.
        mask: False where a sample is padding.
        key: a random int64 word per sample, for augmentation.
    """

    rows: Tensor
    mask: Tensor
    key: Tensor


class RoundCohort(NamedTuple):
    """The clients that train in a round: client `clients[i]` in the trial with the seed `seeds[i]`."""

    round: int
    seeds: Sequence[int]
    clients: Sequence[int]

    def items(self) -> list[tuple[int, int, int]]:
        """Return (seed, round, client) for each client."""
        return [(seed, self.round, client) for seed, client in zip(self.seeds, self.clients, strict=True)]


class BatchSource(Protocol):
    """What engines need to get the batches of clients."""

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int) -> list[int]:
        """Return how many steps each client takes in this round."""
        ...

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int) -> BatchPlan:
        """Return the steps of each client, each drawn with the seed of its own entry in `seeds`."""
        ...

    def batch(self, plan: BatchPlan) -> Batch:
        """Return the samples of a plan or of a slice of one."""
        ...


class ClientBatches:
    """The batches of a data set that is partitioned over clients, on one device.

    In each epoch a client's samples are sorted by hashes of (seed, round, client, epoch, position). The order, and the
    augmentation with it, depends on nothing else: not on the engine, the cohort or a restart. A client that takes fewer
    steps sees the first batches of the same order; one that takes more goes on with the next epoch.

    Args:
        dataset: the data set; its training samples are copied to the device.
        parts: the row numbers of each client's training samples.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: local epochs per exchange of models.
        spec: augmentation; that of the data set unless given.
        device: where batches are made.
        dtype: of the samples in a batch.
        client_numbers: each client's number in the hashes; its position in `parts` unless given.
        step_counts: how many steps clients take in an exchange, instead of `epochs` epochs.
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
        client_numbers: Sequence[int] | None = None,
        step_counts: StepCounts | None = None,
    ) -> None:
        self.dataset, self.batch_size, self.epochs, self.dtype = dataset, batch_size, epochs, dtype
        self.spec = dataset.augment if spec is None else spec
        self.x, self.y = map_samples(lambda t: t.to(device), dataset.x), dataset.y.to(device)
        self.counts = [len(part) for part in parts]
        self.sizes = torch.tensor(self.counts, dtype=torch.int64, device=device)
        self._rows = torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)
        self._starts = self.sizes.cumsum(0) - self.sizes
        numbers = range(len(parts)) if client_numbers is None else client_numbers
        self._client_numbers = torch.tensor(numbers, dtype=torch.int64, device=device)
        self._step_counts = step_counts or self._epoch_steps

    def steps_per_epoch(self, client: int) -> int:
        """Return ceil(samples / batch size)."""
        return -(-self.counts[client] // self.batch_size)

    def _epoch_steps(self, seeds: Sequence[int], round: int, clients: Sequence[int]) -> list[int]:
        return [self.steps_per_epoch(client) * self.epochs for client in clients]

    def rows_of(self, client: int) -> Tensor:
        """Return the row numbers of a client's training samples."""
        start = int(self._starts[client])
        return self._rows[start : start + self.counts[client]]

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> list[int]:
        """Return how many steps each client takes."""
        return self._step_counts(seeds, round, clients)

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> BatchPlan:
        """Return the steps of each client, padded to the client with most steps.

        Args:
            seeds: the seed of each client's trial, as many as `clients`.
            round: number of the communication round.
            clients: positions of the clients in `parts`.
            exchange: number of the exchange within the round, for methods that train several times in a round.
        """
        return self.plan_rounds([RoundCohort(round, seeds, clients)], exchange)[0]

    def plan_rounds(self, cohorts: Sequence[RoundCohort], exchange: int = 0) -> list[BatchPlan]:
        """Return the plan of each cohort, made together: on a GPU that takes hardly longer than one plan."""
        lengths = [self.lengths(seeds, round, clients, exchange) for round, seeds, clients in cohorts]
        items = [item for cohort in cohorts for item in cohort.items()]
        plan = self._plan_items(items, list(chain.from_iterable(lengths)), exchange)
        ends = list(accumulate(map(len, lengths)))
        parts = zip([0, *ends], ends, lengths, strict=False)
        return [BatchPlan(*(t[first:end, : max(steps)] for t in plan)) for first, end, steps in parts]

    def _plan_items(self, items: list[tuple[int, int, int]], lengths: list[int], exchange: int) -> BatchPlan:
        """Plan items (seed, round, client) with these numbers of steps, padded to the longest."""
        clients = [client for _, _, client in items]
        epochs = [-(-n // self.steps_per_epoch(client)) for n, client in zip(lengths, clients, strict=True)]
        columns = [*zip(*items, strict=True), lengths, epochs]
        seed, round, ids, steps, count = send_to_device([list(c) for c in columns], self.sizes.device)
        # One row for each epoch of each item: row `first[k] + e` is epoch e of item k in this exchange.
        first, owner = (
            count.cumsum(0) - count,
            torch.arange(len(ids), device=ids.device).repeat_interleave(count, output_size=sum(epochs)),
        )
        epoch = torch.arange(len(owner), device=ids.device) - first[owner] + exchange * count[owner]
        start = hash_words(seed, purpose_key("sample"), round, self._client_numbers[ids])
        words = hash_words(start[owner], epoch)
        position = torch.arange(max(self.counts[client] for client in clients), device=ids.device)
        keys = hash_words(words[:, None], position)
        padding_last = torch.where(position < self.sizes[ids[owner], None], keys, torch.iinfo(torch.int64).max)
        order = padding_last.argsort(stable=True)
        augment_keys = hash_words(words[:, None], order, purpose_key("augment"))
        return self._cut_into_batches(ids, first, steps, max(lengths), order, augment_keys)

    def _cut_into_batches(
        self, ids: Tensor, first: Tensor, steps: Tensor, longest: int, order: Tensor, keys: Tensor
    ) -> BatchPlan:
        """Cut the clients' epochs [rows, samples] into batches; the last of an epoch may be smaller.

        Args:
            ids: the clients.
            first: the row of each client's first epoch.
            steps: the number of each client's steps, of which `longest` is the largest.
            longest: the number of steps in the plan.
            order, keys: for each row, the positions of the samples in their order, and the samples' random words.
        """
        sizes, step = self.sizes[ids], torch.arange(longest, device=ids.device)
        per_epoch = -(-sizes // self.batch_size)
        epoch, number = step // per_epoch[:, None], step % per_epoch[:, None]
        within = number[..., None] * self.batch_size + torch.arange(self.batch_size, device=ids.device)
        mask = (within < sizes[:, None, None]) & (step < steps[:, None])[..., None]
        flat = torch.where(mask, (first[:, None] + epoch)[..., None] * order.shape[-1] + within, 0)
        picked, key = (t.flatten()[flat] for t in (order, keys))
        return BatchPlan(self._rows[torch.where(mask, self._starts[ids, None, None] + picked, 0)], mask, key)

    def batch(self, plan: BatchPlan) -> Batch:
        """Return the samples of a plan or of a slice of one, augmented and normalised."""
        data = self.dataset

        def augmented(t: Tensor) -> Tensor:
            return augment_images(t[plan.rows], plan.key, self.spec, data.mean, data.std, self.dtype)

        return Batch(map_samples(augmented, self.x), self.y[plan.rows], plan.mask, plan.key)

    def samples(self, rows: Tensor) -> Batch:
        """Return training samples, normalised and without augmentation.

        Args:
            rows: row numbers in the training set.
        """
        picked = send_to_device(rows, self.y.device)
        return self._normalised(map_samples(lambda t: t[picked], self.x), self.y[picked])

    def test(self) -> Batch:
        """Return all test samples, normalised and shuffled: layers with batch statistics need mixed classes."""
        data, device = self.dataset, self.y.device
        order = hash_words(purpose_key("test"), torch.arange(len(data.y_test))).argsort(stable=True)
        return self._normalised(map_samples(lambda t: t[order].to(device), data.x_test), data.y_test[order].to(device))

    def test_samples(self, rows: Tensor) -> Batch:
        """Return some test samples, normalised.

        Args:
            rows: row numbers in the test set.
        """
        data, device = self.dataset, self.y.device
        picked = rows.to(data.y_test.device)
        return self._normalised(
            map_samples(lambda t: t[picked].to(device), data.x_test), data.y_test[picked].to(device)
        )

    def _normalised(self, x: Samples, y: Tensor) -> Batch:
        mean, std = self.dataset.mean, self.dataset.std
        x = map_samples(lambda t: normalise(t, mean, std, self.dtype), x)
        return Batch(x, y, torch.ones(len(y), dtype=torch.bool, device=y.device), None)
