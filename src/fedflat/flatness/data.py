"""The samples on which a loss surface is measured, and the loss there: of one model, or of many at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedflat.core.random import hash_words, purpose_key
from fedflat.core.task import Batch, Task
from fedflat.flatness.precision import full_precision
from fedflat.progress import with_bar

BATCH = 1000  # samples per pass: second derivatives of the FedAvg CNN then take about 3 GB


COARSE = 10_000  # samples per pass on a GPU where no gradient is kept


TOGETHER = 1500  # samples times models in one vmapped pass; more is slower on a CPU and no faster on a GPU


class Data(NamedTuple):
    """Batches and the share of all samples that each holds; F(w) = Σ_b share_b · loss(w, batch_b)."""

    batches: tuple[Batch, ...]
    shares: tuple[float, ...]
    label: str = ""  # what progress bars say is being measured

    def mean(self, function: Callable[[Batch], Tensor]) -> Tensor:
        """Σ_b share_b · function(batch_b)."""
        parts = zip(self.batches, self.shares, strict=True)
        return reduce(torch.add, (share * function(batch) for batch, share in parts))

    def coarse(self, most: int = COARSE) -> Data:
        """The same mean over samples with batches of up to `most`, where these weigh the same."""
        batches, shares = [self.batches[0]], [self.shares[0]]
        for batch, share in zip(self.batches[1:], self.shares[1:], strict=True):
            last, now = len(batches[-1].y), len(batch.y)
            if last + now <= most and math.isclose(share * last, shares[-1] * now):
                x, y, mask = (torch.cat(pair) for pair in zip(batches[-1][:3], batch[:3], strict=True))
                batches[-1] = Batch(x, y, mask, None)
                shares[-1] += share
            else:
                batches.append(batch)
                shares.append(share)
        return Data(tuple(batches), tuple(shares), self.label)

    def samples(self) -> int:
        """How many there are."""
        return sum(len(batch.y) for batch in self.batches)

    def lanes(self) -> int:
        """How many models are evaluated side by side."""
        return max(1, TOGETHER // max(len(batch.y) for batch in self.batches))


def cut(samples: Batch, size: int = BATCH, label: str = "") -> Data:
    """Samples as batches of at most `size`."""
    count = len(samples.y)
    parts = [slice(start, start + size) for start in range(0, count, size)]
    batches = [Batch(samples.x[part], samples.y[part], samples.mask[part], None) for part in parts]
    return Data(tuple(batches), tuple(len(batch.y) / count for batch in batches), label)


def join(parts: Sequence[Data], weights: Sequence[float], label: str = "") -> Data:
    """One objective F = Σ_i weight_i F_i from several; weights are normalised."""
    total = sum(weights)
    shares = [w / total * share for part, w in zip(parts, weights, strict=True) for share in part.shares]
    return Data(tuple(batch for part in parts for batch in part.batches), tuple(shares), label)


def pick(samples: Batch, count: int | None, seed: int) -> Batch:
    """`count` of the samples at random, all where there are no more."""
    if count is None or count >= len(samples.y):
        return samples
    key = int(hash_words(seed, purpose_key("flatness samples")))
    rows = hash_words(key, torch.arange(len(samples.y))).argsort(stable=True)[:count].sort().values.to(samples.y.device)
    return Batch(samples.x[rows], samples.y[rows], samples.mask[rows], None)


@torch.no_grad()
@full_precision()
def loss(task: Task, w: Tensor, data: Data) -> Tensor:
    """F(w)."""
    return data.mean(lambda batch: task.loss(w, batch))


@torch.no_grad()
@full_precision()
def score(task: Task, w: Tensor, data: Data) -> dict[str, float]:
    """F(w) and the share of samples that the model w takes for what they are."""

    def both(batch: Batch) -> Tensor:
        logits = task.logits(w, batch)
        right = (logits.argmax(-1) == batch.y).double().mean()
        return torch.stack([task.cross_entropy(logits, batch).double(), right])

    value, accuracy = data.mean(both).tolist()
    return {"model_loss": value, "model_accuracy": accuracy}


@torch.no_grad()
@full_precision()
def loss_and_gradient(task: Task, w: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """F(w) and ∇F(w) in one pass over the data."""

    def both(batch: Batch) -> Tensor:
        gradient, value = grad_and_value(task.loss)(w, batch)
        return torch.cat([value[None], gradient])

    value, gradient = data.mean(both).split([1, len(w)])
    return value[0], gradient


@torch.no_grad()
@full_precision()
def losses(task: Task, points: Tensor, data: Data) -> Tensor:
    """F at each row of `points`, evaluated side by side."""
    if len(points) == 1:  # vmap would make grouped convolutions of plain ones
        return loss(task, points[0], data)[None]
    return data.mean(lambda batch: vmap(task.loss, in_dims=(0, None))(points, batch))


def looks_across(model: nn.Module) -> bool:
    """Whether a sample's loss may depend on the others of its batch, so that other batches are another objective."""
    batch_norm = nn.modules.batchnorm._BatchNorm
    return getattr(model, "takes_batch", False) or any(isinstance(layer, batch_norm) for layer in model.modules())


@torch.no_grad()
def losses_in_plane(
    task: Task, origin: Tensor, directions: Tensor, coordinates: Tensor, data: Data, what: str = ""
) -> Tensor:
    """F(origin + Σ_k coordinates[g, k] · directions[k]) for each g; points are formed a few at a time."""
    if origin.is_cuda and not looks_across(task.model):  # a GPU is busy only with many samples
        data = data.coarse()
    parts = with_bar(coordinates.to(origin).split(data.lanes()), f"{data.label} {what}")
    return torch.cat([losses(task, origin + (part[..., None] * directions).sum(1), data) for part in parts])
