"""Simulated attackers: who they are, what they send, and that nothing else changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.state import tree_map
from fedflat.engine.attacks import ReplyAttack, choose_attackers
from fedflat.methods import fednova
from fedflat.runs.build import build_run
from fedflat.runs.train_together import run_together

SMALL = ff.Experiment(clients=6, cohort=4, rounds=2, local_epochs=1, model="mlp", attackers=0.34)
REPLIES = fednova.Reply(torch.randn(4, 50, dtype=torch.float64), torch.arange(1.0, 5.0, dtype=torch.float64))
CLIENTS = [7, 3, 0, 9]


def attack(kind: str, **place: int) -> fednova.Reply:
    """Return the replies after clients 3 and 9 have changed theirs."""
    lie = ReplyAttack(kind, 10.0, frozenset({3, 9, 11}), ("steps",))
    return lie.apply(REPLIES, **{"seed": 0, "round": 0, "exchange": 0, **place}, clients=CLIENTS)


@pytest.mark.parametrize(("kind", "factor"), [("sign-flip", -10.0), ("scale", 10.0)])
def test_attackers_change_their_own_replies_only(kind: str, factor: float) -> None:
    before = tree_map(torch.clone, REPLIES)
    changed = attack(kind)
    assert torch.equal(changed.delta[[0, 2]], REPLIES.delta[[0, 2]])
    assert torch.equal(changed.delta[[1, 3]], factor * REPLIES.delta[[1, 3]])
    assert torch.equal(changed.steps, REPLIES.steps)
    assert torch.equal(REPLIES.delta, before.delta)


def test_noise_is_as_long_as_stated_and_differs_between_clients_rounds_exchanges_and_seeds() -> None:
    noise = attack("noise").delta - REPLIES.delta
    assert not noise[[0, 2]].any()
    lengths = noise.norm(dim=1)[[1, 3]] / REPLIES.delta.norm(dim=1)[[1, 3]]
    assert ((lengths > 5) & (lengths < 15)).all()
    assert torch.equal(attack("noise").delta, attack("noise").delta)
    others = [attack("noise", **place).delta - REPLIES.delta for place in ({"seed": 1}, {"round": 1}, {"exchange": 1})]
    assert not any(torch.isclose(other[1], noise[1]).any() for other in others)
    assert not torch.isclose(noise[1] / noise[1].norm(), noise[3] / noise[3].norm()).any()


def test_noise_does_not_depend_on_the_cohort() -> None:
    alone = ReplyAttack("noise", 10.0, frozenset({9})).apply(tree_map(lambda t: t[3:], REPLIES), 0, 0, 0, CLIENTS[3:])
    together = ReplyAttack("noise", 10.0, frozenset({9})).apply(REPLIES, 0, 0, 0, CLIENTS)
    assert torch.equal(alone.delta[0], together.delta[3])


def test_attackers_are_the_stated_share_and_stay_the_same() -> None:
    assert [len(choose_attackers(0, 20, share)) for share in (0, 0.05, 0.2, 0.9)] == [0, 1, 4, 18]
    assert choose_attackers(0, 100, 0.2) == choose_attackers(0, 100, 0.2) != choose_attackers(1, 100, 0.2)
    with pytest.raises(ff.UserError, match=r"attackers=0\.01: rounds to no client of 20"):
        choose_attackers(0, 20, 0.01)


def test_labels_of_attackers_are_wrong_and_those_of_others_and_of_the_test_set_are_not() -> None:
    honest = build_run(dataclasses.replace(SMALL, attackers=0.0))
    built = build_run(dataclasses.replace(SMALL, attack="labels"))
    attackers = choose_attackers(0, 6, 0.34)
    for client, rows in enumerate(built.client_rows):
        assert np.array_equal(rows, honest.client_rows[client])
        expected = 9 - honest.dataset.y[rows] if client in attackers else honest.dataset.y[rows]
        assert torch.equal(built.client_data.y[rows], expected)
    assert torch.equal(built.dataset.y_test, honest.dataset.y_test)


@pytest.mark.parametrize("kind", ["noise", "labels"])
def test_engines_agree_on_a_whole_run(kind: Any) -> None:
    one, two = (
        ff.run(dataclasses.replace(SMALL, attack=kind, engine=engine)).history for engine in ("sequential", "batched")
    )
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in two], rel=1e-4)


def test_attackers_are_refused_where_they_cannot_work() -> None:
    with pytest.raises(ff.UserError, match=r"attackers=0\.34: each partition has other attackers"):
        run_together([SMALL, dataclasses.replace(SMALL, partition_seed=1)])
    with pytest.raises(ff.UserError, match=r'attack="sign-flip": dpfedavg.s server refuses'):
        dataclasses.replace(SMALL, method=ff.Private()).check()
    dataclasses.replace(SMALL, method=ff.Private(), attack="labels").check()
