"""Running averages of batch normalisation, put around any method by the option `norm_stats`.

`server`: clients start from the server's averages, send theirs with the reply, and the server takes their mean.
`local`: every client keeps its own averages from round to round; they are never sent.

Each local step updates the averages once, by the moments of its batch at the client's model w before the step. Where
the method takes the gradient at w (`task.grad(w, batch)`), they come from the same forward pass; where it takes
gradients elsewhere only, such as at perturbed weights, they cost a forward pass of their own.

In the lines "down … | up … | client keeps … | server keeps …", … stands for what the inner method sends and keeps; s
are the averages.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.local_training import method_state
from fedflat.core.method import Cohort, Local, Method
from fedflat.core.norm_statistics import NormStatistics
from fedflat.core.state import count_bytes, tree_map
from fedflat.core.task import Batch, Task
from fedflat.methods.wrappers import Wrapper

_NONE = NormStatistics(torch.zeros(0), torch.zeros(0))


class StatisticsServer(NamedTuple):
    """The inner method's state, and the averages with which the global model is evaluated."""

    inner: Any
    statistics: NormStatistics

    @property
    def params(self) -> Tensor:
        """The model that is evaluated, [P]."""
        return self.inner.params


class StatisticsMessage(NamedTuple):
    """The inner method's message, and the averages from which clients start."""

    inner: Any
    statistics: NormStatistics

    @property
    def params(self) -> Tensor:
        """The model from which local training starts, [P]."""
        return self.inner.params


class StatisticsReply(NamedTuple):
    """The inner method's reply, and the client's averages after its last step."""

    inner: Any
    statistics: NormStatistics


class OwnStatistics(NamedTuple):
    """The inner method's state of a client, and the averages that the client keeps."""

    inner: Any
    statistics: NormStatistics


class LastStatistics(NamedTuple):
    """The inner method's state of a client, and the client's averages after its last step, which it needs no more."""

    inner: Any
    statistics: NormStatistics


@dataclass(frozen=True)
class LocalStatistics(Wrapper):
    """Every client keeps its averages (as SiloBN, Andreux et al., 2020).

    down … | up … | client keeps …, s | server keeps …
    """

    initial: NormStatistics = field(default=_NONE, compare=False)
    """The averages before the first round."""

    def init_server(self, params: Tensor) -> Any:
        """Return the inner method's initial state."""
        return self.inner.init_server(params)

    def init_client(self, params: Tensor) -> OwnStatistics:
        """Return the inner method's state of a client, and the initial averages."""
        return OwnStatistics(self.inner.init_client(params), _like(self.initial, params))

    def broadcast(self, server: Any) -> Any:
        """Return the inner method's message."""
        return self.inner.broadcast(server)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the inner method's direction; the client's averages include this batch."""
        return _step(self.inner, task, w, batch, msg, client)

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, OwnStatistics]:
        """Return the inner method's reply."""
        reply, inner = self.inner.reply(w, msg, client.inner, local)
        return reply, client._replace(inner=inner)

    def update(self, server: Any, cohort: Cohort) -> Any:
        """Return the inner method's next state."""
        return self.inner.update(server, cohort)

    def personal(self, server: Any, client: Any) -> Tensor:
        """Return the inner method's model for a client."""
        return self.inner.personal(server, client.inner)


