"""The loss F(w) that is analysed, as a weighted mean over batches, and the random vectors of the measurements.

Everything here computes in the parameters' precision without TF32. Random vectors are hashes of (seed, use, number,
position): they are the same on every device and in every order of drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedflat.core.batch import Batch, join_batches, select_samples, split_batch
from fedflat.core.norm_statistics import TrackingLayer
from fedflat.core.random import hash_words, mix_bits, purpose_key, uniform_from
from fedflat.core.task import Task
from fedflat.progress import with_bar

SAMPLES_PER_BATCH = 1000  # second derivatives of the FedAvg CNN then take about 3 GB
SAMPLES_PER_GPU_PASS = 10_000  # where no gradient is needed
VMAPPED_SAMPLES = 1500  # samples times models in one vmapped pass; more is slower on a CPU and no faster on a GPU


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32 off inside the context.

    TF32 rounds to 10⁻³, which is as large as most eigenvalues of a trained network relative to the first.
    """
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
    """Return one random word for each entry of `like`."""
    return hash_words(int(hash_words(seed, purpose_key(use), number)), torch.arange(len(like), device=like.device))


def gaussian_noise(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """Draw ε ~ N(0, I) as √(−2 ln u) cos 2πv (Box and Muller, 1958).

    Args:
        like: a vector [P] whose length, type and device the noise gets.
        seed: the seed of the analysis.
        use: what the noise is for; different uses get independent noise.
        number: which of the vectors of this seed and use.
    """
    key = _noise_keys(like, seed, use, number)
    u, v = (uniform_from(k, torch.float64) for k in (key, mix_bits(key)))
    return ((-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * math.pi * v)).to(like.dtype)


def random_signs(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """Draw ±1 with equal probability (Rademacher); arguments as in `gaussian_noise`."""
    return torch.where(_noise_keys(like, seed, use, number) < 0, -1.0, 1.0).to(like.dtype)


def uniform_noise(like: Tensor, seed: int, use: str, number: int) -> Tensor:
    """Draw numbers uniform on [0, 1); arguments as in `gaussian_noise`."""
    return uniform_from(_noise_keys(like, seed, use, number), like.dtype)


class Objective(NamedTuple):
    """The loss F(w) = Σ_b share_b · loss(w, batch_b) on fixed samples. Use `make_objective` to build one.

    Args:
        batches: the samples, in batches.
        shares: the weight of each batch in F, summing to 1; usually its share of all samples.
        label: what the progress bars call it.
    """

    batches: tuple[Batch, ...]
    shares: tuple[float, ...]
    label: str = ""

    def mean(self, function: Callable[[Batch], Tensor]) -> Tensor:
        """Return Σ_b share_b · function(batch_b)."""
        parts = zip(self.batches, self.shares, strict=True)
        return reduce(torch.add, (share * function(batch) for batch, share in parts))

    def with_larger_batches(self, most: int = SAMPLES_PER_GPU_PASS) -> Objective:
        """Return the same mean over samples, with neighbouring batches joined up to `most` samples each.

        Batches are joined only where their samples have equal weights.
        """
        batches, shares = [self.batches[0]], [self.shares[0]]
        for batch, share in zip(self.batches[1:], self.shares[1:], strict=True):
            last, new = len(batches[-1].y), len(batch.y)
            if last + new <= most and math.isclose(share * last, shares[-1] * new):
                batches[-1] = join_batches(batches[-1], batch)
                shares[-1] += share
            else:
                batches.append(batch)
                shares.append(share)
        return Objective(tuple(batches), tuple(shares), self.label)

    def sample_count(self) -> int:
        """Return the number of samples."""
        return sum(len(batch.y) for batch in self.batches)

    def models_per_pass(self) -> int:
        """Return how many models are evaluated in one vmapped pass."""
        return max(1, VMAPPED_SAMPLES // max(len(batch.y) for batch in self.batches))


def make_objective(samples: Batch, batch_size: int = SAMPLES_PER_BATCH, label: str = "") -> Objective:
    """Return the mean loss over `samples` as an Objective.

    Args:
        samples: inputs, labels and mask of all samples in one Batch.
        batch_size: most samples in one pass; less needs less memory. For models with batch statistics it is a part of
            the definition of F.
        label: what the progress bars call it.
    """
    batches, count = tuple(split_batch(samples, batch_size)), len(samples.y)
    return Objective(batches, tuple(len(batch.y) / count for batch in batches), label)


def join_objectives(objectives: Sequence[Objective], weights: Sequence[float], label: str = "") -> Objective:
    """Return F = Σ_i weight_i F_i / Σ_i weight_i.

    Args:
        objectives: the F_i, for example one for each client.
        weights: one positive number for each, for example the clients' numbers of samples.
        label: what the progress bars call it.
    """
    total = sum(weights)
    shares = [w / total * share for part, w in zip(objectives, weights, strict=True) for share in part.shares]
    return Objective(tuple(batch for part in objectives for batch in part.batches), tuple(shares), label)


def pick_samples(samples: Batch, count: int | None, seed: int) -> Batch:
    """Return `count` of the samples, drawn at random; all of them if count is None or there are no more."""
    if count is None or count >= len(samples.y):
        return samples
    key = int(hash_words(seed, purpose_key("flatness samples")))
    rows = hash_words(key, torch.arange(len(samples.y))).argsort(stable=True)[:count].sort().values.to(samples.y.device)
    return select_samples(samples, rows)


@torch.no_grad()
@full_precision()
def mean_loss(task: Task, w: Tensor, data: Objective) -> Tensor:
    """Return F(w), a scalar tensor."""
    return data.mean(lambda batch: task.loss(w, batch))


@torch.no_grad()
@full_precision()
def loss_and_accuracy(task: Task, w: Tensor, data: Objective) -> dict[str, float]:
    """Return F(w) as `model_loss`, and the task's main metric, such as `model_accuracy`, over all samples."""
    outputs = [task.outputs(w, batch) for batch in data.batches]
    losses = iter([task.output_loss(out, batch).double() for out, batch in zip(outputs, data.batches, strict=True)])
    loss = data.mean(lambda batch: next(losses))
    predictions = torch.cat([task.predictions(out, batch) for out, batch in zip(outputs, data.batches, strict=True)])
    metric = task.metrics(predictions, torch.cat([batch.y for batch in data.batches]))[task.metric]
    return {"model_loss": float(loss), f"model_{task.metric}": float(metric)}


@torch.no_grad()
@full_precision()
def loss_and_gradient(task: Task, w: Tensor, data: Objective) -> tuple[Tensor, Tensor]:
    """Return F(w) and ∇F(w) [P], from one pass over the data."""

    def value_and_gradient(batch: Batch) -> Tensor:
        gradient, value = grad_and_value(task.loss)(w, batch)
        return torch.cat([value[None], gradient])

    value, gradient = data.mean(value_and_gradient).split([1, len(w)])
    return value[0], gradient


@torch.no_grad()
@full_precision()
def losses_at(task: Task, points: Tensor, data: Objective) -> Tensor:
    """Return F at each row of `points` [n, P], all in one vmapped pass, as [n]."""
    if len(points) == 1:  # vmap would turn plain convolutions into grouped ones
        return mean_loss(task, points[0], data)[None]
    return data.mean(lambda batch: vmap(task.loss, in_dims=(0, None))(points, batch))


def uses_batch_statistics(model: nn.Module) -> bool:
    """Return whether a sample's loss may depend on the other samples of its batch.

    For such models other batches make another objective.
    """
    batch_norm = (nn.modules.batchnorm._BatchNorm, TrackingLayer)
    return getattr(model, "takes_batch", False) or any(isinstance(layer, batch_norm) for layer in model.modules())


@torch.no_grad()
def losses_in_plane(
    task: Task, origin: Tensor, directions: Tensor, coordinates: Tensor, data: Objective, label: str = ""
) -> Tensor:
    """Return F(origin + Σ_k coordinates[g, k] · directions[k]) for each g, as [G].

    Args:
        task: the model and its loss.
        origin: the point with all coordinates 0, [P].
        directions: the vectors that span the plane or line, [K, P].
        coordinates: the points, [G, K]; only a few at a time are formed in memory.
        data: the samples of F.
        label: what the progress bar says after the label of `data`.
    """
    if origin.is_cuda and (task.statistics is not None or not uses_batch_statistics(task.model)):
        # Only large passes keep a GPU busy. Without batch statistics a sample's loss does not depend on its batch.
        data = data.with_larger_batches()
    parts = with_bar(coordinates.to(origin).split(data.models_per_pass()), f"{data.label} {label}")
    return torch.cat([losses_at(task, origin + (part[..., None] * directions).sum(1), data) for part in parts])
