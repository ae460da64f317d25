"""Local training of one client: the only loop over batches, and the bytes of the messages around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Local, Method
from fedflat.core.state import count_bytes
from fedflat.core.task import Batch, Task


class SGD(NamedTuple):
    """The clients' optimiser: b ← m·b + direction + λ·w; w ← w − η·b, with b = 0 at the start of every round."""

    lr: Tensor
    momentum: float
    weight_decay: float


class LocalState(NamedTuple):
    """What one local step hands to the next."""

    w: Tensor
    buffer: Tensor
    client: Any


def start_local_training(msg: Any, client: Any) -> LocalState:
    """Local training begins where the message says, without momentum."""
    return LocalState(msg.params, torch.zeros_like(msg.params), client)


def local_step(method: Method, task: Task, sgd: SGD, carry: LocalState, batch: Batch, msg: Any) -> LocalState:
    """One step: the method gives the direction, weight decay acts at the unperturbed w."""
    direction, client = method.step(task, carry.w, batch, msg, carry.client)
    if sgd.momentum:
        direction = sgd.momentum * carry.buffer + direction
    step = direction + sgd.weight_decay * carry.w
    w = carry.w - sgd.lr * step
    if method.frozen:
        w = torch.where(task.mask(method.frozen, w.device), carry.w, w)
    return LocalState(w, step if sgd.momentum else carry.buffer, client)


def finish_local_training(method: Method, sgd: SGD, carry: LocalState, msg: Any, steps: Tensor) -> tuple[Any, Any]:
    """The reply and the state the client keeps."""
    local = Local(sgd.lr, steps, torch.full_like(sgd.lr, sgd.momentum))
    return method.reply(carry.w, msg, carry.client, local)


def local_update(
    method: Method, task: Task, sgd: SGD, msg: Any, client: Any, batches: Iterable[Batch]
) -> tuple[Tensor, Any, Any]:
    """Train one client on `batches`; returns the end of training, the reply and the client's new state."""
    carry, steps = start_local_training(msg, client), 0
    for batch in batches:
        carry, steps = local_step(method, task, sgd, carry, batch, msg), steps + 1
    count = torch.tensor(float(steps), dtype=carry.w.dtype, device=carry.w.device)
    reply, client = finish_local_training(method, sgd, carry, msg, count)
    return carry.w, reply, client


class Traffic(NamedTuple):
    """Bytes per client and round, and what a client keeps between rounds."""

    down: int
    up: int
    kept: int


def example_messages(method: Method, params: Tensor) -> tuple[Any, Any, Any]:
    """A message, a reply to it and a client's state, as the method makes them for this model."""
    client = method.init_client(params)
    message = method.broadcast(method.init_server(params))
    one = torch.ones((), dtype=params.dtype, device=params.device)
    reply, kept = finish_local_training(method, SGD(one, 0.0, 0.0), start_local_training(message, client), message, one)
    return message, reply, kept


def count_traffic(method: Method, params: Tensor) -> Traffic:
    """Bytes of everything that a client receives, sends and keeps."""
    message, reply, kept = example_messages(method, params)
    return Traffic(method.exchanges * count_bytes(message), method.exchanges * count_bytes(reply), count_bytes(kept))
