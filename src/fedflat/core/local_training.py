"""Local training of one client: the steps of the optimiser, and the bytes of the messages before and after it.

Engines call `start_local_training`, then `local_step` for every batch, then `finish_local_training`. `local_update` is
the three in a plain loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import NO_KEY, Local, Method
from fedflat.core.optimiser import Optimiser, initial_moments, optimiser_step
from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import count_bytes, state_tensors
from fedflat.core.task import Batch, Task


class KeptState(NamedTuple):
    """What a client keeps between rounds if its optimiser's state is kept.

    Args:
        client: the state that the method keeps for the client.
        moments: the optimiser's state.
    """

    client: Any
    moments: Any


def initial_client_state(method: Method, optimiser: Optimiser, params: Tensor) -> Any:
    """Return what a client keeps that has not taken part yet: the method's state, or a KeptState.

    Args:
        method: the method.
        optimiser: the clients' optimiser.
        params: the initial model, [P].
    """
    client = method.init_client(params)
    return KeptState(client, initial_moments(optimiser, params)) if optimiser.keeps_state else client


def method_state(kept: Any) -> Any:
    """Return the method's part of what a client keeps."""
    return kept.client if isinstance(kept, KeptState) else kept


class LocalState(NamedTuple):
    """The state of one client's training between two steps.

    Args:
        w: the client's model, [P].
        moments: the optimiser's state, () if it needs none.
        client: the state that the method keeps for the client.
    """

    w: Tensor
    moments: Any
    client: Any

    def kept(self, optimiser: Optimiser) -> Any:
        """Return what the client keeps of this state: the method's state, or a KeptState."""
        return KeptState(self.client, self.moments) if optimiser.keeps_state else self.client


def start_local_training(optimiser: Optimiser, msg: Any, kept: Any) -> LocalState:
    """Return the state before the first step: the model that was received, and the optimiser's state.

    Args:
        optimiser: the clients' optimiser.
        msg: the method's message; training starts from msg.params, [P].
        kept: what the client keeps, as `initial_client_state` or `finish_local_training` returned it.
    """
    if optimiser.keeps_state:
        return LocalState(msg.params, kept.moments, kept.client)
    return LocalState(msg.params, initial_moments(optimiser, msg.params), kept)


def local_step(
    method: Method, task: Task, optimiser: Optimiser, state: LocalState, batch: Batch, msg: Any
) -> LocalState:
    """Return the state after one step of the optimiser on the method's direction. Frozen parameters stay as they are.

    Args:
        method: the method whose `step` gives the direction.
        task: the model and its loss.
        optimiser: the client's optimiser.
        state: the state before the step.
        batch: the samples of the step.
        msg: the method's message.
    """
    direction, client = method.step(task, state.w, batch, msg, state.client)
    frozen = task.mask(method.frozen, state.w.device) if method.frozen else None
    if frozen is not None and optimiser.clips:
        direction = torch.where(frozen, 0.0, direction)
    w, moments = optimiser_step(optimiser, state.w, state.moments, direction, batch.step, batch.steps)
    if frozen is not None:
        w = torch.where(frozen, state.w, w)
    return LocalState(w, moments, client)


def reply_key(first_batch: Tensor) -> Tensor:
    """Return the key from which a client's reply draws, a hash of the key of its first sample in this exchange.

    Args:
        first_batch: the keys of the samples of the client's first batch, [B]; of several clients' [..., B].
    """
    return hash_words(first_batch[..., 0], purpose_key("reply"))


def finish_local_training(
    method: Method, optimiser: Optimiser, state: LocalState, msg: Any, steps: Tensor, key: Tensor = NO_KEY
) -> tuple[Any, Any]:
    """Return the client's reply and what the client keeps.

    Args:
        method: the method whose `reply` makes both.
        optimiser: the client's optimiser.
        state: the state after the last step.
        msg: the method's message.
        steps: how many steps the client took, a scalar tensor.
        key: what `reply_key` returned; NO_KEY for a client without batches.
    """
    momentum = optimiser.momentum
    m = momentum if isinstance(momentum, Tensor) else torch.full_like(optimiser.lr, momentum)
    reply, client = method.reply(state.w, msg, state.client, Local(optimiser.mean_lr(steps), steps, m, key))
    return reply, state._replace(client=client).kept(optimiser)


def local_update(
    method: Method, task: Task, optimiser: Optimiser, msg: Any, kept: Any, batches: Iterable[Batch]
) -> tuple[Tensor, Any, Any]:
    """Train one client; return its model at the end [P], its reply and what it keeps.

    Args:
        method: the method.
        task: the model and its loss.
        optimiser: the client's optimiser.
        msg: the method's message.
        kept: what the client keeps.
        batches: the batches of this round, in order.
    """
    state, steps, key = start_local_training(optimiser, msg, kept), 0, NO_KEY
    for batch in batches:
        key = reply_key(batch.key) if steps == 0 and batch.key is not None else key
        counted = _count_like(state.w, batch)
        state, steps = local_step(method, task, optimiser, state, counted, msg), steps + 1
    count = torch.tensor(float(steps), dtype=state.w.dtype, device=state.w.device)
    reply, kept = finish_local_training(method, optimiser, state, msg, count, key)
    return state.w, reply, kept


def _count_like(w: Tensor, batch: Batch) -> Batch:
    """Return a batch with the numbers of its step in the model's dtype, which its inputs need not have."""
    numbers = {name: getattr(batch, name) for name in ("step", "steps")}
    return batch._replace(**{name: t.to(w.dtype) for name, t in numbers.items() if isinstance(t, Tensor)})


def reply_uses_steps(method: Method, params: Tensor) -> bool:
    """Return whether the method's reply, or what its clients keep, depends on learning rate, steps or momentum.

    Args:
        method: the method.
        params: a model, [P].
    """
    client, message = method.init_client(params), method.broadcast(method.init_server(params))
    unknown = torch.full((), math.nan, dtype=params.dtype, device=params.device)
    made = method.reply(message.params, message, client, Local(unknown, unknown, unknown))
    return any(bool(tensor.isnan().any()) for tensor in state_tensors(made))


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
    plain = Optimiser(one)
    reply, kept = finish_local_training(method, plain, start_local_training(plain, message, client), message, one)
    return message, reply, kept


def count_traffic(method: Method, params: Tensor) -> Traffic:
    """Return the bytes that one client receives and sends in a round, over all exchanges, and the bytes that it keeps.

    Args:
        method: the method.
        params: a model, [P]; only its length, dtype and device matter.
    """
    message, reply, kept = example_messages(method, params)
    down, up = method.exchanges * count_bytes(message), method.exchanges * method.reply_bytes(reply)
    return Traffic(down, up, count_bytes(kept))
