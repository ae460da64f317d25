"""The partition dirichlet: clients of equal size, each with its own mix of classes; one class each with α = 0."""

from __future__ import annotations

import numpy as np

from fedflat.data.client_rows import (
    ClientRows,
    assign_rows,
    check_alpha,
    class_sizes,
    log_gamma_draws,
    partition_generator,
    scaled_weights,
)


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
    label, sizes = class_sizes(labels, clients)
    check_alpha(alpha, positive=False)
    rng = partition_generator("dirichlet", seed)
    counts = fill_clients(sizes, clients, alpha, rng) if alpha > 0 else one_class_each(sizes, clients, rng)
    return assign_rows(label, counts, rng)


def fill_clients(sizes: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the table [N, C] of `dirichlet`: fill one client after another, as long as there are samples of a class.

    All clients that are not filled yet draw at once. Those before the first that asks for more than is left are done.
    That one takes what is left and, like those after it, draws the rest again without the classes that ran out. So
    there are about C passes.
    """
    log_weight = log_gamma_draws(alpha / len(sizes), (clients, len(sizes)), rng)
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    needed, left, first = np.full(clients, sizes.sum() // clients), sizes.copy(), 0
    while first < clients:
        weight = scaled_weights(log_weight[first:], left > 0)
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
