"""Running averages of batch normalisation: what a model has beside its parameters w.

A layer that keeps running averages is a `TrackingLayer`. Its averages are not part of w: methods never see them. A
`Task` gives them to the layers of one call of its model, and collects what the layers make of them:

    in training     layers normalise by the batch's own moments and write their next averages into `updated`
    at evaluation   layers normalise by the averages
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn


class NormStatistics(NamedTuple):
    """The running averages of all layers of a model, one after the other; M is the number of their channels.

    Args:
        running_mean: averages of the batches' means, [M].
        running_var: averages of the batches' variances, [M].
    """

    running_mean: Tensor
    running_var: Tensor


class TrackingLayer(nn.Module):
    """A layer that may keep running averages in the buffers running_mean and running_var, each [channels], or None."""

    running_mean: Tensor | None
    running_var: Tensor | None

    def averages(self) -> LayerStatistics:
        """Return running_mean and running_var of a layer that keeps them."""
        assert self.running_mean is not None
        assert self.running_var is not None
        return self.running_mean, self.running_var


LayerStatistics = tuple[Tensor, Tensor]  # running_mean and running_var of one layer


class StatisticsUse(NamedTuple):
    """What the layers of one call of a model do with running averages.

    Args:
        running: whether they normalise by them.
        updated: where they write their next averages, None for nowhere.
    """

    running: bool
    updated: dict[nn.Module, LayerStatistics] | None


_current_use: list[StatisticsUse] = []  # that of the call under way, if a task calls its model


def current_statistics_use() -> StatisticsUse | None:
    """Return what layers do with running averages at this moment; None if no task calls the model."""
    return _current_use[-1] if _current_use else None


@contextmanager
def using_statistics(use: StatisticsUse) -> Iterator[None]:
    """Say what layers do with running averages inside the context."""
    _current_use.append(use)
    try:
        yield
    finally:
        _current_use.pop()


def tracking_layers(model: nn.Module) -> dict[str, TrackingLayer]:
    """Return the layers of a model that keep running averages, by name."""
    layers = ((name, module) for name, module in model.named_modules() if isinstance(module, TrackingLayer))
    return {name: layer for name, layer in layers if layer.running_mean is not None}


def join_statistics(averages: Iterable[LayerStatistics]) -> NormStatistics:
    """Return the averages of several layers as vectors.

    Args:
        averages: running_mean and running_var of each layer.
    """
    means, variances = zip(*averages, strict=True)
    return NormStatistics(torch.cat(means), torch.cat(variances))


def split_statistics(statistics: NormStatistics, sizes: list[int]) -> list[LayerStatistics]:
    """Return the averages of each layer: the inverse of `join_statistics`.

    Args:
        statistics: the averages of all layers.
        sizes: the number of channels of each layer.
    """
    return list(zip(*(torch.split(vector, sizes) for vector in statistics), strict=True))


def named_buffers(names: Iterable[str], averages: Iterable[LayerStatistics]) -> dict[str, Tensor]:
    """Return the averages of layers as buffers by name: {"norm.running_mean": …, "norm.running_var": …}.

    Args:
        names: the layers' names in the model.
        averages: running_mean and running_var of each layer.
    """
    parts = [zip(NormStatistics._fields, pair, strict=True) for pair in averages]
    named = zip(names, parts, strict=True)
    return {f"{name}.{kind}".lstrip("."): average for name, part in named for kind, average in part}
