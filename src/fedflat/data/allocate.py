"""How many samples of each class each client is to hold: the random tables [clients, classes] behind the partitions.

The tables depend on the class sizes alone (n samples, C classes, N clients); `partition` then deals rows to match.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import numpy as np

_DRAWS = 100_000_000  # `over_clients` stops redrawing after this many random shares, a few seconds


_HOPELESS = 20  # a tenth of that will do where the best attempt misses more than one sample in so many


_CHUNK = 200_000  # shares drawn at once: little enough to stay in the processor's cache


def over_clients(sizes: np.ndarray, clients: int, alpha: float, minimum: int, rng: np.random.Generator) -> np.ndarray:
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


def over_classes(sizes: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
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


def one_class(sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
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
