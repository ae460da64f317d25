"""The loss F(w) that is analysed: on which samples, in which precision, at one point or many; and random vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedflat.core.random import hash_words, mix_bits, purpose_key, uniform_from
from fedflat.core.task import Batch, Task
from fedflat.progress import with_bar


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32: its rounding of 10⁻³ is as large as most eigenvalues of a trained network relative to the first."""
    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def _noise_keys(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """One random word for each entry of `like`."""
    return hash_words(int(hash_words(seed, purpose_key(use), number)), torch.arange(len(like), device=like.device))


def gaussian_noise(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """ε ~ N(0, I) of the shape, type and device of the vector `like`: √(−2 ln u) cos 2πv (Box and Muller, 1958)."""
    key = _noise_keys(like, seed, use, number)
    u, v = (uniform_from(k, torch.float64) for k in (key, mix_bits(key)))
    return ((-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * math.pi * v)).to(like.dtype)


def random_signs(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """±1 with equal probability (Rademacher)."""
    return torch.where(_noise_keys(like, seed, use, number) < 0, -1.0, 1.0).to(like.dtype)


def uniform_noise(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """Numbers in [0, 1)."""
    return uniform_from(_noise_keys(like, seed, use, number), like.dtype)


BATCH = 1000  # samples per pass: second derivatives of the FedAvg CNN then take about 3 GB


COARSE = 10_000  # samples per pass on a GPU where no gradient is kept


TOGETHER = 1500  # samples times models in one vmapped pass; more is slower on a CPU and no faster on a GPU


class Objective(NamedTuple):
    """Batches and the share of all samples that each holds; F(w) = Σ_b share_b · loss(w, batch_b)."""

    batches: tuple[Batch, ...]
    shares: tuple[float, ...]
    label: str = ""  # what progress bars say is being measured

    def mean(self, function: Callable[[Batch], Tensor]) -> Tensor:
        """Σ_b share_b · function(batch_b)."""
        parts = zip(self.batches, self.shares, strict=True)
        return reduce(torch.add, (share * function(batch) for batch, share in parts))

    def coarse(self, most: int = COARSE) -> Objective:
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
        return Objective(tuple(batches), tuple(shares), self.label)

    def samples(self) -> int:
        """How many there are."""
        return sum(len(batch.y) for batch in self.batches)

    def lanes(self) -> int:
        """How many models are evaluated side by side."""
        return max(1, TOGETHER // max(len(batch.y) for batch in self.batches))


def make_objective(samples: Batch, size: int = BATCH, label: str = "") -> Objective:
    """Samples as batches of at most `size`."""
    count = len(samples.y)
    parts = [slice(start, start + size) for start in range(0, count, size)]
    batches = [Batch(samples.x[part], samples.y[part], samples.mask[part], None) for part in parts]
    return Objective(tuple(batches), tuple(len(batch.y) / count for batch in batches), label)


def join_objectives(parts: Sequence[Objective], weights: Sequence[float], label: str = "") -> Objective:
    """One objective F = Σ_i weight_i F_i from several; weights are normalised."""
    total = sum(weights)
    shares = [w / total * share for part, w in zip(parts, weights, strict=True) for share in part.shares]
    return Objective(tuple(batch for part in parts for batch in part.batches), tuple(shares), label)


def pick_samples(samples: Batch, count: int | None, seed: int) -> Batch:
    """`count` of the samples at random, all where there are no more."""
    if count is None or count >= len(samples.y):
        return samples
    key = int(hash_words(seed, purpose_key("flatness samples")))
    rows = hash_words(key, torch.arange(len(samples.y))).argsort(stable=True)[:count].sort().values.to(samples.y.device)
    return Batch(samples.x[rows], samples.y[rows], samples.mask[rows], None)


@torch.no_grad()
@full_precision()
def mean_loss(task: Task, w: Tensor, data: Objective) -> Tensor:
    """F(w)."""
    return data.mean(lambda batch: task.loss(w, batch))


@torch.no_grad()
@full_precision()
def loss_and_accuracy(task: Task, w: Tensor, data: Objective) -> dict[str, float]:
    """F(w) and the share of samples that the model w takes for what they are."""

    def both(batch: Batch) -> Tensor:
        logits = task.logits(w, batch)
        right = (logits.argmax(-1) == batch.y).double().mean()
        return torch.stack([task.cross_entropy(logits, batch).double(), right])

    value, accuracy = data.mean(both).tolist()
    return {"model_loss": value, "model_accuracy": accuracy}


@torch.no_grad()
@full_precision()
def loss_and_gradient(task: Task, w: Tensor, data: Objective) -> tuple[Tensor, Tensor]:
    """F(w) and ∇F(w) in one pass over the data."""

    def both(batch: Batch) -> Tensor:
        gradient, value = grad_and_value(task.loss)(w, batch)
        return torch.cat([value[None], gradient])

    value, gradient = data.mean(both).split([1, len(w)])
    return value[0], gradient


@torch.no_grad()
@full_precision()
def losses_at(task: Task, points: Tensor, data: Objective) -> Tensor:
    """F at each row of `points`, evaluated side by side."""
    if len(points) == 1:  # vmap would make grouped convolutions of plain ones
        return mean_loss(task, points[0], data)[None]
    return data.mean(lambda batch: vmap(task.loss, in_dims=(0, None))(points, batch))


def mixes_samples(model: nn.Module) -> bool:
    """Whether a sample's loss may depend on the others of its batch, so that other batches are another objective."""
    batch_norm = nn.modules.batchnorm._BatchNorm
    return getattr(model, "takes_batch", False) or any(isinstance(layer, batch_norm) for layer in model.modules())


@torch.no_grad()
def losses_in_plane(
    task: Task, origin: Tensor, directions: Tensor, coordinates: Tensor, data: Objective, what: str = ""
) -> Tensor:
    """F(origin + Σ_k coordinates[g, k] · directions[k]) for each g; points are formed a few at a time."""
    if origin.is_cuda and not mixes_samples(task.model):  # a GPU is busy only with many samples
        data = data.coarse()
    parts = with_bar(coordinates.to(origin).split(data.lanes()), f"{data.label} {what}")
    return torch.cat([losses_at(task, origin + (part[..., None] * directions).sum(1), data) for part in parts])
