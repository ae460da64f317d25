"""What a client is tested on, what it remembers, and what it holds out of its own data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedflat.core.random import hash_words, purpose_key
from fedflat.core.task import Batch
from fedflat.data.augment import normalise
from fedflat.data.partition import class_counts, matching_test_rows
from fedflat.runs.read import TrainedRun


class Samples:
    """The samples of every client of a run: rows of training and of test data."""

    def __init__(self, run: TrainedRun) -> None:
        self.feed, self.all, self._seed = run.assembly.feed, run.assembly.parts, run.experiment.partition_seed
        data = run.assembly.dataset
        self._test = self.feed.test()
        self._labels = self._test.y.cpu().numpy()
        mixes = class_counts(data.y.numpy(), self.all, data.classes)
        self._aligned = [self._test_rows(client, mix) for client, mix in enumerate(mixes)]
        split = [self._hold_out(client) for client in range(len(self.all))]
        self.kept, self.held = [kept for kept, _ in split], [held for _, held in split]

    def testable(self) -> list[int]:
        """Clients whose classes occur in the test set."""
        return [client for client, rows in enumerate(self._aligned) if len(rows)]

    def test(self, client: int) -> Batch:
        """Test samples that follow the client's label mix."""
        pick = torch.from_numpy(self._aligned[client]).to(self.feed.y.device)
        return Batch(self._test.x[pick], self._test.y[pick], self._test.mask[pick], None)

    def train(self, rows: np.ndarray) -> Batch:
        """Training samples as they are, without augmentation."""
        data, pick = self.feed.dataset, torch.from_numpy(rows).to(self.feed.y.device)
        x = normalise(self.feed.x[pick], data.mean, data.std, self.feed.dtype)
        return Batch(x, self.feed.y[pick], torch.ones_like(pick, dtype=torch.bool), None)

    def _test_rows(self, client: int, mix: np.ndarray) -> np.ndarray:
        return matching_test_rows(self._labels, mix, int(self._key("personal test", client)))

    def _hold_out(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """The client's rows without and with a random fifth of them, which is one row at least unless that is all."""
        rows = self.all[client]
        order = hash_words(self._key("held out", client), torch.arange(len(rows))).argsort(stable=True).numpy()
        held = max(len(rows) // 5, int(len(rows) > 1))
        return rows[np.sort(order[held:])], rows[np.sort(order[:held])]

    def _key(self, use: str, client: int) -> Tensor:
        return hash_words(self._seed, purpose_key(use), client)
