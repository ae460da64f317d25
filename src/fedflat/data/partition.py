"""Which client holds which training samples: partitions of a labelled data set.

The tables depend on the class sizes alone (n samples, C classes, N clients); `partition` then deals rows to match.

The order of the draws was found from the published statistics of its splits, which the tests check.
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
from fedflat.errors import UserError, near_miss

_DRAWS = 100_000_000  # `over_clients` stops redrawing after this many random shares, a few seconds


_HOPELESS = 20  # a tenth of that will do where the best attempt misses more than one sample in so many


_CHUNK = 200_000  # shares drawn at once: little enough to stay in the processor's cache


def spread_classes(sizes: np.ndarray, clients: int, alpha: float, minimum: int, rng: np.random.Generator) -> np.ndarray:
    """Spread each class by p ~ Dirichlet(α, ..., α) over the clients, again and again until all hold `minimum`.

    Attempts are drawn in chunks and the first that succeeds is taken. If none does, the attempt that misses fewest
    samples is topped up, and a line on stderr says so.
    """
    table = clients * len(sizes)
    at_once = max(1, _CHUNK // table)
    best, least, attempts = np.empty(0), np.inf, 0
    while least and attempts * table < (_DRAWS if least * _HOPELESS <= sizes.sum() else _DRAWS // 10):
        held = _attempts(sizes, clients, alpha, at_once, rng)
        missing = np.maximum(minimum - held.sum(-1), 0).sum(-1)
        attempts += at_once
        if missing.min() < least:
            best, least = held[missing.argmin()], missing.min()
    if least:
        _tell(
            f"lda with alpha {alpha:g}: none of {attempts} draws gave each of {clients} clients {minimum} samples; "
            f"moved {least} of {sizes.sum()} samples from the largest clients to the smallest"
        )
    return _top_up(best, minimum)


@cache
def _tell(line: str) -> None:
    """Print the line, once: a run deals the same samples again for its report; of many processes the first prints."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)


def _attempts(sizes: np.ndarray, clients: int, alpha: float, attempts: int, rng: np.random.Generator) -> np.ndarray:
    """Independent tables [attempts, N, C]: class after class, only clients that hold less than n / N get a share."""
    log_weight = _log_gamma(alpha, (len(sizes), attempts, clients), rng)
    held = np.zeros((len(sizes), attempts, clients), dtype=np.int64)
    total = np.zeros((attempts, clients), dtype=np.int64)
    for label, size in enumerate(sizes):
        heap = _weights(log_weight[label], total * clients < sizes.sum()).cumsum(-1)
        cuts = np.floor(heap / heap[:, -1:] * size).astype(np.int64)
        held[label] = np.diff(cuts, prepend=0)
        total += held[label]
    return held.transpose(1, 2, 0)


def _top_up(held: np.ndarray, minimum: int) -> np.ndarray:
    """Move samples of the commonest class of the largest client until each client holds `minimum`."""
    held, total = held.copy(), held.sum(1)
    for client in np.flatnonzero(total < minimum):
        while total[client] < minimum:
            giver = total.argmax()
            label = held[giver].argmax()
            moved = min(minimum - total[client], total[giver] - minimum, held[giver, label])
            held[[giver, client], label] += (-moved, moved)
            total[[giver, client]] += (-moved, moved)
    return held


