"""Partitions that spread each class over the clients by a Dirichlet distribution: lda, lda-released and lda-equal.

They first draw a table [N, C] of how many samples of each class each client gets, which depends on the class sizes
alone. Then they choose random rows to match it.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import numpy as np

from fedflat.data.client_rows import (
    ClientRows,
    assign_rows,
    check_alpha,
    class_sizes,
    log_gamma_draws,
    partition_generator,
    rows_by_class,
    scaled_weights,
)
from fedflat.errors import UserError, mention

RELEASED_ATTEMPTS = 20_000  # draws of `lda_released`, a minute for CIFAR-10; the rarest published split is the 3,482nd
GROUP = 10  # clients that share a random part of the data in `lda_equal`
_MAX_SHARES = 100_000_000  # `lda` stops redrawing after this many random shares, which takes a few seconds
_FAR_OFF = 20  # a tenth of them is enough if the best draw misses more than one sample in 20
_SHARES_AT_ONCE = 200_000  # few enough to stay in the processor's cache


def lda(labels: np.ndarray, clients: int, alpha: float, seed: int, minimum: int = 10) -> ClientRows:
    """Spread each class over the clients by p ~ Dirichlet(α, ..., α) in R^N (latent Dirichlet allocation of FedSOL).

    The classes follow one another. A client that already holds n / N samples gets nothing more: its p_k becomes 0 and
    the others are renormalised. The whole draw is repeated until every client holds `minimum` samples. If no draw does
    so within a few seconds, the draw that misses fewest samples is kept, small clients are topped up from the largest,
    and a line on stderr says so.

    Args:
        labels: as in `iid`.
        clients: as in `iid`, at most n / minimum.
        alpha: concentration α, more than 0; smaller is more heterogeneous.
        seed: as in `iid`.
        minimum: samples that every client has at least, 1 or more.
    """
    label, sizes = class_sizes(labels, clients)
    _check_lda(len(label), clients, alpha, minimum)
    rng = partition_generator("lda", seed)
    return assign_rows(label, spread_classes(sizes, clients, alpha, minimum, rng), rng)


def lda_released(labels: np.ndarray, clients: int, alpha: float, seed: int, minimum: int = 10) -> ClientRows:
    """Draw `lda` as the released code of FedSOL does, number by number, from numpy's old generator.

    Seed 19940817 gives the splits of FedSOL's tables. The order of the draws was inferred from the published
    statistics of these splits, which the tests check. Small clients are not topped up: UserError after
    RELEASED_ATTEMPTS draws without success. The arguments are those of `lda`.
    """
    label, sizes = class_sizes(labels, clients)
    _check_lda(len(label), clients, alpha, minimum)
    by_class = rows_by_class(label, sizes)
    state = np.random.RandomState(seed % 2**32)  # the generator of the released code
    for _ in range(RELEASED_ATTEMPTS):
        parts = draw_released_lda(by_class, clients, alpha, state)
        if min(map(len, parts), default=0) >= minimum:
            return [np.sort(part) for part in parts]
    problem = f"none of {RELEASED_ATTEMPTS} draws of lda-released gave each of {clients} clients {minimum} samples"
    raise UserError("alpha", alpha, f"{problem}; use a larger alpha, fewer clients or {mention('partition', 'lda')}")


def lda_equal(labels: np.ndarray, clients: int, alpha: float, seed: int) -> ClientRows:
    """Spread classes over groups of ten clients by `lda`, then cut all rows into N slices of equal size.

    This is the partition of FedDF (Lin et al., 2020) and FL-SAM. The rows are shuffled and dealt to groups of ten
    clients. In each group every class is spread over the ten by p ~ Dirichlet(α, ..., α), as in `lda`; the draw is
    repeated until each of the ten holds half of an equal share, or the best of many draws is taken. The rows of all
    clients, one after another and by class, are then cut into N slices whose sizes differ by at most one. So a client
    may get rows of its neighbour.

    Args:
        labels: as in `iid`.
        clients: as in `iid`.
        alpha: concentration α, more than 0; smaller is more heterogeneous.
        seed: as in `iid`.
    """
    label, _ = class_sizes(labels, clients)
    check_alpha(alpha, positive=True)
    rng = partition_generator("lda-equal", seed)
    bounds = [*range(0, clients, GROUP), clients]
    cuts = [bound * len(label) // clients for bound in bounds]
    groups = np.split(rng.permutation(len(label)), cuts[1:-1])
    members = np.diff(bounds)
    rows = [_spread_over_group(label, own, int(size), alpha, rng) for own, size in zip(groups, members, strict=True)]
    return [np.sort(part) for part in np.array_split(np.concatenate(rows), clients)]


def _check_lda(samples: int, clients: int, alpha: float, minimum: int) -> None:
    check_alpha(alpha, positive=True)
    if minimum * clients > samples:
        possible = f"at most {samples // minimum} clients are possible with {samples} training samples"
        raise UserError("clients", clients, f"lda gives each client at least {minimum} samples; {possible}")


def spread_classes(sizes: np.ndarray, clients: int, alpha: float, minimum: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the table [N, C] of `lda`: redraw until all clients hold `minimum` samples, else top up the best draw."""
    best, missing, draws = _best_draw(sizes, clients, alpha, minimum, rng)
    if missing:
        _warn_once(
            f"lda with alpha {alpha:g}: none of {draws} draws gave each of {clients} clients {minimum} samples; "
            f"moved {missing} of {sizes.sum()} samples from the largest clients to the smallest"
        )
    return _top_up(best, minimum)


