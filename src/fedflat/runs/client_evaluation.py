"""Evaluate final models on single clients: those that trained, on their own test samples, and those that were held out.

Clients of natural data may have test samples of their own (`Dataset.test_owner`). A held-out client never trains, so
all its samples are new to the model: its training rows, and its test samples if it has any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.batch import Batch, join_batches
from fedflat.core.metric import client_spread
from fedflat.core.random import choose_without_replacement, hash_words, purpose_key
from fedflat.core.task import Task
from fedflat.data.batches import ClientBatches
from fedflat.data.client_rows import group_rows
from fedflat.data.dataset import Dataset
from fedflat.engine.rounds import Trial, main_metric
from fedflat.errors import UserError
from fedflat.methods.running_averages import with_server_statistics

NO_ROWS = np.empty(0, np.int64)


class EvaluationRows(NamedTuple):
    """The rows on which a client is evaluated.

    Args:
        train: row numbers of the training samples.
        test: row numbers of the test samples.
    """

    train: np.ndarray
    test: np.ndarray

    def samples(self, data: ClientBatches) -> Batch:
        """Return these samples, normalised and without augmentation."""
        train, test = torch.from_numpy(self.train), torch.from_numpy(self.test)
        if not len(train):
            return data.test_samples(test)
        return join_batches(data.samples(train), data.test_samples(test)) if len(test) else data.samples(train)


class EvaluatedClients(NamedTuple):
    """The clients on which final models are evaluated one by one.

    Args:
        own_test_rows: for each client that trains, the row numbers of its own test samples; None if clients have none.
        held_out: the rows of each client that never trains.
    """

    own_test_rows: list[np.ndarray] | None
    held_out: list[EvaluationRows]

    def groups(self) -> dict[str, list[EvaluationRows]]:
        """Return the clients with samples by the field of Result that is about them, without empty groups."""
        own = [EvaluationRows(NO_ROWS, rows) for rows in self.own_test_rows or () if len(rows)]
        groups = {"training_clients": own, "held_out_clients": self.held_out}
        return {name: group for name, group in groups.items() if group}


def choose_held_out(partition_seed: int, clients: int, share: float) -> frozenset[int]:
    """Return the numbers of the clients that never train: this share of them, rounded.

    Args:
        partition_seed: decides which ones.
        clients: the number of all clients.
        share: the option `holdout_clients`.

    Raises:
        UserError: no client or every client would be held out.
    """
    count = round(share * clients)
    if share and not 0 < count < clients:
        raise UserError("holdout_clients", share, f"holds out {count} of {clients} clients; hold out some, not all")
    key = int(hash_words(partition_seed, purpose_key("held-out clients")))
    return frozenset(choose_without_replacement(key, clients, count))


def evaluated_clients(
    dataset: Dataset, natural: bool, rows: Sequence[np.ndarray], held_out: frozenset[int]
) -> EvaluatedClients:
    """Return the rows of the clients on which final models are evaluated.

    Args:
        dataset: the data set, whose `test_owner` names the clients of test samples.
        natural: whether clients are those that the data name; only then do they have test samples of their own.
        rows: the row numbers of each client's training samples, also of held-out clients.
        held_out: the numbers of the clients that never train.
    """
    if not natural or dataset.test_owner is None:
        return EvaluatedClients(None, [EvaluationRows(rows[client], NO_ROWS) for client in sorted(held_out)])
    test = group_rows(dataset.test_owner.cpu().numpy(), len(rows))
    own = [test[client] for client in range(len(rows)) if client not in held_out]
    return EvaluatedClients(own, [EvaluationRows(rows[client], test[client]) for client in sorted(held_out)])


def evaluate_on_clients(
    task: Task, trials: Sequence[Trial], data: ClientBatches, groups: Mapping[str, Sequence[EvaluationRows]]
) -> dict[str, dict[str, Any]]:
    """Return for each group of clients how the main metric of every seed's model is spread over them.

    {"held_out_clients": {"clients": 10, "mean": [0.91], "worst10": [0.84], "std": [0.03]}}: one number for each seed,
    None where it is not finite.

    Args:
        task: the model.
        trials: one for each seed.
        data: the samples.
        groups: the clients, as `EvaluatedClients.groups` returns them.
    """
    return {name: _spread_over(task, trials, data, group) for name, group in groups.items()}


def _spread_over(
    task: Task, trials: Sequence[Trial], data: ClientBatches, group: Sequence[EvaluationRows]
) -> dict[str, Any]:
    values: list[list[float]] = [[] for _ in trials]
    for rows in group:
        samples = rows.samples(data)
        for of_seed, trial in zip(values, trials, strict=True):
            evaluator = with_server_statistics(task, trial.server)
            of_seed.append(_metric_of_client(evaluator, trial.server.params, samples))
    spreads = [client_spread(of_seed, task.main_metric()) for of_seed in values]
    numbers = {key: [_finite(getattr(each, key)) for each in spreads] for key in ("mean", "worst10", "std")}
    return {"clients": len(group), **numbers}


def _metric_of_client(task: Task, params: Tensor, samples: Batch) -> float:
    """Return the main metric on a client's samples; not a number where the user's metric fails, as for one class."""
    try:
        return main_metric(task, params, samples)
    except UserError:
        return math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
