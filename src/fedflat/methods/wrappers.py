"""Wrappers: methods that change the server's step of any other method, the inner method.

FedAvgM (momentum), FedAdam, FedYogi and FedAdagrad (adaptive steps) and FedSWA (weight averaging). Clients do what the
inner method tells them. A wrapper acts once per round, after the last exchange e of the inner method. From the model w
before the round and the model w⁺ that the inner method made of it, the wrapper computes its own next model.

In the lines "down … | up … | client keeps … | server keeps …", … stands for what the inner method sends and keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.state import tree_map
from fedflat.core.task import Batch, Task
from fedflat.methods.fedavg import FedAvg
from fedflat.options import Count, Fraction, NonNegative, Positive


def innermost_method(method: Method) -> Method:
    """Return the method inside all wrappers."""
    inner = getattr(method, "inner", None)
    return innermost_method(inner) if isinstance(inner, Method) else method


def training_params(server: Any) -> Tensor:
    """Return the model from which training continues, [P]: `params` of the innermost method.

    It differs from server.params, which is evaluated, where a wrapper evaluates another model (FedSWA).

    Args:
        server: the state of a wrapped method or of any other.
    """
    return server.params if "params" in server._fields else training_params(server.inner)


def with_training_params(server: Any, params: Tensor) -> Any:
    """Return the same server state with another model from which training continues.

    Args:
        server: the state of a wrapped method or of any other.
        params: the model, [P].
    """
    if "params" in server._fields:
        return server._replace(params=params)
    return server._replace(inner=with_training_params(server.inner, params))


@dataclass(frozen=True)
class Wrapper(Method):
    """Base class: clients follow the inner method, the server takes the inner step and then its own, `server_step`.

    A subclass defines `init_server` and `server_step`. Its server state is a NamedTuple that begins with `inner`, the
    inner method's state, and `exchange`, the number of exchanges already played in the round, and has a property or
    field `params`.
    """

    inner: Method = field(default_factory=FedAvg)
    """The inner method."""

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        """The inner method's number of exchanges per round."""
        return self.inner.exchanges

    @property
    def frozen(self) -> str:  # type: ignore[override]
        """The prefix of the parameters that the inner method does not train."""
        return self.inner.frozen

    @property
    def bookkeeping(self) -> tuple[str, ...]:  # type: ignore[override]
        """The scalars of the inner method's reply that depend on no sample."""
        return self.inner.bookkeeping

    def init_client(self, params: Tensor) -> Any:
        """Return the inner method's client state."""
        return self.inner.init_client(params)

    def broadcast(self, server: Any) -> Any:
        """Return the inner method's message."""
        return self.inner.broadcast(server.inner)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the inner method's direction."""
        return self.inner.step(task, w, batch, msg, client)

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """Return the inner method's reply."""
        return self.inner.reply(w, msg, client, local)

    def reply_bytes(self, reply: Any) -> int:
        """Return the bytes of the inner method's reply."""
        return self.inner.reply_bytes(reply)

    def personal(self, server: Any, client: Any) -> Tensor:
        """Return the inner method's model for a client, computed from the model that is evaluated."""
        return self.inner.personal(with_training_params(server.inner, server.params), client)

    def update(self, server: Any, cohort: Cohort) -> Any:
        """Return the state after the inner method's update and, after the last exchange, the wrapper's own step."""
        inner = self.inner.update(server.inner, self.inner_cohort(cohort))
        after_round = self.server_step(server, inner, cohort)._replace(exchange=torch.zeros_like(server.exchange))
        within_round = server._replace(inner=inner, exchange=server.exchange + 1)
        last = within_round.exchange >= self.exchanges
        return tree_map(lambda a, b: torch.where(last, a, b), after_round, within_round)

    def inner_cohort(self, cohort: Cohort) -> Cohort:
        """Return the means of the inner method's replies, for wrappers whose replies hold more than those.

        Args:
            cohort: the means of the wrapper's replies.
        """
        return cohort

    def server_step(self, server: Any, inner: Any, cohort: Cohort) -> Any:
        """Return the wrapper's server state after a round. Every wrapper defines it.

        Args:
            server: the wrapper's state before the last exchange of the round; training_params(server.inner) is w for
                methods that change their model in the last exchange only.
            inner: the inner method's state after the round; training_params(inner) is w⁺.
            cohort: the means of the wrapper's replies in the last exchange.
        """
        raise NotImplementedError


class MomentumServer(NamedTuple):
    """The inner method's state, the number e of exchanges in this round, and the momentum m, [P]."""

    inner: Any
    exchange: Tensor
    momentum: Tensor

    @property
    def params(self) -> Tensor:
        """The model that is evaluated, [P]."""
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
        """Return the inner method's initial state and a momentum of zeros."""
        return MomentumServer(self.inner.init_server(params), params.new_zeros(()), torch.zeros_like(params))

    def server_step(self, server: MomentumServer, inner: Any, cohort: Cohort) -> MomentumServer:
        """Update the momentum and move the model along it."""
        w = training_params(server.inner)
        momentum = self.beta * server.momentum + w - training_params(inner)
        return MomentumServer(with_training_params(inner, w - self.server_lr * momentum), server.exchange, momentum)


