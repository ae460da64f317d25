"""The reference engine: it trains one client after another. It is slow and simple; the others are tested against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fedflat.core.local_training import local_update
from fedflat.core.method import Method
from fedflat.core.state import stack_states, tree_map
from fedflat.core.task import Batch, Task
from fedflat.data.arrays import input_tensors
from fedflat.data.batches import BatchPlan, BatchSource
from fedflat.engine.rounds import CohortJob, TrainedCohort, average_replies


class Sequential:
    """Calls `local_update` for each client in turn.

    Args:
        method: the method; each job has its own, which may have other hyper-parameters.
        task: the model and its loss.
        source: where batches come from.
    """

    def __init__(self, method: Method, task: Task, source: BatchSource) -> None:
        self.task, self.source = task, source

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Do nothing: one client at a time needs no preparation."""

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        with torch.no_grad():
            return [self._train_cohort(job) for job in jobs]

    def _train_cohort(self, job: CohortJob) -> TrainedCohort:
        states = [tree_map(lambda t: t[0], job.states.gather([client])) for client in job.clients]
        numbers = job.optimiser.numbers(len(job.clients))
        optimisers = [job.optimiser.with_numbers(own) for own in numbers]
        trained = [
            local_update(job.method, self.task, optimiser, job.message, state, self._batches(job, client))
            for client, state, optimiser in zip(job.clients, states, optimisers, strict=True)
        ]
        ends, replies, new_states = zip(*trained, strict=True)
        job.states.scatter(job.clients, stack_states(new_states))
        return TrainedCohort(average_replies(stack_states(replies), job), torch.stack(ends))

    def _batches(self, job: CohortJob, client: int) -> Iterator[Batch]:
        return client_batches(self.source, job.seed, job.round, client, job.exchange)


def client_batches(source: BatchSource, seed: int, round: int, client: int, exchange: int) -> Iterator[Batch]:
    """Yield one client's batches of one exchange, without padding: the last batch of an epoch may be smaller.

    Args:
        source: where batches come from.
        seed, round, client, exchange: what the order and the augmentation of the samples depend on.
    """
    plan = source.plan([seed], round, [client], exchange)
    steps = source.lengths([seed], round, [client], exchange)[0]
    for step in range(steps):
        rows, mask, key = (t[0, step] for t in plan)
        batch = source.batch(BatchPlan(rows[mask], mask[mask], key[mask]))
        like = next((t for t in input_tensors(batch.x) if t.is_floating_point()), mask.float())
        yield batch._replace(step=like.new_full((), step), steps=like.new_full((), steps))
