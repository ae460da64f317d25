"""Local training of one client: the steps of the optimiser, and the bytes of the messages before and after it.

Engines call `start_local_training`, then `local_step` for every batch, then `finish_local_training`. `local_update` is
the three in a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Local, Method
from fedflat.core.state import count_bytes
from fedflat.core.task import Batch, Task


class SGD(NamedTuple):
    """The clients' optimiser: stochastic gradient descent with momentum m and weight decay λ on a method's direction d.

    b ← m b + d + λ w;  w ← w − η b, with b = 0 at the start of every round. The method computes d; weight decay acts at
    the unperturbed w and never enters d.

    Args:
        lr: the learning rate η of this round, a scalar tensor.
        momentum: m.
        weight_decay: λ.
    """

    lr: Tensor
    momentum: float
    weight_decay: float


class LocalState(NamedTuple):
    """The state of one client's training between two steps.

    Args:
        w: the client's model, [P].
        buffer: the momentum buffer b, [P].
        client: the state that the method keeps for the client.
    """

    w: Tensor
    buffer: Tensor
    client: Any


def start_local_training(msg: Any, client: Any) -> LocalState:
    """Return the state before the first step: the model that was received, and a momentum buffer of zeros.

    Args:
        msg: the method's message; training starts from msg.params, [P].
        client: the state that the method keeps for the client.
    """
    return LocalState(msg.params, torch.zeros_like(msg.params), client)


def local_step(method: Method, task: Task, sgd: SGD, state: LocalState, batch: Batch, msg: Any) -> LocalState:
    """Return the state after one step of SGD on the method's direction. Frozen parameters stay as they are.

    Args:
        method: the method whose `step` gives the direction.
        task: the model and its loss.
        sgd: the optimiser's settings.
        state: the state before the step.
        batch: the samples of the step.
        msg: the method's message.
    """
    direction, client = method.step(task, state.w, batch, msg, state.client)
    if sgd.momentum:
        direction = sgd.momentum * state.buffer + direction
    change = direction + sgd.weight_decay * state.w
    w = state.w - sgd.lr * change
    if method.frozen:
        w = torch.where(task.mask(method.frozen, w.device), state.w, w)
    return LocalState(w, change if sgd.momentum else state.buffer, client)


def finish_local_training(method: Method, sgd: SGD, state: LocalState, msg: Any, steps: Tensor) -> tuple[Any, Any]:
    """Return the client's reply and the state that the method keeps for it.

    Args:
        method: the method whose `reply` makes both.
        sgd: the optimiser's settings.
        state: the state after the last step.
        msg: the method's message.
        steps: how many steps the client took, a scalar tensor.
    """
    local = Local(sgd.lr, steps, torch.full_like(sgd.lr, sgd.momentum))
    return method.reply(state.w, msg, state.client, local)


def local_update(
    method: Method, task: Task, sgd: SGD, msg: Any, client: Any, batches: Iterable[Batch]
) -> tuple[Tensor, Any, Any]:
    """Train one client; return its model at the end [P], its reply and the state that the method keeps for it.

    Args:
        method: the method.
        task: the model and its loss.
        sgd: the optimiser's settings.
        msg: the method's message.
        client: the state that the method keeps for the client.
        batches: the batches of this round, in order.
    """
    state, steps = start_local_training(msg, client), 0
    for batch in batches:
        state, steps = local_step(method, task, sgd, state, batch, msg), steps + 1
    count = torch.tensor(float(steps), dtype=state.w.dtype, device=state.w.device)
    reply, client = finish_local_training(method, sgd, state, msg, count)
    return state.w, reply, client


class Traffic(NamedTuple):
    """Bytes that one client receives and sends in a round, and bytes that it keeps between rounds.

    Args:
        down: received from the server.
        up: sent to the server.
        kept: the size of the client's state.
    """

    down: int
    up: int
    kept: int


def example_messages(method: Method, params: Tensor) -> tuple[Any, Any, Any]:
    """Return a message, a reply and a client's state as the method makes them, to see their structure and size.

    Nothing is trained: the reply is that of a client whose model did not move.

    Args:
        method: the method.
        params: a model, [P]; only its length, dtype and device matter.
    """
    client = method.init_client(params)
    message = method.broadcast(method.init_server(params))
    one = torch.ones((), dtype=params.dtype, device=params.device)
    reply, kept = finish_local_training(method, SGD(one, 0.0, 0.0), start_local_training(message, client), message, one)
    return message, reply, kept


def count_traffic(method: Method, params: Tensor) -> Traffic:
    """Return the bytes that one client receives and sends in a round, over all exchanges, and the bytes that it keeps.

    Args:
        method: the method.
        params: a model, [P]; only its length, dtype and device matter.
    """
    message, reply, kept = example_messages(method, params)
    return Traffic(method.exchanges * count_bytes(message), method.exchanges * count_bytes(reply), count_bytes(kept))
