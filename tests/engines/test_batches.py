"""Batches: every sample once in an epoch; a client's batches depend only on its seed, round, number and exchange."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflat.data.batches import ClientBatches, RoundCohort
from fedflat.data.dataset import Dataset
from fedflat.data.plan_ahead import PlannedAhead


def client_data(sizes, batch=4, epochs=2):
    n = sum(sizes)
    data = Dataset("rows", torch.arange(n)[:, None].float(), torch.zeros(n, dtype=torch.int64), torch.zeros(1, 1),
                   torch.zeros(1, dtype=torch.int64), 1)  # fmt: skip
    return ClientBatches(data, np.split(np.random.default_rng(0).permutation(n), np.cumsum(sizes)[:-1]), batch, epochs)


@settings(deadline=None)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 3))
def test_every_sample_once_an_epoch(sizes, batch, epochs):
    source = client_data(sizes, batch, epochs)
    clients = list(range(len(sizes)))
    plan, lengths = source.plan([0] * len(sizes), 3, clients), source.lengths([0] * len(sizes), 3, clients)
    for client, size in enumerate(sizes):
        steps = plan.mask[client].any(-1)
        assert steps.sum() == lengths[client] == -(-size // batch) * epochs
        assert steps[: lengths[client]].all()
        rows = plan.rows[client][plan.mask[client]].view(epochs, size)
        assert all(len(set(epoch.tolist())) == size for epoch in rows)


def test_a_clients_batches_do_not_depend_on_the_others():
    source = client_data([7, 12, 3])
    together = source.plan([5, 5, 5], 2, [0, 1, 2])
    for client in range(3):
        alone = source.plan([5], 2, [client])
        steps = alone.mask.shape[1]
        for a, b in zip(alone, together, strict=True):
            assert torch.equal(a[0][alone.mask[0]], b[client, :steps][together.mask[client, :steps]])


def test_seed_round_client_and_exchange_change_the_order():
    source = client_data([12, 12])
    base = source.plan([0], 0, [0], 0).rows
    others = [source.plan([1], 0, [0], 0), source.plan([0], 1, [0], 0), source.plan([0], 0, [0], 1)]
    assert all(not torch.equal(base, other.rows) for other in others)
    positions = [source.plan([0], 0, [c]).rows - source._starts[c] for c in (0, 1)]
    assert not torch.equal(*positions)


def test_every_use_of_a_sample_has_a_random_key_of_its_own():
    """Over seeds, rounds, clients, exchanges, epochs and samples: no two augmentations alike."""
    source = client_data([12, 12], epochs=3)
    uses = [([0, 1, 0], 0, [0, 0, 1], 0), ([0], 1, [0], 0), ([0], 0, [0], 1)]
    plans = [source.plan(*use) for use in uses]
    keys = torch.cat([plan.key[plan.mask] for plan in plans])
    assert len(keys) == len(keys.unique()) == 5 * 3 * 12


def test_the_test_set_is_mixed_and_every_sample_keeps_its_label():
    """Models with batch statistics are evaluated in batches: of sorted classes, each would have its own statistics."""
    y = torch.arange(10).repeat_interleave(40)
    x = torch.arange(400.0)[:, None]
    source = ClientBatches(Dataset("sorted", x, y, x, y, classes=10), [np.arange(400)], 4, 1)
    batch, again = source.test(), source.test()
    assert torch.equal(batch.x, again.x)
    rows = ((batch.x[:, 0] - batch.x.min()) / (batch.x.max() - batch.x.min()) * 399).round().long()
    assert sorted(rows.tolist()) == list(range(400))
    assert torch.equal(batch.y, y[rows])
    assert batch.mask.all()
    assert min(len(part.unique()) for part in batch.y.split(40)) >= 8, "of ten classes"


def same_plan(a, b):
    """The words of padding may differ: nothing uses them."""
    return torch.equal(a.mask, b.mask) and torch.equal(a.rows, b.rows) and torch.equal(a.key[a.mask], b.key[b.mask])


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_plans_made_ahead_are_those_made_one_by_one(data):
    """For any cohorts, also rounds without clients, some that were not foreseen, and several exchanges."""
    source = client_data([7, 12, 3, 9, 1])
    cohort = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), unique=True, max_size=4)
    rounds = data.draw(st.lists(cohort, min_size=1, max_size=8))
    foreseen = data.draw(st.lists(st.booleans(), min_size=len(rounds), max_size=len(rounds)))

    def coming(round):
        if round >= len(rounds):
            return None
        items = rounds[round] if foreseen[round] else [(9, 0)]
        return RoundCohort(round, tuple(seed for seed, _ in items), tuple(client for _, client in items))

    ahead = PlannedAhead(source, coming, rounds=data.draw(st.integers(1, 5)))
    for round, items in enumerate(rounds):
        for exchange in range(2 if items else 0):
            asked = [seed for seed, _ in items], round, [client for _, client in items], exchange
            assert same_plan(ahead.plan(*asked), source.plan(*asked))


def test_rounds_are_planned_together_as_long_as_they_are_few(monkeypatch):
    source, planned = client_data([8, 8]), []
    make = source.plan_rounds
    source.plan_rounds = lambda cohorts, exchange: planned.append([c.round for c in cohorts]) or make(cohorts, exchange)
    ahead = PlannedAhead(source, lambda round: RoundCohort(round, (0,), (1,)) if round < 7 else None, rounds=4)
    for round in range(7):
        ahead.plan([0], round, [1], 0)
    assert planned == [[0, 1, 2, 3], [4, 5, 6]]
    monkeypatch.setattr("fedflat.data.plan_ahead.MOST_SAMPLES", 2 * 4 * 4)  # two plans of four batches of four
    ahead.plan([0], 0, [1], 0)
    assert planned[-1] == [0, 1]
