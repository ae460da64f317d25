"""Which client holds which training samples: partitions of a labelled data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedflat.core.random import purpose_key
from fedflat.data.allocate import one_class, over_classes, over_clients
from fedflat.data.released import ATTEMPTS, attempt
from fedflat.errors import UserError, near_miss

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
    return _deal(dense, over_clients(sizes, clients, alpha, minimum, rng), rng)


def lda_released(labels: np.ndarray, clients: int, alpha: float, seed: int, minimum: int = 10) -> Rows:
    """`lda` as FedSOL's released code draws it, number by number; the split of its tables has seed 19940817."""
    dense, sizes = _classes(labels, clients)
    _check_lda(len(dense), clients, alpha, minimum)
    by_class = np.split(np.argsort(dense, kind="stable"), np.cumsum(sizes)[:-1])
    state = np.random.RandomState(seed % 2**32)  # the generator of that code
    for _ in range(ATTEMPTS):
        parts = attempt(by_class, clients, alpha, state)
        if min(map(len, parts), default=0) >= minimum:
            return [np.sort(part) for part in parts]
    raise UserError(
        f"--alpha {alpha:g}: none of {ATTEMPTS} draws of lda-released gave each of {clients} clients {minimum} "
        "samples; use a larger alpha, fewer clients or --partition lda"
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
    held = over_classes(sizes, clients, alpha, rng) if alpha > 0 else one_class(sizes, clients, rng)
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


def split(
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


def described(name: str, alpha: float, shards: int) -> str:
    """A partition with its option, in words."""
    option = {"iid": "", "natural": "", "shards": f" s = {shards}"}.get(name, f" α = {alpha:g}")
    return f"{name}{option}"


def counts(labels: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client holds: [clients, classes]."""
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cell = client * classes + np.asarray(labels)[np.concatenate(parts)]
    return np.bincount(cell, minlength=len(parts) * classes).reshape(len(parts), classes)


def aligned_test(test_labels: np.ndarray, client_label_counts: np.ndarray, seed: int, size: int = 1000) -> np.ndarray:
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
