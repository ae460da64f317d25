"""Methods around a method: the base class `Wrapper`, server momentum (FedAvgM) and weight averaging (FedSWA).

down … | up … | client keeps … | server keeps …, e, own

`…` stands for what the inner method sends and keeps. A wrapper acts once per round, after the last exchange e, on the
change from w to the inner method's next model w⁺.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.state import tree_map
from fedflat.core.task import Batch, Task
from fedflat.options import Count, Fraction, Positive


def training_params(server: Any) -> Tensor:
    """The model that training goes on from: the innermost `params`."""
    return server.params if "params" in server._fields else training_params(server.inner)


def with_training_params(server: Any, params: Tensor) -> Any:
    """The same server with another model to go on from."""
    if "params" in server._fields:
        return server._replace(params=params)
    return server._replace(inner=with_training_params(server.inner, params))


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
        return self.inner.personal(with_training_params(server.inner, server.params), client)

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


class MomentumServer(NamedTuple):
    inner: Any
    exchange: Tensor
    momentum: Tensor

    @property
    def params(self) -> Tensor:
        return self.inner.params


@dataclass(frozen=True)
class ServerMomentum(Wrapper):
    """FedAvgM (Hsu et al., 2019): momentum on the server.

    down … | up … | client keeps … | server keeps …, e, m

    m ← β m + (w − w⁺);  w ← w − η_s m
    """

    citation: ClassVar[str] = """@article{hsu2019fedavgm,
  title = {Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification},
  author = {Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew},
  journal = {arXiv:1909.06335},
  year = {2019}
}"""

    beta: Fraction = 0.9
    """Momentum β of the server."""
    server_lr: Positive = 1.0
    """The server's learning rate η_s."""

    def init_server(self, params: Tensor) -> MomentumServer:
        """No momentum."""
        return MomentumServer(self.inner.init_server(params), params.new_zeros(()), torch.zeros_like(params))

    def settle(self, server: MomentumServer, inner: Any) -> MomentumServer:
        """Gather momentum, step along it."""
        w = training_params(server.inner)
        momentum = self.beta * server.momentum + w - training_params(inner)
        return MomentumServer(with_training_params(inner, w - self.server_lr * momentum), server.exchange, momentum)


class AveragedServer(NamedTuple):
    inner: Any
    exchange: Tensor
    average: Tensor
    models: Tensor
    round: Tensor

    @property
    def params(self) -> Tensor:
        return torch.where(self.models > 0, self.average, self.inner.params)


@dataclass(frozen=True)
class Averaged(Wrapper):
    """FedSWA (Caldarola et al., 2022): evaluate the running mean of the server's models.

    down … | up … | client keeps … | server keeps …, e, w̄, n, t

    w̄ ← (n w̄ + w⁺) / (n + 1) after rounds t = t₀, t₀ + k, …; training goes on from w⁺
    """

    citation: ClassVar[str] = """@inproceedings{caldarola2022fedasam,
  title = {Improving Generalization in Federated Learning by Seeking Flat Minima},
  author = {Caldarola, Debora and Caputo, Barbara and Ciccone, Marco},
  booktitle = {ECCV},
  year = {2022}
}"""

    start_round: Count = 45
    """Round t₀, counted from 1, whose model is the first in the mean."""
    every: Count = 1
    """k: every how many rounds a model enters the mean."""

    def init_server(self, params: Tensor) -> AveragedServer:
        """Nothing averaged."""
        zero = params.new_zeros(())
        return AveragedServer(
            self.inner.init_server(params), zero, torch.zeros_like(params), zero.clone(), zero.clone()
        )

    def settle(self, server: AveragedServer, inner: Any) -> AveragedServer:
        """Count the round, take its model in."""
        round = server.round + 1
        taken = ((round >= self.start_round) & ((round - self.start_round) % self.every == 0)).to(round.dtype)
        models = server.models + taken
        average = server.average + taken * (inner.params - server.average) / models.clamp(min=1)
        return AveragedServer(inner, server.exchange, average, models, round)
