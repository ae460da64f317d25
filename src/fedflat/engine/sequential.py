"""The reference engine: one client after another. Slow and obvious; all others are tested against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fedflat.core.local_training import local_update
from fedflat.core.method import Method
from fedflat.core.state import stack_states, tree_map
from fedflat.core.task import Batch, Task
from fedflat.data.batches import BatchPlan, BatchSource
from fedflat.engine.rounds import CohortJob, TrainedCohort, average_replies


class Sequential:
    """Calls `local_update` for each client in turn."""

    def __init__(self, method: Method, task: Task, source: BatchSource) -> None:
        self.method, self.task, self.source = method, task, source

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """One client at a time needs no preparation."""

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        return [self._train(job) for job in jobs]

    def _train(self, job: CohortJob) -> TrainedCohort:
        states = [tree_map(lambda t: t[0], job.states.gather([client])) for client in job.clients]
        done = [
            local_update(self.method, self.task, job.sgd, job.message, state, self._batches(job, client))
            for client, state in zip(job.clients, states, strict=True)
        ]
        ends, replies, kept = zip(*done, strict=True)
        job.states.scatter(job.clients, stack_states(kept))
        return TrainedCohort(average_replies(stack_states(replies), job), torch.stack(ends))

    def _batches(self, job: CohortJob, client: int) -> Iterator[Batch]:
        return client_batches(self.source, job.seed, job.round, client, job.exchange)


def client_batches(source: BatchSource, seed: int, round: int, client: int, exchange: int) -> Iterator[Batch]:
    """One client's batches, the last of an epoch as short as it is."""
    plan = source.plan([seed], round, [client], exchange)
    for rows, mask, key in zip(plan.rows[0], plan.mask[0], plan.key[0], strict=True):
        if mask.any():
            yield source.batch(BatchPlan(rows[mask], mask[mask], key[mask]))
