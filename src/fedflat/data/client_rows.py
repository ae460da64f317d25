"""Tools of all partitions: class sizes, random draws, and rows that match a table of how many a client gets."""

from __future__ import annotations

import math

import numpy as np

from fedflat.core.random import purpose_key
from fedflat.errors import UserError

ClientRows = list[np.ndarray]  # the row numbers of each client's samples


def partition_generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([purpose_key(name), seed % 2**64])


def class_sizes(labels: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels, renumbered without gaps, and the class sizes; UserError if there are too many clients."""
    if clients < 1:
        raise UserError("clients", clients, "must be 1 or more")
    n = len(labels)
    if clients > n:
        possible = f"at most {n} clients are possible with {n} training samples"
        raise UserError("clients", clients, f"client {n} would have no data; {possible}")
    _, dense, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    return dense, sizes


def check_alpha(alpha: float, positive: bool) -> None:
    if not 0 <= alpha < math.inf or (positive and alpha == 0):
        raise UserError("alpha", alpha, f"must be {'more than 0' if positive else '0 or more'}, and finite")


def check_no_client_empty(parts: ClientRows, option: str, value: object, condition: str = "") -> None:
    """Raise UserError about `option` if a client has no data."""
    for client, part in enumerate(parts):
        if not len(part):
            problem = f"client {client} would have no data; every client needs at least one sample"
            raise UserError(option, value, condition + problem)


def rows_by_class(label: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Return the row numbers of each class, in order."""
    return np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])


def assign_rows(label: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> ClientRows:
    """Choose random rows so that client k gets counts[k, c] of class c; rows that are left over stay unused."""
    owner = np.full(len(label), -1)
    order = rng.permutation(len(label))
    order = order[np.argsort(label[order], kind="stable")]
    starts = np.cumsum(np.bincount(label)) - np.bincount(label)
    for c, start in enumerate(starts):
        clients = np.repeat(np.arange(len(counts)), counts[:, c])
        owner[order[start : start + len(clients)]] = clients
    return group_rows(owner, len(counts))


def group_rows(owner: np.ndarray, clients: int) -> ClientRows:
    """Return the rows of client 0, 1, ..., N - 1."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(clients + 1))
    return np.split(order, bounds)[1:-1]


def log_gamma_draws(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return logarithms of Gamma(α) draws: the shares of a Dirichlet distribution before normalisation.

    Gamma(α) = Gamma(α + 1) U^(1/α), whose logarithm stays finite where the draw itself would underflow to 0.
    """
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / max(alpha, 1e-300)


def scaled_weights(log_weight: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return exp(log_weight) where allowed, else 0, scaled so that the largest along the last axis is 1."""
    log_weight = np.where(allowed, log_weight, -np.inf)
    return np.exp(log_weight - log_weight.max(-1, keepdims=True))
