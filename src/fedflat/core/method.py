"""The contract between methods and engines. `Method` is FedAvg written out; a method overrides what its paper changes.

Server and clients exchange typed messages, all state is a NamedTuple of tensors, parameters travel as one flat vector.
A method never sees a single reply, only the cohort's means, so secure aggregation and streaming come for free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedflat.core.task import Batch, Task


class Server(NamedTuple):
    """What the server keeps between rounds; every method's has `params`, the model that is evaluated."""

    params: Tensor


class Message(NamedTuple):
    """Down: where local training starts."""

    params: Tensor


class Reply(NamedTuple):
    """Up: end minus start of local training."""

    delta: Tensor


class Local(NamedTuple):
    """What a client knows of its own training at its end."""

    lr: Tensor
    steps: Tensor
    momentum: Tensor


class Cohort(NamedTuple):
    """Means over the replies that arrived, weighted (`mean`) and plain (`uniform`), their number, and all clients'."""

    mean: Any
    uniform: Any
    size: int
    population: int


@dataclass(frozen=True)
class Method:
    """FedAvg (McMahan et al., 2017, Algorithm 1): average what the clients learned.

    down w | up w_k − w | client keeps – | server keeps w

    w ← w + Σ p_k (w_k − w)
    """

    citation: ClassVar[str] = ""
    exchanges: ClassVar[int] = 1  # broadcast-train-update cycles in one round, with the same clients
    frozen: ClassVar[str] = ""  # parameters whose names begin so stay as they were received

    def init_server(self, params: Tensor) -> Any:
        """The server's state before the first round."""
        return Server(params)

    def init_client(self, params: Tensor) -> Any:
        """A client's state before it first takes part; `params` is the initial model."""
        return ()

    def broadcast(self, server: Any) -> Any:
        """What every client of the round receives."""
        return Message(server.params)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """The direction handed to the optimiser at w, and the client's new state."""
        return task.grad(w, batch), client

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """What the client sends after its last step, and what it keeps."""
        return Reply(w - msg.params), client

    def update(self, server: Any, cohort: Cohort) -> Any:
        """The server's next state."""
        return server._replace(params=server.params + cohort.mean.delta)

    def personal(self, server: Any, client: Any) -> Tensor:
        """The model a client uses after training."""
        return server.params