def _best_draw(
    sizes: np.ndarray, clients: int, alpha: float, minimum: int, rng: np.random.Generator
) -> tuple[np.ndarray, int, int]:
    """Draw tables [N, C] of `lda` until all clients hold `minimum` samples, or too many were drawn.

    Returns the draw that misses fewest samples, how many it misses, and the number of draws.
    """
    shares_per_draw = clients * len(sizes)
    draws_at_once = max(1, _SHARES_AT_ONCE // shares_per_draw)
    best, fewest_missing, draws = np.empty(0), np.inf, 0
    while fewest_missing and draws * shares_per_draw < _shares_allowed(fewest_missing, sizes):
        counts = _draw_lda(sizes, clients, alpha, draws_at_once, rng)
        missing = np.maximum(minimum - counts.sum(-1), 0).sum(-1)
        draws += draws_at_once
        if missing.min() < fewest_missing:
            best, fewest_missing = counts[missing.argmin()], missing.min()
    return best, int(fewest_missing), draws


def _shares_allowed(missing: float, sizes: np.ndarray) -> int:
    """Return how many random shares to draw in all, given how many samples the best draw misses."""
    return _MAX_SHARES if missing * _FAR_OFF <= sizes.sum() else _MAX_SHARES // 10


@cache
def _warn_once(line: str) -> None:
    """Print a line on stderr the first time; of several processes only rank 0 prints."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)


def _draw_lda(sizes: np.ndarray, clients: int, alpha: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return independent tables [draws, N, C]. Only clients with less than n / N samples get a share of a class."""
    log_weight = log_gamma_draws(alpha, (len(sizes), draws, clients), rng)
    counts = np.zeros((len(sizes), draws, clients), dtype=np.int64)
    total = np.zeros((draws, clients), dtype=np.int64)
    for label, size in enumerate(sizes):
        cumulative = scaled_weights(log_weight[label], total * clients < sizes.sum()).cumsum(-1)
        cuts = np.floor(cumulative / cumulative[:, -1:] * size).astype(np.int64)
        counts[label] = np.diff(cuts, prepend=0)
        total += counts[label]
    return counts.transpose(1, 2, 0)


def _top_up(counts: np.ndarray, minimum: int) -> np.ndarray:
    """Move samples of the most frequent class of the largest client until each client holds `minimum`."""
    counts, total = counts.copy(), counts.sum(1)
    for client in np.flatnonzero(total < minimum):
        while total[client] < minimum:
            largest = total.argmax()
            label = counts[largest].argmax()
            moved = min(minimum - total[client], total[largest] - minimum, counts[largest, label])
            counts[[largest, client], label] += (-moved, moved)
            total[[largest, client]] += (-moved, moved)
    return counts


def _spread_over_group(
    label: np.ndarray, rows: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the rows of a group of `lda_equal`: those of its first client by class, then those of the next."""
    _, dense, sizes = np.unique(label[rows], return_inverse=True, return_counts=True)
    counts, _, _ = _best_draw(sizes, clients, alpha, len(rows) // clients // 2, rng)
    by_class = [np.split(rows[own], counts[:-1, c].cumsum()) for c, own in enumerate(rows_by_class(dense, sizes))]
    return np.concatenate([piece for client in zip(*by_class, strict=True) for piece in client])


def draw_released_lda(
    by_class: list[np.ndarray], clients: int, alpha: float, state: np.random.RandomState
) -> ClientRows:
    """Draw `lda_released` once: class by class, shuffle the rows and cut them by p ~ Dirichlet(α, ..., α).

    Clients that are full get none. Returns an empty list if the shares of a class underflow or overflow.
    """
    total = sum(map(len, by_class))
    counts, pieces = np.zeros(clients, dtype=np.int64), []
    for rows in by_class:
        rows = rows.copy()
        state.shuffle(rows)
        share = np.where(counts < total / clients, state.dirichlet(np.full(clients, alpha)), 0.0)
        if not 0 < share.sum() < np.inf:
            return []
        pieces.append(np.split(rows, (np.cumsum(share / share.sum()) * len(rows)).astype(np.int64)[:-1]))
        counts += [len(piece) for piece in pieces[-1]]
    parts = [np.concatenate(own) for own in zip(*pieces, strict=True)]
    for part in parts:
        state.shuffle(part)
    return parts
