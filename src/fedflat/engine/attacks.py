"""Simulated attackers, to measure what a defence is worth: some clients lie, the others do not know of it.

    sign-flip   the reply times −s
    scale       the reply times s
    noise       the reply plus Gaussian noise whose norm is about s times the reply's
    labels      the client trains on wrong labels, c → classes − 1 − c, and replies honestly

s is `attack_strength`. Attackers belong to the federation like the partition: they are drawn by `partition_seed`, the
same ones for all seeds and in every round. The noise is a hash of seed, round, exchange, client and position, the same
in every engine and on a node. Bookkeeping of a reply (see aggregation.py) stays honest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.random import choose_without_replacement, hash_words, normal_from, purpose_key
from fedflat.core.state import bookkeeping_names, pack_state, unpack_state
from fedflat.data.dataset import Dataset
from fedflat.engine.aggregation import reply_norms
from fedflat.errors import UserError

REPLY_ATTACKS = ("sign-flip", "scale", "noise")


def choose_attackers(partition_seed: int, clients: int, share: float) -> frozenset[int]:
    """Return the numbers of the attackers: this share of the clients, rounded. Raise UserError if that is none.

    Args:
        partition_seed: decides which ones.
        clients: the number of all clients.
        share: the option `attackers`.
    """
    count = round(share * clients)
    if share and not count:
        problem = f"rounds to no client of {clients}; one client is a share of {1 / clients:.3g}"
        raise UserError("attackers", share, problem)
    key = int(hash_words(partition_seed, purpose_key("attackers")))
    return frozenset(choose_without_replacement(key, clients, count))


def flip_labels(dataset: Dataset, client_rows: Sequence[np.ndarray], attackers: frozenset[int]) -> Dataset:
    """Return the data set with label c replaced by classes − 1 − c in the training samples of attackers.

    Args:
        dataset: the data set.
        client_rows: the row numbers of each client's training samples.
        attackers: the clients whose labels change.
    """
    rows = np.concatenate([np.empty(0, np.int64), *(client_rows[client] for client in sorted(attackers))])
    y, picked = dataset.y.clone(), torch.from_numpy(rows).to(dataset.y.device)
    y[picked] = dataset.classes - 1 - y[picked]
    return dataclasses.replace(dataset, y=y)


class ReplyAttack(NamedTuple):
    """What attackers do to their replies.

    Args:
        kind: one of REPLY_ATTACKS.
        strength: the factor s.
        attackers: the numbers of the clients that attack.
        bookkeeping: names of the reply's tensors that stay honest.
    """

    kind: str
    strength: float
    attackers: frozenset[int]
    bookkeeping: tuple[str, ...] = ()

    def apply(self, replies: Any, seed: int, round: int, exchange: int, clients: Sequence[int]) -> Any:
        """Return stacked replies with those of attackers changed.

        Args:
            replies: the replies of `clients`, stacked along the first axis of each tensor.
            seed, round, exchange: what the noise depends on.
            clients: the numbers of the clients.
        """
        changed = {name: tensor.clone() for name, tensor in pack_state(replies).items()}
        honest = bookkeeping_names(replies, self.bookkeeping)
        attacked = [name for name in changed if name not in honest]
        norms = reply_norms(replies, self.bookkeeping)
        size = sum(changed[name][0].numel() for name in attacked)
        for position in [position for position, client in enumerate(clients) if client in self.attackers]:
            key = hash_words(seed, purpose_key("attack"), round, exchange, clients[position])
            deviation = norms[position] * size**-0.5
            for number, name in enumerate(attacked):
                changed[name][position] = self._change(changed[name][position], deviation, hash_words(key, number))
        return unpack_state(replies, changed)

    def _change(self, honest: Tensor, deviation: Tensor, key: Tensor) -> Tensor:
        """Return what an attacker sends in place of a tensor; `deviation` is that of noise as long as the reply."""
        if self.kind != "noise":
            return honest * (-self.strength if self.kind == "sign-flip" else self.strength)
        index = torch.arange(honest.numel(), device=honest.device)
        noise = normal_from(hash_words(key.to(index.device), index)).view_as(honest)
        return honest + (self.strength * deviation * noise).to(honest.dtype)