class AveragedServer(NamedTuple):
    """The server's state.

    Args:
        inner: the inner method's state.
        exchange: the number e of exchanges in this round, [].
        average: the mean w̄ of the models, [P].
        models: the number n of models in the mean, [].
        round: the number t of rounds played, [].
    """

    inner: Any
    exchange: Tensor
    average: Tensor
    models: Tensor
    round: Tensor

    @property
    def params(self) -> Tensor:
        """The model that is evaluated, [P]: the mean, before round t₀ the inner method's model."""
        return torch.where(self.models > 0, self.average, self.inner.params)


@dataclass(frozen=True)
class Averaged(Wrapper):
    """FedSWA (Caldarola et al., 2022): evaluate the mean of the server's models of several rounds.

    down … | up … | client keeps … | server keeps …, e, w̄, n, t

    w̄ ← (n w̄ + w⁺) / (n + 1) after rounds t = t₀, t₀ + k, …; training continues from w⁺
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
        """Return the inner method's initial state and an empty mean."""
        zero = params.new_zeros(())
        return AveragedServer(
            self.inner.init_server(params), zero, torch.zeros_like(params), zero.clone(), zero.clone()
        )

    def server_step(self, server: AveragedServer, inner: Any, cohort: Cohort) -> AveragedServer:
        """Count the round, and add its model to the mean if it is one of the chosen rounds."""
        round = server.round + 1
        chosen = ((round >= self.start_round) & ((round - self.start_round) % self.every == 0)).to(round.dtype)
        models = server.models + chosen
        average = server.average + chosen * (inner.params - server.average) / models.clamp(min=1)
        return AveragedServer(inner, server.exchange, average, models, round)


class AdaptiveServerState(NamedTuple):
    """The inner method's state, the number e of exchanges in this round, and the moments m and v, each [P]."""

    inner: Any
    exchange: Tensor
    m: Tensor
    v: Tensor

    @property
    def params(self) -> Tensor:
        """The model that is evaluated, [P]."""
        return self.inner.params


@dataclass(frozen=True)
class Adaptive(Wrapper):
    """Base of FedAdam, FedYogi and FedAdagrad (Reddi et al., 2021, Algorithm 2): a server step scaled per coordinate.

    down … | up … | client keeps … | server keeps …, e, m, v

    m ← β₁ m + (1 − β₁)(w⁺ − w);  w ← w + η_s m / (√v + τ). The three differ in how (w⁺ − w)² updates v.
    """

    citation: ClassVar[str] = """@inproceedings{reddi2021fedopt,
  title = {Adaptive Federated Optimization},
  author = {Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and
            Kone{\\v{c}}n{\\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan},
  booktitle = {ICLR},
  year = {2021}
}"""

    server_lr: Positive = 0.01
    """The server's learning rate η_s."""
    beta1: Fraction = 0.9
    """Decay β₁ of m, the moving average of the model's change."""
    tau: Positive = 1e-3
    """Adaptivity τ, added to √v: limits how much small changes are scaled up."""
    v0: NonNegative | None = None
    """Initial value of v; τ² unless given."""

    def init_server(self, params: Tensor) -> AdaptiveServerState:
        """Return the inner method's initial state, m = 0 and v = v₀."""
        v = torch.full_like(params, self.tau**2 if self.v0 is None else self.v0)
        return AdaptiveServerState(self.inner.init_server(params), params.new_zeros(()), torch.zeros_like(params), v)

    def server_step(self, server: AdaptiveServerState, inner: Any, cohort: Cohort) -> AdaptiveServerState:
        """Update both moments and move the model."""
        w = training_params(server.inner)
        change = training_params(inner) - w
        m = self.beta1 * server.m + (1 - self.beta1) * change
        v = self.second_moment(server.v, change.square())
        return AdaptiveServerState(
            with_training_params(inner, w + self.server_lr * m / (v.sqrt() + self.tau)), server.exchange, m, v
        )

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v, [P]. Every subclass defines it.

        Args:
            v: the last v, [P].
            square: the squared change (w⁺ − w)², [P].
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ServerAdam(Adaptive):
    """FedAdam (Reddi et al., 2021, Algorithm 2): a step of Adam on the server.

    down … | up … | client keeps … | server keeps …, e, m, v

    m ← β₁ m + (1 − β₁)(w⁺ − w);  v ← β₂ v + (1 − β₂)(w⁺ − w)²;  w ← w + η_s m / (√v + τ)
    """

    beta2: Fraction = 0.99
    """Decay β₂ of v, the moving average of the squared change."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the moving average of the squared change."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class ServerYogi(Adaptive):
    """FedYogi (Reddi et al., 2021, Algorithm 2): a step of Yogi on the server.

    down … | up … | client keeps … | server keeps …, e, m, v

    m ← β₁ m + (1 − β₁)(w⁺ − w);  v ← v − (1 − β₂)(w⁺ − w)² sign(v − (w⁺ − w)²);  w ← w + η_s m / (√v + τ)
    """

    beta2: Fraction = 0.99
    """Decay β₂ of v, the moving average of the squared change."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v moved towards the squared change, by a step in proportion to the squared change."""
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """FedAdagrad (Reddi et al., 2021, Algorithm 2): a step of Adagrad on the server.

    down … | up … | client keeps … | server keeps …, e, m, v

    m ← β₁ m + (1 − β₁)(w⁺ − w);  v ← v + (w⁺ − w)²;  w ← w + η_s m / (√v + τ)
    """

    server_lr: Positive = 0.1
    """The server's learning rate η_s."""
    beta1: Fraction = 0.0
    """Decay β₁ of m, the moving average of the model's change."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the sum of all squared changes."""
        return v + square
