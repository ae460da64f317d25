"""A long tail: classes that become rarer from the first to the last."""

from __future__ import annotations

import numpy as np

from fedflat.core.random import purpose_key


def long_tail_rows(labels: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """Return the sorted row numbers that are left when class c of C keeps a share ratio^(c / (C - 1)) of its samples.

    The first class keeps all its samples, the last a share `ratio`; every class keeps at least one. Only classes that
    occur are counted. Which samples are kept is random.

    Args:
        labels: the class of each training sample, whole numbers [n].
        ratio: share that the last class keeps, more than 0; 1 keeps every row.
        seed: seed of the choice.
    """
    if ratio == 1:
        return np.arange(len(labels))
    classes, sizes = np.unique(labels, return_counts=True)
    shares = ratio ** (np.arange(len(classes)) / max(len(classes) - 1, 1))
    kept = np.maximum((sizes * shares).astype(np.int64), 1)
    order = np.random.default_rng([purpose_key("long tail"), seed]).permutation(len(labels))
    shuffled = np.asarray(labels)[order]
    return np.sort(np.concatenate([order[shuffled == c][:most] for c, most in zip(classes, kept, strict=True)]))
