"""kNN-Per: probabilities from the nearest samples, and the weight they get."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from fedflat.core.task import Batch, Task
from fedflat.models.cnn import mlp
from fedflat.personal.knn_per import (
    all_features,
    choose_knn_weight,
    knn_predictions,
    label_accuracy,
    mix_predictions,
    nearest_labels,
)


def test_nearest_by_hand():
    memory, labels = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([2, 0, 1])
    p_knn = nearest_labels(memory, labels, torch.tensor([[0.0]]), classes=3, k=2)
    near, far = 1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))
    assert p_knn.tolist()[0] == pytest.approx([far, 0.0, near])


def test_nearest_agrees_with_scikit_learn():
    torch.manual_seed(0)
    memory, query, labels = torch.randn(30, 4), torch.randn(12, 4), torch.randint(3, (30,))
    distance, nearest = NearestNeighbors(n_neighbors=5).fit(memory.numpy()).kneighbors(query.numpy())
    weight = torch.softmax(-torch.tensor(distance), -1)
    expected = torch.stack([(weight * (labels[nearest] == c)).sum(-1) for c in range(3)], -1)
    assert torch.allclose(nearest_labels(memory, labels, query, 3).double(), expected, atol=1e-6)


def test_few_samples_are_all_neighbours():
    p_knn = nearest_labels(torch.zeros(2, 1), torch.tensor([1, 1]), torch.ones(4, 1), classes=2)
    assert torch.equal(p_knn, torch.tensor([[0.0, 1.0]]).expand(4, 2))


def test_the_weight_goes_to_the_correct_prediction():
    y = torch.tensor([0, 1])
    right, wrong = torch.eye(2), 1 - torch.eye(2)
    assert choose_knn_weight(right, wrong, y) == 1
    assert choose_knn_weight(wrong, right, y) == 0
    assert label_accuracy(mix_predictions(right, wrong, 0.4), y) == 0
    assert label_accuracy(mix_predictions(right, wrong, 0.6), y) == 1


def test_equal_accuracy_is_decided_by_probability():
    y = torch.tensor([0])
    sure, unsure = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.6, 0.4]])
    assert choose_knn_weight(sure, unsure, y) == 1
    assert choose_knn_weight(unsure, sure, y) == 0


def test_predictions_use_the_models_features_and_head():
    model = mlp((3, 1, 1), 4)
    task = Task(model)
    w = task.flatten(dict(model.named_parameters())).detach()
    memory, query = (Batch(torch.randn(n, 3, 1, 1), torch.arange(n) % 4, torch.ones(n) > 0, None) for n in (7, 5))
    p_knn, p_model = knn_predictions(task, w, memory, query)
    assert torch.allclose(p_model, torch.softmax(task.logits(w, query), -1), atol=1e-6)
    assert torch.allclose(p_knn.sum(-1), torch.ones(5))
    alone, _ = knn_predictions(task, w, query, query)
    assert (alone.argmax(-1) == query.y).all()
    assert torch.allclose(all_features(task, w, memory, batch_size=3), task.features(w, memory), atol=1e-6)
