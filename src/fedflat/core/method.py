"""The contract between methods and engines.

A method is a frozen dataclass of hyper-parameters with pure functions. The base class `Method` is FedAvg written out; a
method overrides what its paper changes. One round with a cohort S of clients is

    message = method.broadcast(server)                                        on the server
    for every client k of S:                                                  on the clients
        w = message.params
        for every batch:
            direction, client = method.step(task, w, batch, message, client)
            w = w − lr · direction                                            (with momentum and weight decay)
        reply, client = method.reply(w, message, client, local)
    server = method.update(server, cohort)                                    cohort: the means of all replies

Rules that engines rely on:

- The parameters of the model are one flat vector of length P, written [P].
- Server states, client states, messages and replies are NamedTuples of tensors (or nested ones, or the empty tuple).
  Names, shapes and dtypes of their tensors never change between rounds: they are what a checkpoint stores.
- `step` runs under torch.func.vmap over many clients: tensor arithmetic only, no `.item()`, no `if` on a tensor.
- Nothing is changed in place. Whatever changes between rounds is part of a state or a message, never of `self`.
- `update` sees means over the cohort and never a single reply. Therefore secure aggregation, differential privacy and
  several processes work with every method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.state import count_bytes
from fedflat.core.task import Batch, Task

NO_KEY = torch.tensor(0)  # in place of a key where nothing random is drawn


class Server(NamedTuple):
    """The server's state between rounds. Every method's server state has `params`.

    Args:
        params: the global model w that is evaluated, [P].
    """

    params: Tensor


class Message(NamedTuple):
    """What the server sends to every client of the cohort. Every method's message has `params`.

    Args:
        params: the model from which local training starts, [P].
    """

    params: Tensor


class Reply(NamedTuple):
    """What a client sends back after local training.

    Args:
        delta: the change w_k − w of the model, end minus start of local training, [P].
    """

    delta: Tensor


class Local(NamedTuple):
    """What a client knows about its own training when it ends. All are scalar tensors, [].

    Args:
        lr: the learning rate η of this round; where it falls inside the round, the mean Σ η_j / K_k of the steps.
        steps: the number K_k of steps that the client took.
        momentum: the momentum m of the client's optimiser.
        key: a hash, int64, another one in every exchange of every client, from which a reply may draw random numbers.
    """

    lr: Tensor
    steps: Tensor
    momentum: Tensor
    key: Tensor = NO_KEY


class Cohort(NamedTuple):
    """The replies of one exchange, as means over the clients whose replies arrived.

    `mean` and `uniform` are built like one reply: cohort.mean.delta is [P] where a reply's delta is [P].

    Args:
        mean: the weighted mean Σ p_k r_k, with weights p_k ≥ 0 that sum to 1.
        uniform: the plain mean Σ r_k / |S|.
        size: the number |S| of these clients.
        population: the number N of all clients of the federation.
        expected_size: the mean of |S| if every client is drawn on its own (Poisson sampling), else None. Differential
            privacy divides by it, because |S| itself would tell who took part.
    """

    mean: Any
    uniform: Any
    size: int
    population: int
    expected_size: int | None = None


@dataclass(frozen=True)
class Method:
    """FedAvg (McMahan et al., 2017, Algorithm 1): average what the clients learned.

    down w | up w_k − w | client keeps – | server keeps w

    w ← w + Σ p_k (w_k − w)

    Fields of a subclass are its hyper-parameters. Types such as `Positive` give their range.
    """

    citation: ClassVar[str] = ""  # BibTeX entry of the paper
    exchanges: ClassVar[int] = 1  # cycles of broadcast, training and update in one round, all with the same cohort
    frozen: ClassVar[str] = ""  # parameters whose names begin with this are not trained; "" trains all
    bookkeeping: ClassVar[tuple[str, ...]] = ()  # scalars of a reply that depend on `Local` alone, and on no sample

    def init_server(self, params: Tensor) -> Any:
        """Return the server's state before the first round.

        Args:
            params: the initial model, [P].
        """
        return Server(params)

    def init_client(self, params: Tensor) -> Any:
        """Return the state of a client that has not taken part yet, () if the method's clients keep nothing.

        Args:
            params: the initial model, [P].
        """
        return ()

    def broadcast(self, server: Any) -> Any:
        """Return the message that every client of the cohort receives.

        Args:
            server: the server's state.
        """
        return Message(server.params)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the direction d of one local step, [P], and the client's new state.

        The optimiser then does w ← w − η d, with its own momentum and weight decay (see core.optimiser).

        Args:
            task: the model and its loss as functions of w.
            w: the client's current model, [P].
            batch: the samples of this step; batch.step is the number j of steps taken before in this round, and
                batch.steps their number K in all.
            msg: the message that the client received.
            client: the client's state.
        """
        return task.grad(w, batch), client

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """Return what the client sends after its last step, and the state that it keeps until it takes part again.

        Args:
            w: the client's model at the end of local training, [P].
            msg: the message that the client received.
            client: the client's state after its last step.
            local: its learning rate, number of steps and momentum, and a key for random numbers.
        """
        return Reply(w - msg.params), client

    def reply_bytes(self, reply: Any) -> int:
        """Return the bytes that a client's reply takes when it is sent: those of its tensors, unless it is encoded.

        Args:
            reply: what `reply` returned; only shapes and dtypes matter.
        """
        return count_bytes(reply)

    def update(self, server: Any, cohort: Cohort) -> Any:
        """Return the server's next state.

        Args:
            server: the server's state.
            cohort: the means of the cohort's replies.
        """
        return server._replace(params=server.params + cohort.mean.delta)

    def personal(self, server: Any, client: Any) -> Tensor:
        """Return the model that a client uses after federated training, [P].

        Args:
            server: the server's final state.
            client: the client's final state.
        """
        return server.params


def hyper_parameters(method: Method) -> dict[str, Any]:
    """Return a method's hyper-parameters by name; those of a wrapped method are called inner.rho.

    Args:
        method: the method.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        inner = hyper_parameters(value) if isinstance(value, Method) else None
        values |= {field.name: value} if inner is None else {f"{field.name}.{name}": v for name, v in inner.items()}
    return values


def with_hyper_parameters(method: Method, values: Mapping[str, Any]) -> Method:
    """Return the method with other values of some hyper-parameters.

    Args:
        method: the method.
        values: the new values, named as by `hyper_parameters`.
    """
    if not values:
        return method
    own = {name: value for name, value in values.items() if "." not in name}
    for field in {name.partition(".")[0] for name in values} - own.keys():
        inner = {name.removeprefix(f"{field}."): v for name, v in values.items() if name.startswith(f"{field}.")}
        own[field] = with_hyper_parameters(getattr(method, field), inner)
    return dataclasses.replace(method, **own)
