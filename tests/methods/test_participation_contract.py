"""Engines agree whoever takes part: every sampling, lost replies, stragglers, rounds without replies, local steps."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_problem as tiny
import torch
from tiny_participation import METHODS, ROUNDS, SAMPLINGS, everything, participation, source, train
from torch import Tensor

import fedflat as ff
from fedflat.core.method import Method
from fedflat.data.client_files import Availability
from fedflat.engine.participation import LocalWork
from fedflat.engine.rounds import Trial


def assert_same(ours: list[Trial], theirs: list[Trial], tolerance: float = 1e-10) -> None:
    for one, other in zip(ours, theirs, strict=True):
        named = other.pack()
        assert one.pack().keys() == named.keys()
        for name, tensor in one.pack().items():
            torch.testing.assert_close(tensor, named[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_engines_agree_on_every_sampling(method: Method, sampling: str) -> None:
    who = participation(sampling)
    sizes = {len(who.replying(seed, r)) for seed in (0, 1) for r in range(ROUNDS)}
    assert len(sizes) > 1, "cohorts of different sizes"
    assert_same(train(method, who, "batched", range(ROUNDS)), train(method, who, "sequential", range(ROUNDS)))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_engines_agree_on_traces_deadlines_and_local_steps(method: Method) -> None:
    who = everything()
    assert any(not who.replying(seed, r) for seed in (0, 1) for r in range(ROUNDS)), "a round without replies"
    assert_same(train(method, who, "batched", range(ROUNDS)), train(method, who, "sequential", range(ROUNDS)))


def test_stop_and_resume_changes_nothing() -> None:
    method, who = ff.SCAFFOLD(), participation("poisson")
    whole, half = (train(method, who, "sequential", range(n)) for n in (ROUNDS, 2))
    resumed = [Trial(seed, method, torch.zeros_like(tiny.params())) for seed in (0, 1)]
    for trial, stopped in zip(resumed, half, strict=True):
        trial.unpack(stopped.pack())
    assert_same(train(method, who, "sequential", range(2, ROUNDS), resumed), whole, tolerance=0)


@pytest.mark.parametrize("method", [ff.FedDyn(), ff.SCAFFOLD(), ff.FedGloSS(), ff.FedGF(), ff.FedSMOO(), ff.Private()])
def test_a_round_without_replies_leaves_the_server_as_it_is(method: Method) -> None:
    nobody = Availability(np.array([0]), np.array([99]), np.array([99]))
    (after, _), fresh = (
        train(method, participation(availability=nobody), "batched", range(2)),
        Trial(0, method, tiny.params()),
    )
    assert_same([after], [fresh], tolerance=0)


def test_noise_is_added_in_a_round_without_replies_and_divided_by_the_mean_size() -> None:
    """Otherwise the model would tell who took part: whether anybody did, or how many."""
    nobody = Availability(np.array([0]), np.array([99]), np.array([99]))
    method = ff.Private(clip=2.0, noise=3.0)
    (trial, _) = train(method, participation("poisson", availability=nobody), "batched", range(1))
    noise: Tensor = trial.server.params - tiny.params()
    assert float(noise.std()) == pytest.approx(3.0 * 2.0 / 2, rel=0.5), "z C / 2 for two clients on average"
    quiet = ff.Private(clip=1e9, noise=0.0)
    one = Availability(np.array([1]), np.array([0]), np.array([99]))
    who = participation("poisson", availability=one, dropout_rate=0.0, stragglers=0.0)
    r = next(r for r in range(20) if who.replying(0, r))
    private, plain = (train(m, who, "batched", range(r + 1))[0].server.params for m in (quiet, ff.FedAvg()))
    first = tiny.params()
    torch.testing.assert_close(private - first, (plain - first) / 2, rtol=0, atol=1e-12)


def test_duals_count_the_clients_that_replied() -> None:
    """FedDyn's h moves by the sum of the replies over N, SCAFFOLD's c too, whatever the number of replies."""
    method = ff.SCAFFOLD()
    who = participation(dropout_rate=0.5, stragglers=0.0)
    r = next(r for r in range(50) if len(who.replying(0, r)) == 1)
    trial = train(method, who, "sequential", range(r, r + 1))[0]
    kept = trial.clients.gather(who.replying(0, r)).c[0]
    torch.testing.assert_close(trial.server.c, kept / 4, rtol=0, atol=1e-12)


def test_steps_are_the_first_ones_of_the_epochs() -> None:
    """Seven steps are the first seven of the epochs' order; three epochs of it hold every sample three times."""
    steps = source(participation(work=LocalWork(0, 7), stragglers=0.0)).plan([0], 2, [2])
    epochs = source(participation(work=LocalWork(3), stragglers=0.0)).plan([0], 2, [2])
    assert steps.rows.shape[1] == 7
    for few, many in zip(steps, epochs, strict=True):
        assert torch.equal(few, many[:, :7])
