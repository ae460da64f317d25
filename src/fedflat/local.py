"""Local training: the only loop over batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.method import Local, Method
from fedflat.task import Batch, Task


class SGD(NamedTuple):
    """The clients' optimiser: b ← m·b + direction + λ·w; w ← w − η·b, with b = 0 at the start of every round."""

    lr: Tensor
    momentum: float
    weight_decay: float


class Carry(NamedTuple):
    """What one local step hands to the next."""

    w: Tensor
    buffer: Tensor
    client: Any


def start(msg: Any, client: Any) -> Carry:
    """Local training begins where the message says, without momentum."""
    return Carry(msg.params, torch.zeros_like(msg.params), client)


def advance(method: Method, task: Task, sgd: SGD, carry: Carry, batch: Batch, msg: Any) -> Carry:
    """One step: the method gives the direction, weight decay acts at the unperturbed w."""
    direction, client = method.step(task, carry.w, batch, msg, carry.client)
    if sgd.momentum:
        direction = sgd.momentum * carry.buffer + direction
    step = direction + sgd.weight_decay * carry.w
    w = carry.w - sgd.lr * step
    if method.frozen:
        w = torch.where(task.mask(method.frozen, w.device), carry.w, w)
    return Carry(w, step if sgd.momentum else carry.buffer, client)


def finish(method: Method, sgd: SGD, carry: Carry, msg: Any, steps: Tensor) -> tuple[Any, Any]:
    """The reply and the state the client keeps."""
    local = Local(sgd.lr, steps, torch.full_like(sgd.lr, sgd.momentum))
    return method.reply(carry.w, msg, carry.client, local)


def local_update(
    method: Method, task: Task, sgd: SGD, msg: Any, client: Any, batches: Iterable[Batch]
) -> tuple[Tensor, Any, Any]:
    """Train one client on `batches`; returns the end of training, the reply and the client's new state."""
    carry, steps = start(msg, client), 0
    for batch in batches:
        carry, steps = advance(method, task, sgd, carry, batch, msg), steps + 1
    count = torch.tensor(float(steps), dtype=carry.w.dtype, device=carry.w.device)
    reply, client = finish(method, sgd, carry, msg, count)
    return carry.w, reply, client
