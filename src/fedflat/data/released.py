"""lda drawn number by number as FedSOL's released code draws it, from numpy's old generator: the splits of its tables.

The order of the draws was found from the published statistics of its splits, which the tests check.
"""

from __future__ import annotations

import numpy as np

ATTEMPTS = 20_000  # a minute for CIFAR-10; the rarest of the published splits is the 3,482nd


def attempt(by_class: list[np.ndarray], clients: int, alpha: float, state: np.random.RandomState) -> list[np.ndarray]:
    """The rows of each client: class after class, shuffled and cut by p ~ Dirichlet(α, ..., α); full clients get none.

    Nothing where the shares of a class are beyond floating-point numbers.
    """
    total = sum(map(len, by_class))
    held, pieces = np.zeros(clients, dtype=np.int64), []
    for rows in by_class:
        rows = rows.copy()
        state.shuffle(rows)
        share = np.where(held < total / clients, state.dirichlet(np.full(clients, alpha)), 0.0)
        if not 0 < share.sum() < np.inf:
            return []
        pieces.append(np.split(rows, (np.cumsum(share / share.sum()) * len(rows)).astype(np.int64)[:-1]))
        held += [len(piece) for piece in pieces[-1]]
    parts = [np.concatenate(own) for own in zip(*pieces, strict=True)]
    for part in parts:
        state.shuffle(part)
    return parts
