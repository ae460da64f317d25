"""The samples of one local step, and functions that select, split and join them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

Samples = Tensor | tuple[Tensor, ...] | dict[str, Tensor]  # the inputs of a model: one tensor, or several


class Batch(NamedTuple):
    """The samples of one local step. B counts padding too: batches are padded so that many clients' have one shape.

    Args:
        x: inputs, [B, channels, height, width] for images, [B, length] for tokens. Several inputs are a tuple, given to
            the model in order, or a dict, given by name.
        y: targets, [B] or [B, ...]: labels, numbers, tokens, as the task wants them.
        mask: bool [B], False for padding, which no loss and no statistic may depend on.
        key: int64 [B], a hash for every sample from which dropout is drawn; None at evaluation.
        step: the number j of steps that the client took before in this round, a scalar tensor; () outside training.
        steps: the number K of its steps in this round, a scalar tensor; () outside training.
    """

    x: Samples
    y: Tensor
    mask: Tensor
    key: Tensor | None
    step: Tensor = ()  # type: ignore[assignment]
    steps: Tensor = ()  # type: ignore[assignment]


def map_batch(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply a function to every tensor of a batch.

    Args:
        function: such as `lambda t: torch.stack([t, t])`.
        batch: the batch.
    """
    others: Any = (function(t) if isinstance(t, Tensor) else t for t in batch[1:])
    return Batch(map_samples(function, batch.x), *others)


def map_samples(function: Callable[..., Tensor], x: Samples, *others: Any) -> Samples:
    """Apply a function to each tensor of the inputs, together with the tensors of further inputs built alike.

    Args:
        function: such as `lambda t: t[rows]`.
        x: one tensor, a tuple or a dict.
        others: further inputs of the same structure.
    """
    if isinstance(x, Tensor):
        return function(x, *others)
    if isinstance(x, dict):
        return {name: function(t, *(other[name] for other in others)) for name, t in x.items()}
    return tuple(function(*each) for each in zip(x, *others, strict=True))


def select_samples(data: Batch, rows: Any) -> Batch:
    """Return some samples of a batch.

    Args:
        data: the batch.
        rows: a slice, row numbers or a bool mask.
    """
    key = None if data.key is None else data.key[rows]
    return Batch(map_samples(lambda t: t[rows], data.x), data.y[rows], data.mask[rows], key)


def split_batch(data: Batch, size: int) -> Iterator[Batch]:
    """Cut a batch into pieces of at most `size` samples, in order."""
    return (select_samples(data, slice(start, start + size)) for start in range(0, len(data.y), size))


def join_batches(first: Batch, second: Batch) -> Batch:
    """Return the samples of both batches in one, without their keys."""
    x = map_samples(lambda a, b: torch.cat([a, b]), first.x, second.x)
    return Batch(x, torch.cat([first.y, second.y]), torch.cat([first.mask, second.mask]), None)


_current_batch: list[Batch] = []  # the batch of the call under way, if there is one


def current_batch() -> Batch:
    """Return the batch with which a task calls its model at this moment; layers use its mask and its keys."""
    assert _current_batch, "this layer works only inside a model that a Task calls"
    return _current_batch[-1]


@contextmanager
def as_current_batch(batch: Batch | None) -> Iterator[None]:
    """Let `current_batch` return this batch while the `with` block lasts.

    Args:
        batch: the samples with which a model is called; None if it is called without, as `FunctionalModel.head` does.
    """
    _current_batch.extend([] if batch is None else [batch])
    try:
        yield
    finally:
        _current_batch.clear()