@dataclass(frozen=True)
class ServerStatistics(Wrapper):
    """The server keeps the weighted mean of the clients' averages.

    down …, s | up …, s_k | client keeps … | server keeps …, s

    s ← Σ p_k s_k

    A client's state holds its averages too, because they change from step to step; they are not used again.
    """

    initial: NormStatistics = field(default=_NONE, compare=False)
    """The averages before the first round."""

    @property
    def bookkeeping(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inner method's, and the averages: they have another unit than the model and are no part of a norm."""
        return (*self.inner.bookkeeping, *NormStatistics._fields)

    def init_server(self, params: Tensor) -> StatisticsServer:
        """Return the inner method's initial state, and the initial averages."""
        return StatisticsServer(self.inner.init_server(params), _like(self.initial, params))

    def init_client(self, params: Tensor) -> LastStatistics:
        """Return the inner method's state of a client, and the initial averages."""
        return LastStatistics(self.inner.init_client(params), _like(self.initial, params))

    def broadcast(self, server: StatisticsServer) -> StatisticsMessage:
        """Return the inner method's message, and the averages."""
        return StatisticsMessage(self.inner.broadcast(server.inner), server.statistics)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the inner method's direction; the client's averages, from s on, include this batch."""
        first = batch.step == 0
        before = tree_map(lambda sent, own: torch.where(first, sent, own), msg.statistics, client.statistics)
        return _step(self.inner, task, w, batch, msg.inner, client._replace(statistics=before))

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[StatisticsReply, LastStatistics]:
        """Return the inner method's reply and the client's averages; those that were sent if it took no step."""
        reply, inner = self.inner.reply(w, msg.inner, client.inner, local)
        own = tree_map(lambda s, kept: torch.where(local.steps > 0, kept, s), msg.statistics, client.statistics)
        return StatisticsReply(reply, own), LastStatistics(inner, own)

    def reply_bytes(self, reply: StatisticsReply) -> int:
        """Return the bytes of the inner method's reply and of the averages, which are never compressed."""
        return self.inner.reply_bytes(reply.inner) + count_bytes(reply.statistics)

    def update(self, server: StatisticsServer, cohort: Cohort) -> StatisticsServer:
        """Return the inner method's next state, and the mean of the averages."""
        own = cohort._replace(mean=cohort.mean.inner, uniform=cohort.uniform.inner)
        return StatisticsServer(self.inner.update(server.inner, own), cohort.mean.statistics)

    def personal(self, server: StatisticsServer, client: Any) -> Tensor:
        """Return the inner method's model for a client."""
        return self.inner.personal(server.inner, client.inner)


def add_statistics(method: Method, norm_stats: str, initial: NormStatistics = _NONE) -> Method:
    """Return the method with running averages around it, the method itself if there are none.

    Args:
        method: the method.
        norm_stats: the option.
        initial: the averages before the first round; the names of what is sent and kept do not depend on them.
    """
    around = {"server": ServerStatistics, "local": LocalStatistics}.get(norm_stats)
    return around(method, initial) if around else method


def _like(statistics: NormStatistics, params: Tensor) -> NormStatistics:
    return tree_map(lambda t: t.to(params, copy=True), statistics)


def _step(inner: Method, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
    """Return the inner method's direction, and the client's state with the averages after this batch."""
    recorded: list[NormStatistics] = []

    def grad(v: Tensor, samples: Batch) -> Tensor:
        if v is not w or samples is not batch or recorded:
            return task.grad(v, samples)
        direction, after = task.grad_and_statistics(v, samples, client.statistics)
        recorded.append(after)
        return direction

    watched = copy.copy(task)
    if type(task).grad is Task.grad:
        watched.grad = grad  # type: ignore[assignment]
    direction, kept = inner.step(watched, w, batch, msg, client.inner)
    after = recorded[0] if recorded else task.next_statistics(w, batch, client.statistics)
    return direction, client._replace(inner=kept, statistics=after)


def with_server_statistics(task: Task, server: Any) -> Task:
    """Return the task that evaluates a server's model: with its averages, if the server keeps some.

    Args:
        task: the model.
        server: the server's state.
    """
    return task.with_statistics(server.statistics) if isinstance(server, StatisticsServer) else task


def with_client_statistics(task: Task, kept: Any) -> Task:
    """Return the task that evaluates a client's model: with the averages after its last step, if it has some.

    Args:
        task: the model.
        kept: what the client keeps.
    """
    state = method_state(kept)
    return task.with_statistics(state.statistics) if isinstance(state, OwnStatistics | LastStatistics) else task


def is_remembered(kept: Any) -> bool:
    """Return whether a client has to remember its state from round to round, and not only within one.

    Args:
        kept: what a client keeps that has not taken part yet.
    """
    return is_remembered(kept.inner) if isinstance(kept, LastStatistics) else bool(kept)
