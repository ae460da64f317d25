"""kNN-Per (Marfoq et al., 2022): a client's memory of its own samples beside the model.

p(y | x) = λ p_kNN(y | x) + (1 − λ) p_w(y | x)
p_kNN(y | x) = Σ over the k nearest z_i of softmax(−‖z(x) − z_i‖)_i · [y_i = y],  z the penultimate features
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedflat.core.task import Batch, Task

NEIGHBOURS = 5


WEIGHTS = tuple(i / 10 for i in range(11))  # the λ that are tried


@torch.no_grad()
def knn_predictions(task: Task, w: Tensor, memory: Batch, query: Batch) -> tuple[Tensor, Tensor]:
    """p_kNN and p_w [B, classes] of the samples `query`, the client remembering `memory`."""
    stored, asked = all_features(task, w, memory), all_features(task, w, query)
    model = torch.softmax(task.head(w, asked), -1)
    return nearest_labels(stored, memory.y, asked, model.shape[1]), model


def nearest_labels(stored: Tensor, labels: Tensor, asked: Tensor, classes: int, k: int = NEIGHBOURS) -> Tensor:
    """p_kNN from features; all of them where there are fewer than k."""
    distance = torch.cdist(asked, stored, compute_mode="donot_use_mm_for_euclid_dist")
    distance, which = distance.topk(min(k, len(stored)), largest=False)
    empty = asked.new_zeros(len(asked), classes)
    return empty.scatter_add(1, labels[which], torch.softmax(-distance, -1))


def mix_predictions(neighbours: Tensor, model: Tensor, weight: float) -> Tensor:
    """λ p_kNN + (1 − λ) p_w."""
    return weight * neighbours + (1 - weight) * model


def choose_knn_weight(neighbours: Tensor, model: Tensor, y: Tensor) -> float:
    """The λ that classifies most of the held-out samples, and among those gives their labels most probability."""

    def merit(weight: float) -> tuple[float, float]:
        mixed = mix_predictions(neighbours, model, weight)
        return label_accuracy(mixed, y), float(mixed.gather(1, y[:, None]).mean())

    return max(WEIGHTS, key=merit)


def label_accuracy(scores: Tensor, y: Tensor) -> float:
    """Share of samples whose label has the highest score."""
    return float((scores.argmax(-1) == y).double().mean())


def all_features(task: Task, w: Tensor, data: Batch, batch_size: int = 2000) -> Tensor:
    """Penultimate features of many samples."""
    pieces = zip(*(t.split(batch_size) for t in data[:3]), strict=True)
    return torch.cat([task.features(w, Batch(x, y, mask, None)) for x, y, mask in pieces])
