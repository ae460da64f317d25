"""Own arrays as a data set: what is accepted and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedflat import Dataset, UserError

X, Y = np.zeros((6, 3)), np.array([0, 1, 2, 0, 1, 2])


def build(x=X, y=Y, clients=None):
    return Dataset.from_arrays(x, y, X[:2], Y[:2], clients)


def test_arrays_with_clients():
    data = build(clients=[[0, 1], np.array([2, 3, 4])])
    assert data.owner is not None
    assert data.owner.tolist() == [0, 0, 1, 1, 1, -1]
    assert data.classes == 3
    assert data.shape == (3, 1, 1)


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([[0, 1], []], "client 1 has no data"),
        ([[0, 1], [1, 2]], "row of client 1 is given twice"),
        ([[0, 0], [1]], "row of client 0 is given twice"),
        ([[0], [6]], "client 1 has row 6; rows are 0 to 5"),
        ([[0], [-1]], "client 1 has row -1"),
        ([[0.5], [1]], "client 0 has no data"),
    ],
)
def test_clients_that_cannot_be(clients, words):
    with pytest.raises(UserError, match=words):
        build(clients=clients)


@pytest.mark.parametrize("y", [Y - 1, Y + 0.5, Y[:, None]])
def test_labels_that_cannot_be(y):
    with pytest.raises(UserError, match="whole numbers from 0"):
        build(y=y)


def test_samples_without_labels():
    with pytest.raises(UserError, match="6 training samples with 5 labels"):
        build(y=Y[:5])
