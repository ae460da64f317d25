"""Which client holds which training samples: partitions of a labelled data set.

A partition is a function of the labels and a seed. It returns one sorted int64 array of row numbers per client. No row
goes to two clients and no client is left without data. In the formulas there are n samples, C classes that occur, and
N clients, numbered k.

`lda` and `dirichlet` first draw a table [N, C] of how many samples of each class each client gets, which depends on the
class sizes alone. Then they choose random rows to match it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from fedflat.core.random import purpose_key
from fedflat.errors import UserError, mention, near_miss

ClientRows = list[np.ndarray]  # the row numbers of each client's samples
RELEASED_ATTEMPTS = 20_000  # draws of `lda_released`, a minute for CIFAR-10; the rarest published split is the 3,482nd
_MAX_SHARES = 100_000_000  # `lda` stops redrawing after this many random shares, which takes a few seconds
_FAR_OFF = 20  # a tenth of them is enough if the best draw misses more than one sample in 20
_SHARES_AT_ONCE = 200_000  # few enough to stay in the processor's cache
GROUP = 10  # clients that share a random part of the data in `lda_equal`


def iid(labels: np.ndarray, clients: int, seed: int) -> ClientRows:
    """Shuffle the rows and cut them into N slices, whose sizes differ by at most one.

    Args:
        labels: the class of each training sample, whole numbers [n].
        clients: number of clients N, from 1 to n.
        seed: seed of the partition.
    """
    _class_sizes(labels, clients)
    order = _generator("iid", seed).permutation(len(labels))
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
    label, sizes = _class_sizes(labels, clients)
    total = per_client * clients
    if total < len(sizes):
        least = math.ceil(len(sizes) / clients)
        problem = f"{clients} clients cannot cover {len(sizes)} classes; use {least} or more"
        raise UserError("shards", per_client, problem)
    number = np.full(len(sizes), total // len(sizes))
    number[np.argsort(-sizes, kind="stable")[: total % len(sizes)]] += 1
    by_class = zip(_rows_by_class(label, sizes), number, strict=True)
    every_shard = [shard for rows, k in by_class for shard in np.array_split(rows, k)]
    assigned = _generator("shards", seed).permutation(total).reshape(clients, per_client)
    parts = [np.sort(np.concatenate([every_shard[i] for i in own])) for own in assigned]
    _check_no_client_empty(parts, "clients", clients, f"with {per_client} shards per client, ")
    return parts


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
    label, sizes = _class_sizes(labels, clients)
    _check_lda(len(label), clients, alpha, minimum)
    rng = _generator("lda", seed)
    return _assign_rows(label, spread_classes(sizes, clients, alpha, minimum, rng), rng)


def lda_released(labels: np.ndarray, clients: int, alpha: float, seed: int, minimum: int = 10) -> ClientRows:
    """Draw `lda` as the released code of FedSOL does, number by number, from numpy's old generator.

    Seed 19940817 gives the splits of FedSOL's tables. The order of the draws was inferred from the published
    statistics of these splits, which the tests check. Small clients are not topped up: UserError after
    RELEASED_ATTEMPTS draws without success. The arguments are those of `lda`.
    """
    label, sizes = _class_sizes(labels, clients)
    _check_lda(len(label), clients, alpha, minimum)
    by_class = _rows_by_class(label, sizes)
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
    label, _ = _class_sizes(labels, clients)
    _check_alpha(alpha, positive=True)
    rng = _generator("lda-equal", seed)
    bounds = [*range(0, clients, GROUP), clients]
    cuts = [bound * len(label) // clients for bound in bounds]
    groups = np.split(rng.permutation(len(label)), cuts[1:-1])
    members = np.diff(bounds)
    rows = [_spread_over_group(label, own, int(size), alpha, rng) for own, size in zip(groups, members, strict=True)]
    return [np.sort(part) for part in np.array_split(np.concatenate(rows), clients)]


def dirichlet(labels: np.ndarray, clients: int, alpha: float, seed: int) -> ClientRows:
    """Give each client floor(n / N) samples of classes drawn from q_k ~ Dirichlet(α / C) (Hsu et al., 2019).

    This is the partition of FedGF and FedGloSS. Clients are filled one after another, without replacement; a class that
    runs out gets q = 0 and the others are renormalised. α = 0 gives one class per client: see `one_class_each`.

    Args:
        labels: as in `iid`.
        clients: as in `iid`.
        alpha: concentration α, 0 or more; smaller is more heterogeneous.
        seed: as in `iid`.
    """
    label, sizes = _class_sizes(labels, clients)
    _check_alpha(alpha, positive=False)
    rng = _generator("dirichlet", seed)
    counts = fill_clients(sizes, clients, alpha, rng) if alpha > 0 else one_class_each(sizes, clients, rng)
    return _assign_rows(label, counts, rng)


def natural(owner: np.ndarray) -> ClientRows:
    """Return the partition that the data set itself names.

    Args:
        owner: the client of each row, numbered from 0; -1 for rows of no client, which stay unused.
    """
    owner = np.asarray(owner)
    parts = _group_rows(owner, int(owner.max(initial=0)) + 1)
    _check_no_client_empty(parts, "partition", "natural")
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
    order = _generator("aligned test", seed).permutation(len(test_labels))
    shuffled = np.asarray(test_labels)[order]
    return np.sort(np.concatenate([order[shuffled == c][:most] for c, most in enumerate(wanted)]))


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
    log_weight = _log_gamma(alpha, (len(sizes), draws, clients), rng)
    counts = np.zeros((len(sizes), draws, clients), dtype=np.int64)
    total = np.zeros((draws, clients), dtype=np.int64)
    for label, size in enumerate(sizes):
        cumulative = _weights(log_weight[label], total * clients < sizes.sum()).cumsum(-1)
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
    by_class = [np.split(rows[own], counts[:-1, c].cumsum()) for c, own in enumerate(_rows_by_class(dense, sizes))]
    return np.concatenate([piece for client in zip(*by_class, strict=True) for piece in client])


def fill_clients(sizes: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the table [N, C] of `dirichlet`: fill one client after another, as long as there are samples of a class.

    All clients that are not filled yet draw at once. Those before the first that asks for more than is left are done.
    That one takes what is left and, like those after it, draws the rest again without the classes that ran out. So
    there are about C passes.
    """
    log_weight = _log_gamma(alpha / len(sizes), (clients, len(sizes)), rng)
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    needed, left, first = np.full(clients, sizes.sum() // clients), sizes.copy(), 0
    while first < clients:
        weight = _weights(log_weight[first:], left > 0)
        drawn = rng.multinomial(needed[first:], weight / weight.sum(-1, keepdims=True))
        done = int((drawn.cumsum(0) <= left).all(1).sum())
        counts[first : first + done] += drawn[:done]
        left -= drawn[:done].sum(0)
        first += done
        if first < clients:
            taken = np.minimum(drawn[done], left)
            counts[first] += taken
            left -= taken
            needed[first] -= taken.sum()
    return counts


def one_class_each(sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Return a table [N, C] with one class per client, in random order, and all samples used.

    With N >= C each class is shared equally by its clients. Their number is chosen so that the largest client is as
    small as possible: each further client joins the class with most samples per client. With N < C whole classes, the
    largest first, go to the client that holds least.
    """
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    if clients < len(sizes):
        for label in np.argsort(-sizes, kind="stable"):
            counts[counts.sum(1).argmin(), label] = sizes[label]
        return rng.permutation(counts)
    sharing = np.ones_like(sizes)
    for _ in range(clients - len(sizes)):
        sharing[(sizes / sharing).argmax()] += 1
    label = np.repeat(np.arange(len(sizes)), sharing)
    counts[np.arange(clients), label] = np.concatenate(
        [np.diff(np.arange(number + 1) * size // number) for size, number in zip(sizes, sharing, strict=True)]
    )
    return rng.permutation(counts)


def _log_gamma(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return logarithms of Gamma(α) draws: the shares of a Dirichlet distribution before normalisation.

    Gamma(α) = Gamma(α + 1) U^(1/α), whose logarithm stays finite where the draw itself would underflow to 0.
    """
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / max(alpha, 1e-300)


def _weights(log_weight: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return exp(log_weight) where allowed, else 0, scaled so that the largest along the last axis is 1."""
    log_weight = np.where(allowed, log_weight, -np.inf)
    return np.exp(log_weight - log_weight.max(-1, keepdims=True))


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


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([purpose_key(name), seed % 2**64])


def _class_sizes(labels: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels, renumbered without gaps, and the class sizes; UserError if there are too many clients."""
    if clients < 1:
        raise UserError("clients", clients, "must be 1 or more")
    n = len(labels)
    if clients > n:
        possible = f"at most {n} clients are possible with {n} training samples"
        raise UserError("clients", clients, f"client {n} would have no data; {possible}")
    _, dense, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    return dense, sizes


def _check_lda(samples: int, clients: int, alpha: float, minimum: int) -> None:
    _check_alpha(alpha, positive=True)
    if minimum * clients > samples:
        possible = f"at most {samples // minimum} clients are possible with {samples} training samples"
        raise UserError("clients", clients, f"lda gives each client at least {minimum} samples; {possible}")


def _check_alpha(alpha: float, positive: bool) -> None:
    if not 0 <= alpha < math.inf or (positive and alpha == 0):
        raise UserError("alpha", alpha, f"must be {'more than 0' if positive else '0 or more'}, and finite")


def _rows_by_class(label: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Return the row numbers of each class, in order."""
    return np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])


def _assign_rows(label: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> ClientRows:
    """Choose random rows so that client k gets counts[k, c] of class c; rows that are left over stay unused."""
    owner = np.full(len(label), -1)
    order = rng.permutation(len(label))
    order = order[np.argsort(label[order], kind="stable")]
    starts = np.cumsum(np.bincount(label)) - np.bincount(label)
    for c, start in enumerate(starts):
        clients = np.repeat(np.arange(len(counts)), counts[:, c])
        owner[order[start : start + len(clients)]] = clients
    return _group_rows(owner, len(counts))


def _group_rows(owner: np.ndarray, clients: int) -> ClientRows:
    """Return the rows of client 0, 1, ..., N - 1."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(clients + 1))
    return np.split(order, bounds)[1:-1]


def _check_no_client_empty(parts: ClientRows, option: str, value: object, condition: str = "") -> None:
    """Raise UserError about `option` if a client has no data."""
    for client, part in enumerate(parts):
        if not len(part):
            problem = f"client {client} would have no data; every client needs at least one sample"
            raise UserError(option, value, condition + problem)