def fill_clients(sizes: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Fill one client after another with floor(n / N) samples of classes q_k ~ Dirichlet(α / C) until classes run out.

    All waiting clients draw at once. Those before the first that asks for more than is left are done; that one takes
    what there is and, with the others, draws the rest again without the exhausted class. So there are about C passes.
    """
    log_weight = _log_gamma(alpha / len(sizes), (clients, len(sizes)), rng)
    held = np.zeros((clients, len(sizes)), dtype=np.int64)
    need, left, first = np.full(clients, sizes.sum() // clients), sizes.copy(), 0
    while first < clients:
        weight = _weights(log_weight[first:], left > 0)
        drawn = rng.multinomial(need[first:], weight / weight.sum(-1, keepdims=True))
        done = int((drawn.cumsum(0) <= left).all(1).sum())
        held[first : first + done] += drawn[:done]
        left -= drawn[:done].sum(0)
        first += done
        if first < clients:
            take = np.minimum(drawn[done], left)
            held[first] += take
            left -= take
            need[first] -= take.sum()
    return held


def one_class_each(sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """One class per client, in random order, as balanced as the class sizes allow.

    With N >= C each further client joins the class with most samples per client, and a class is shared out equally.
    With N < C whole classes, the largest first, go to the client that holds least.
    """
    held = np.zeros((clients, len(sizes)), dtype=np.int64)
    if clients < len(sizes):
        for label in np.argsort(-sizes, kind="stable"):
            held[held.sum(1).argmin(), label] = sizes[label]
        return rng.permutation(held)
    parts = np.ones_like(sizes)
    for _ in range(clients - len(sizes)):
        parts[(sizes / parts).argmax()] += 1
    label = np.repeat(np.arange(len(sizes)), parts)
    held[np.arange(clients), label] = np.concatenate(
        [np.diff(np.arange(part + 1) * size // part) for size, part in zip(sizes, parts, strict=True)]
    )
    return rng.permutation(held)


def _log_gamma(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Logarithms of Gamma(α) draws, the shares of a Dirichlet before they are normalised.

    Gamma(α) = Gamma(α + 1) U^(1/α), whose logarithm stays finite where the draw itself would underflow to 0.
    """
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / max(alpha, 1e-300)


def _weights(log_weight: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """exp(log_weight) along the last axis where allowed, else 0, scaled so that the largest is 1."""
    log_weight = np.where(allowed, log_weight, -np.inf)
    return np.exp(log_weight - log_weight.max(-1, keepdims=True))


RELEASED_ATTEMPTS = 20_000  # a minute for CIFAR-10; the rarest of the published splits is the 3,482nd


def draw_released_lda(
    by_class: list[np.ndarray], clients: int, alpha: float, state: np.random.RandomState
) -> list[np.ndarray]:
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


Rows = list[np.ndarray]


def iid(labels: np.ndarray, clients: int, seed: int) -> Rows:
    """Shuffle the rows and cut them into N slices whose sizes differ by at most one."""
    _classes(labels, clients)
    order = _generator("iid", seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def shards(labels: np.ndarray, clients: int, shards: int, seed: int) -> Rows:
    """McMahan et al.'s shards in FedSOL's form: s single-class shards for each client, all s N dealt at random.

    Each class is cut, in the order of the rows, into s N / C equal shards; where that is no whole number the largest
    classes are cut into one more. A client may be dealt the same class twice.
    """
    dense, sizes = _classes(labels, clients)
    total = shards * clients
    if total < len(sizes):
        least = math.ceil(len(sizes) / clients)
        raise UserError(f"--shards {shards}: {clients} clients cannot cover {len(sizes)} classes; use {least} or more")
    pieces = np.full(len(sizes), total // len(sizes))
    pieces[np.argsort(-sizes, kind="stable")[: total % len(sizes)]] += 1
    by_class = np.split(np.argsort(dense, kind="stable"), np.cumsum(sizes)[:-1])
    cut = [shard for rows, k in zip(by_class, pieces, strict=True) for shard in np.array_split(rows, k)]
    hands = _generator("shards", seed).permutation(total).reshape(clients, shards)
    parts = [np.sort(np.concatenate([cut[i] for i in hand])) for hand in hands]
    return _checked(parts, f"--clients {clients}, --shards {shards}")


def lda(labels: np.ndarray, clients: int, alpha: float, seed: int, minimum: int = 10) -> Rows:
    """FedSOL's latent Dirichlet allocation: each class is spread over the clients by p ~ Dirichlet(α, ..., α) in R^N.

    Class after class, clients that already hold n / N samples get nothing more (p_k = 0, the rest renormalised).
    The whole draw is repeated until every client holds `minimum` samples. Where no draw does so within a few seconds,
    the one that misses fewest is kept, small clients are topped up from the largest, and a line on stderr says so.
    """
    dense, sizes = _classes(labels, clients)
    _check_lda(len(dense), clients, alpha, minimum)
    rng = _generator("lda", seed)
    return _deal(dense, spread_classes(sizes, clients, alpha, minimum, rng), rng)


def lda_released(labels: np.ndarray, clients: int, alpha: float, seed: int, minimum: int = 10) -> Rows:
    """`lda` as FedSOL's released code draws it, number by number; the split of its tables has seed 19940817."""
    dense, sizes = _classes(labels, clients)
    _check_lda(len(dense), clients, alpha, minimum)
    by_class = np.split(np.argsort(dense, kind="stable"), np.cumsum(sizes)[:-1])
    state = np.random.RandomState(seed % 2**32)  # the generator of that code
    for _ in range(RELEASED_ATTEMPTS):
        parts = draw_released_lda(by_class, clients, alpha, state)
        if min(map(len, parts), default=0) >= minimum:
            return [np.sort(part) for part in parts]
    raise UserError(
        f"--alpha {alpha:g}: none of {RELEASED_ATTEMPTS} draws of lda-released gave each of {clients} clients "
        f"{minimum} samples; use a larger alpha, fewer clients or --partition lda"
    )


def dirichlet(labels: np.ndarray, clients: int, alpha: float, seed: int) -> Rows:
    """Hsu et al.'s split, used by FedGF and FedGloSS: floor(n / N) samples each, of classes q_k ~ Dirichlet(α / C).

    Clients are filled one after another, without replacement; a class that runs out gets q = 0 and the others are
    renormalised. α = 0 gives one class per client: each class is cut into equal parts, as many as make the largest
    client smallest, so sizes differ where classes do. With N < C, whole classes go to the smallest client in turn.
    """
    dense, sizes = _classes(labels, clients)
    _check_alpha(alpha, positive=False)
    rng = _generator("dirichlet", seed)
    held = fill_clients(sizes, clients, alpha, rng) if alpha > 0 else one_class_each(sizes, clients, rng)
    return _deal(dense, held, rng)


def natural(owner: np.ndarray) -> Rows:
    """The data's own clients: `owner` numbers the client of each row, -1 for rows that nobody holds."""
    owner = np.asarray(owner)
    return _group(owner, int(owner.max(initial=0)) + 1, "--partition natural")


PARTITIONS: dict[str, Callable[..., Rows]] = {
    "iid": iid,
    "shards": shards,
    "lda": lda,
    "lda-released": lda_released,
    "dirichlet": dirichlet,
    "natural": natural,
}


def partition_rows(
    name: str, labels: np.ndarray, clients: int, seed: int, alpha: float, shards: int, owner: np.ndarray | None = None
) -> Rows:
    """The partition called `name`; options it does not know are ignored ("natural" brings its own clients)."""
    if name not in PARTITIONS:
        known = ", ".join(PARTITIONS)
        raise UserError(f"--partition {name}: unknown{near_miss(name, PARTITIONS)}; known partitions: {known}")
    if name != "natural":
        options: dict[str, tuple[Any, ...]] = {"iid": (), "shards": (shards,)}
        return PARTITIONS[name](labels, clients, *options.get(name, (alpha,)), seed)
    if owner is None:
        raise UserError("--partition natural: these data have no clients of their own; use iid, shards, lda, dirichlet")
    return natural(owner)


def describe_partition(name: str, alpha: float, shards: int) -> str:
    """A partition with its option, in words."""
    option = {"iid": "", "natural": "", "shards": f" s = {shards}"}.get(name, f" α = {alpha:g}")
    return f"{name}{option}"


def class_counts(labels: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client holds: [clients, classes]."""
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cell = client * classes + np.asarray(labels)[np.concatenate(parts)]
    return np.bincount(cell, minlength=len(parts) * classes).reshape(len(parts), classes)


def matching_test_rows(
    test_labels: np.ndarray, client_label_counts: np.ndarray, seed: int, size: int = 1000
) -> np.ndarray:
    """Random test rows that follow a client's label mix: of class c, as far as there are, floor(size * n_kc / n_k)."""
    label_counts = np.asarray(client_label_counts, dtype=np.int64)
    wanted = size * label_counts // label_counts.sum()
    order = _generator("aligned test", seed).permutation(len(test_labels))
    shuffled = np.asarray(test_labels)[order]
    return np.sort(np.concatenate([order[shuffled == c][:most] for c, most in enumerate(wanted)]))


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([purpose_key(name), seed % 2**64])


def _classes(labels: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels renumbered without gaps and the number of samples of each; refuses clients that must go empty."""
    if clients < 1:
        raise UserError(f"--clients {clients}: must be 1 or more")
    n = len(labels)
    if clients > n:
        raise UserError(
            f"--clients {clients}: client {n} would have no data; "
            f"at most {n} clients are possible with {n} training samples"
        )
    _, dense, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    return dense, sizes


def _check_lda(samples: int, clients: int, alpha: float, minimum: int) -> None:
    _check_alpha(alpha, positive=True)
    if minimum * clients > samples:
        raise UserError(
            f"--clients {clients}: lda gives each client at least {minimum} samples; "
            f"at most {samples // minimum} clients are possible with {samples} training samples"
        )


def _check_alpha(alpha: float, positive: bool) -> None:
    if not 0 <= alpha < math.inf or (positive and alpha == 0):
        raise UserError(f"--alpha {alpha:g}: must be {'more than 0' if positive else '0 or more'}, and finite")


def _deal(dense: np.ndarray, held: np.ndarray, rng: np.random.Generator) -> Rows:
    """Random rows for each client so that client k gets held[k, c] of class c; what is left over stays unused."""
    owner = np.full(len(dense), -1)
    order = rng.permutation(len(dense))
    order = order[np.argsort(dense[order], kind="stable")]
    starts = np.cumsum(np.bincount(dense)) - np.bincount(dense)
    for label, start in enumerate(starts):
        holder = np.repeat(np.arange(len(held)), held[:, label])
        owner[order[start : start + len(holder)]] = holder
    return _group(owner, len(held), f"--clients {len(held)}")


def _group(owner: np.ndarray, clients: int, option: str) -> Rows:
    """The rows of client 0, 1, ..., N - 1."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(clients + 1))
    return _checked(np.split(order, bounds)[1:-1], option)


def _checked(parts: Rows, option: str) -> Rows:
    """`parts`, or an error that blames `option` for the first client without data."""
    for client, part in enumerate(parts):
        if not len(part):
            raise UserError(f"{option}: client {client} would have no data; every client needs at least one sample")
    return parts
