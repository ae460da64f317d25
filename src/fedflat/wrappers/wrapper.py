"""What all wrappers share: clients are left to the inner method, the server keeps its state and more.

down … | up … | client keeps … | server keeps …, e, own

`…` stands for what the inner method sends and keeps. A wrapper acts once per round, after the last exchange e, on the
change from w to the inner method's next model w⁺.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedflat.engine.state import tree_map
from fedflat.method import Cohort, Local, Method
from fedflat.task import Batch, Task


def model(server: Any) -> Tensor:
    """The model that training goes on from: the innermost `params`."""
    return server.params if "params" in server._fields else model(server.inner)


def moved(server: Any, params: Tensor) -> Any:
    """The same server with another model to go on from."""
    if "params" in server._fields:
        return server._replace(params=params)
    return server._replace(inner=moved(server.inner, params))


def _fedavg() -> Method:
    """Imported late: the methods' package has wrapped methods too."""
    from fedflat.methods.fedavg import FedAvg

    return FedAvg()


@dataclass(frozen=True)
class Wrapper(Method):
    """Leaves clients to the inner method; a wrapper adds its own tensors to the server and `settle`s each round."""

    inner: Method = field(default_factory=_fedavg)
    """The method inside."""

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        """As many as the inner method's."""
        return self.inner.exchanges

    @property
    def frozen(self) -> str:  # type: ignore[override]
        """The inner method's."""
        return self.inner.frozen

    def init_client(self, params: Tensor) -> Any:
        """The inner method's."""
        return self.inner.init_client(params)

    def broadcast(self, server: Any) -> Any:
        """The inner method's."""
        return self.inner.broadcast(server.inner)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """The inner method's."""
        return self.inner.step(task, w, batch, msg, client)

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """The inner method's."""
        return self.inner.reply(w, msg, client, local)

    def personal(self, server: Any, client: Any) -> Tensor:
        """The inner method's, from the evaluated model."""
        return self.inner.personal(moved(server.inner, server.params), client)

    def update(self, server: Any, cohort: Cohort) -> Any:
        """The inner update, and after the last exchange the wrapper's own."""
        inner = self.inner.update(server.inner, cohort)
        settled = self.settle(server, inner)._replace(exchange=torch.zeros_like(server.exchange))
        waiting = server._replace(inner=inner, exchange=server.exchange + 1)
        last = waiting.exchange >= self.exchanges
        return tree_map(lambda new, old: torch.where(last, new, old), settled, waiting)

    def settle(self, server: Any, inner: Any) -> Any:
        """The server's next state, given its last and the inner server's next."""
        raise NotImplementedError
