"""kNN-Per (Marfoq et al., 2022): mix the model's prediction with that of the client's own nearest samples.

p(y | x) = λ p_kNN(y | x) + (1 − λ) p_w(y | x)
p_kNN(y | x) = Σ over the k nearest z_i of softmax(−‖z(x) − z_i‖)_i · [y_i = y],  z the penultimate features
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedflat.core.batch import Batch, split_batch
from fedflat.core.task import Task

NEIGHBOURS = 5  # k
KNN_WEIGHTS = tuple(i / 10 for i in range(11))  # the values of λ that are tried


@torch.no_grad()
def knn_predictions(task: Task, w: Tensor, memory: Batch, query: Batch) -> tuple[Tensor, Tensor]:
    """Return p_kNN and p_w of the samples `query`, each [B, classes].

    Args:
        task: a model with features and head.
        w: its parameters, [P].
        memory: the client's stored samples, among which neighbours are searched.
        query: the B samples to classify.
    """
    memory_features, query_features = all_features(task, w, memory), all_features(task, w, query)
    p_model = torch.softmax(task.head(w, query_features), -1)
    return nearest_labels(memory_features, memory.y, query_features, p_model.shape[1]), p_model


def nearest_labels(memory: Tensor, labels: Tensor, query: Tensor, classes: int, k: int = NEIGHBOURS) -> Tensor:
    """Return p_kNN [B, classes] from features.

    Args:
        memory: features of the stored samples, [M, D].
        labels: their classes, [M].
        query: features of the samples to classify, [B, D].
        classes: the number of classes.
        k: the number of neighbours; all stored samples if there are fewer.
    """
    distance = torch.cdist(query, memory, compute_mode="donot_use_mm_for_euclid_dist")
    distance, nearest = distance.topk(min(k, len(memory)), largest=False)
    zeros = query.new_zeros(len(query), classes)
    return zeros.scatter_add(1, labels[nearest], torch.softmax(-distance, -1))


def mix_predictions(p_knn: Tensor, p_model: Tensor, weight: float) -> Tensor:
    """Return λ p_kNN + (1 − λ) p_w, with λ = `weight`."""
    return weight * p_knn + (1 - weight) * p_model


def choose_knn_weight(p_knn: Tensor, p_model: Tensor, y: Tensor) -> float:
    """Return the λ that is best on held-out samples.

    That is the λ with the highest accuracy, and among equals the one that gives the labels the highest mean
    probability.

    Args:
        p_knn: predictions of the neighbours, [B, classes].
        p_model: predictions of the model, [B, classes].
        y: the labels, [B].
    """

    def accuracy_then_probability(weight: float) -> tuple[float, float]:
        mixed = mix_predictions(p_knn, p_model, weight)
        return label_accuracy(mixed, y), float(mixed.gather(1, y[:, None]).mean())

    return max(KNN_WEIGHTS, key=accuracy_then_probability)


def label_accuracy(scores: Tensor, y: Tensor) -> float:
    """Return the share of samples whose label has the highest score; `scores` are [B, classes], `y` [B]."""
    return float((scores.argmax(-1) == y).double().mean())


def all_features(task: Task, w: Tensor, data: Batch, batch_size: int = 2000) -> Tensor:
    """Return the penultimate features [B, D] of all samples of `data`, computed `batch_size` at a time."""
    return torch.cat([task.features(w, batch) for batch in split_batch(data, batch_size)])
