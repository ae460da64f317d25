"""What a probe is given of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.state import tree_map
from fedflat.core.task import Batch, Task
from fedflat.data.batches import ClientBatches
from fedflat.engine.rounds import CohortJob
from fedflat.engine.sequential import client_batches


class RoundView(NamedTuple):
    """One trial's round. Where a method has several exchanges, `job`, `states` and `ends` are those of the last."""

    method: Method
    task: Task
    feed: ClientBatches
    test: Batch
    before: Any  # the server's state before the round
    after: Any  # and after it
    job: CohortJob  # seed, round (from 0), clients, weights and message
    states: Any  # what these clients kept before the exchange, stacked
    ends: Tensor  # their models after it, [clients, P]
    first: bool  # whether probes have not measured before in this run

    @property
    def start(self) -> Tensor:
        """The model w that the clients received and began at."""
        return self.job.message.params

    def state(self, number: int) -> Any:
        """What the cohort's client of this number kept before the exchange."""
        return tree_map(lambda t: t[number], self.states)

    def batches(self, number: int) -> Iterator[Batch]:
        """What it trained on."""
        job = self.job
        return client_batches(self.feed, job.seed, job.round, job.clients[number], job.exchange)


ProbeValue = float | list[float]


Probe = Callable[
    [RoundView], dict[str, ProbeValue]
]  # no values where the probe does not apply; not finite where undefined


def state_with(server: Any, *fields: str) -> Any:
    """The state with all these fields: the server's or that of a method wrapped in it; None where neither has."""
    if set(fields) <= set(server._fields):
        return server
    return state_with(server.inner, *fields) if "inner" in server._fields else None
