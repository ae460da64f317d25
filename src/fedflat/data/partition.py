"""Which client holds which training samples: partitions of a labelled data set.

A partition is a function of the labels and a seed. It returns one sorted int64 array of row numbers per client. No row
goes to two clients and no client is left without data. In the formulas there are n samples, C classes that occur, and
N clients, numbered k. A long tail takes samples away before the partition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedflat.data.client_rows import (
    ClientRows,
    check_no_client_empty,
    class_sizes,
    group_rows,
    partition_generator,
    rows_by_class,
)
from fedflat.data.dirichlet import dirichlet
from fedflat.data.lda import lda, lda_equal, lda_released
from fedflat.errors import UserError, near_miss


def iid(labels: np.ndarray, clients: int, seed: int) -> ClientRows:
    """Shuffle the rows and cut them into N slices, whose sizes differ by at most one.

    Args:
        labels: the class of each training sample, whole numbers [n].
        clients: number of clients N, from 1 to n.
        seed: seed of the partition.
    """
    class_sizes(labels, clients)
    order = partition_generator("iid", seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def shards(labels: np.ndarray, clients: int, per_client: int, seed: int) -> ClientRows:
    """Give each client s shards of one class each, at random (McMahan et al., 2017, in the form of FedSOL).

    Each class is cut, in the order of the rows, into s N / C equal shards. If that is no whole number, the largest
    classes are cut into one shard more, so that there are s N. A client may get two shards of the same class.

    Args:
        labels: as in `iid`.
        clients: as in `iid`.
        per_client: shards s of each client; s N must be at least C.
        seed: as in `iid`.
    """
    label, sizes = class_sizes(labels, clients)
    total = per_client * clients
    if total < len(sizes):
        least = math.ceil(len(sizes) / clients)
        problem = f"{clients} clients cannot cover {len(sizes)} classes; use {least} or more"
        raise UserError("shards", per_client, problem)
    number = np.full(len(sizes), total // len(sizes))
    number[np.argsort(-sizes, kind="stable")[: total % len(sizes)]] += 1
    by_class = zip(rows_by_class(label, sizes), number, strict=True)
    every_shard = [shard for rows, k in by_class for shard in np.array_split(rows, k)]
    assigned = partition_generator("shards", seed).permutation(total).reshape(clients, per_client)
    parts = [np.sort(np.concatenate([every_shard[i] for i in own])) for own in assigned]
    check_no_client_empty(parts, "clients", clients, f"with {per_client} shards per client, ")
    return parts


def natural(owner: np.ndarray) -> ClientRows:
    """Return the partition that the data set itself names.

    Args:
        owner: the client of each row, numbered from 0; -1 for rows of no client, which stay unused.
    """
    owner = np.asarray(owner)
    parts = group_rows(owner, int(owner.max(initial=0)) + 1)
    check_no_client_empty(parts, "partition", "natural")
    return parts


PARTITIONS: dict[str, Callable[..., ClientRows]] = {
    "iid": iid,
    "shards": shards,
    "lda": lda,
    "lda-released": lda_released,
    "lda-equal": lda_equal,
    "dirichlet": dirichlet,
    "natural": natural,
}


def partition_rows(
    name: str, labels: np.ndarray, clients: int, seed: int, alpha: float, shards: int, owner: np.ndarray | None = None
) -> ClientRows:
    """Return the row numbers of each client in the partition called `name`.

    Args:
        name: a key of PARTITIONS.
        labels: the class of each training sample, whole numbers [n].
        clients: number of clients; "natural" ignores it.
        seed: seed of the partition; "natural" ignores it.
        alpha: concentration, for "dirichlet" and the partitions whose names begin with "lda".
        shards: shards per client, for "shards".
        owner: the client of each row, for "natural"; None if the data name no clients.
    """
    if name not in PARTITIONS:
        known = ", ".join(PARTITIONS)
        raise UserError("partition", name, f"unknown{near_miss(name, PARTITIONS)}; known partitions: {known}")
    if name != "natural":
        options: dict[str, tuple[Any, ...]] = {"iid": (), "shards": (shards,)}
        return PARTITIONS[name](labels, clients, *options.get(name, (alpha,)), seed)
    if owner is None:
        raise UserError("partition", name, "these data have no clients of their own; use iid, shards, lda, dirichlet")
    return natural(owner)


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
    order = partition_generator("long tail", seed).permutation(len(labels))
    shuffled = np.asarray(labels)[order]
    return np.sort(np.concatenate([order[shuffled == c][:most] for c, most in zip(classes, kept, strict=True)]))


def describe_partition(name: str, alpha: float, shards: int) -> str:
    """Return the partition's name and option for titles: "lda α = 0.1"."""
    option = {"iid": "", "natural": "", "shards": f" s = {shards}"}.get(name, f" α = {alpha:g}")
    return f"{name}{option}"


def class_counts(labels: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """Return how many samples of each class each client holds, [clients, classes]."""
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cell = client * classes + np.asarray(labels)[np.concatenate(parts)]
    return np.bincount(cell, minlength=len(parts) * classes).reshape(len(parts), classes)


def matching_test_rows(
    test_labels: np.ndarray, client_label_counts: np.ndarray, seed: int, size: int = 1000
) -> np.ndarray:
    """Return random test rows in which the classes are as frequent as in a client's training data.

    Of class c there are floor(size n_kc / n_k) rows, or all of the class if the test set has fewer.

    Args:
        test_labels: the class of each test sample.
        client_label_counts: the client's training samples n_kc of each class c.
        seed: which of the rows of a class are taken.
        size: rows to return, at most.
    """
    label_counts = np.asarray(client_label_counts, dtype=np.int64)
    wanted = size * label_counts // label_counts.sum()
    order = partition_generator("aligned test", seed).permutation(len(test_labels))
    shuffled = np.asarray(test_labels)[order]
    return np.sort(np.concatenate([order[shuffled == c][:most] for c, most in enumerate(wanted)]))
