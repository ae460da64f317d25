"""What a probe is: a function from a RoundView, everything known of one finished round, to named numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from fedflat.core.local_training import method_state
from fedflat.core.method import Method
from fedflat.core.state import tree_map
from fedflat.core.task import Batch, Task
from fedflat.data.batches import ClientBatches
from fedflat.engine.rounds import CohortJob
from fedflat.engine.sequential import client_batches
from fedflat.methods.running_averages import with_client_statistics, with_server_statistics


class RoundView(NamedTuple):
    """One round of one seed, after it is over.

    If the method has several exchanges in a round, `job`, `client_states` and `local_models` are those of the last.

    Args:
        method: the method that is trained.
        task: the model and its loss.
        client_data: the clients' training samples.
        test: the test samples.
        server_before: the server's state before the round.
        server_after: the server's state after the round.
        job: seed, round (counted from 0), clients, weights and message of the cohort.
        client_states: what these clients kept before the exchange, stacked.
        local_models: their models w_k after local training, [clients, P].
        first: whether no probe has measured before in this run.
    """

    method: Method
    task: Task
    client_data: ClientBatches
    test: Batch
    server_before: Any
    server_after: Any
    job: CohortJob
    client_states: Any
    local_models: Tensor
    first: bool

    @property
    def received(self) -> Tensor:
        """The model w that the clients received and started from, [P]."""
        return self.job.message.params

    @property
    def evaluator(self) -> Task:
        """The task that evaluates the model after the round."""
        return with_server_statistics(self.task, self.server_after)

    @property
    def received_evaluator(self) -> Task:
        """The task that evaluates the model that the clients received."""
        return with_server_statistics(self.task, self.server_before)

    def local_evaluator(self, number: int) -> Task:
        """Return the task that evaluates one client's model; `number` is its position in the cohort."""
        kept = self.job.states.gather([self.job.clients[number]])
        return with_client_statistics(self.task, tree_map(lambda t: t[0], kept))

    def kept_state(self, number: int) -> Any:
        """Return what one client kept before the exchange; `number` is its position in the cohort."""
        return tree_map(lambda t: t[number], self.client_states)

    def client_state(self, number: int) -> Any:
        """Return the method's part of it, without the optimiser's state."""
        return method_state(self.kept_state(number))

    def batches(self, number: int) -> Iterator[Batch]:
        """Return the batches that one client trained on; `number` is its position in the cohort."""
        job = self.job
        return client_batches(self.client_data, job.seed, job.round, job.clients[number], job.exchange)


ProbeValue = float | list[float]  # not finite where it is undefined
Probe = Callable[[RoundView], dict[str, ProbeValue]]  # empty where the probe does not apply to the method


def state_with(server: Any, *fields: str) -> Any:
    """Return the server's state, or that of a method wrapped in it, that has all these fields; None if none has."""
    if set(fields) <= set(server._fields):
        return server
    return state_with(server.inner, *fields) if "inner" in server._fields else None
