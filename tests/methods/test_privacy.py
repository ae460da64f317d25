"""Differential privacy: the bound on a client's influence, the size of the noise, and the key it is drawn from."""

from __future__ import annotations

import dataclasses
import math
import sys

import pytest
import tiny_problem as tiny
import torch
from torch import Tensor

import fedflat as ff
from fedflat.core.local_training import example_messages, finish_local_training, start_local_training
from fedflat.core.method import Cohort, Method, Reply
from fedflat.core.optimiser import Optimiser
from fedflat.core.random import hash_words, normal_from
from fedflat.core.state import pack_state, unpack_state
from fedflat.methods import shared
from fedflat.methods.differential_privacy import (
    PrivateServer,
    describe_privacy,
    find_private,
    privacy_spent,
    set_noise_key,
)
from fedflat.runs.build import build_run

INNERS: list[Method] = [ff.FedAvg(), ff.SCAFFOLD(), ff.FedGloSS(), ff.FedSMOO(), ff.FedNova(), ff.NaiveFedGloSS()]
PLAIN = Optimiser(torch.tensor(0.1).double())
FREE = {"clip": math.inf, "noise": 0.0}


def reply_to(method: Method, distance: float) -> dict[str, Tensor]:
    """Return a client's reply after its model has moved by `distance`."""
    params = tiny.params()
    message, client = method.broadcast(method.init_server(params)), method.init_client(params)
    carry = start_local_training(PLAIN, message, client)
    moved = carry._replace(w=carry.w + distance / 35**0.5)
    return pack_state(finish_local_training(method, PLAIN, moved, message, torch.tensor(3.0).double())[0])


@pytest.mark.parametrize("inner", INNERS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("distance", [1e-3, 0.4, 7.0, 1e6, math.inf, math.nan])
def test_no_reply_is_longer_than_the_bound(inner: Method, distance: float) -> None:
    sent = reply_to(ff.Private(inner=inner, clip=0.5), distance)
    measured = [t.reshape(-1) for name, t in sent.items() if name not in inner.bookkeeping]
    assert float(torch.cat(measured).norm()) <= 0.5 + 1e-9


@pytest.mark.parametrize("inner", [ff.FedNova(), ff.FedExP(inner=ff.FedNova())], ids=lambda m: type(m).__name__)
def test_bookkeeping_uses_up_no_bound_and_gets_no_noise(inner: Method) -> None:
    """An update of 7.7e-4 with 400 steps arrived as 1.9e-6."""
    bare, wrapped = (reply_to(m, 7.7e-4) for m in (inner, ff.Private(inner=inner, clip=1.0)))
    for name, tensor in bare.items():
        torch.testing.assert_close(wrapped[name], tensor, rtol=0, atol=1e-15)
    steps = next(name for name in bare if name.endswith("steps"))
    method = ff.Private(inner=inner, noise=9.0)
    mean = unpack_state(example_messages(inner, tiny.params())[1], bare)
    noisy = pack_state(method._add_noise(method.init_server(tiny.params()), mean, 2))
    assert [name for name in bare if torch.equal(noisy[name], bare[name])] == [steps]


def test_the_result_says_what_the_guarantee_does_not_cover() -> None:
    spent = privacy_spent(ff.Private(inner=ff.FedNova()), [[0, 1]], 4, sampled=True)
    assert spent
    assert spent["not_covered"] == ["steps"]
    assert describe_privacy(spent | {"note": ""}).endswith("; not covered: steps")


@pytest.mark.parametrize("distance", [0.0, 1e-3, 0.4])
def test_short_replies_are_sent_as_they_are(distance: float) -> None:
    bare, wrapped = (reply_to(m, distance)["delta"] for m in (ff.FedAvg(), ff.Private(clip=0.5)))
    torch.testing.assert_close(wrapped, bare, rtol=0, atol=1e-15)


def test_a_client_keeps_the_dual_of_what_it_sent() -> None:
    method, params = ff.Private(inner=ff.FedGloSS(beta=10.0), clip=0.5), tiny.params()
    message, client = method.broadcast(method.init_server(params)), method.init_client(params)
    moved = start_local_training(PLAIN, message, client)._replace(w=params + 3.0)
    one = torch.tensor(1.0).double()
    reply, kept = finish_local_training(method, PLAIN, moved, message, one)
    torch.testing.assert_close(kept.sigma, -reply.delta / 10.0, rtol=0, atol=1e-15)


@pytest.mark.parametrize("inner", INNERS, ids=lambda m: type(m).__name__)
def test_without_bound_and_noise_it_is_the_inner_method(inner: Method) -> None:
    models = [tiny.models(method, weights="uniform") for method in (ff.Private(inner=inner, **FREE), inner)]
    torch.testing.assert_close(*models, rtol=0, atol=1e-12)


def test_weights_do_not_matter() -> None:
    """A large client must not have more influence than the bound allows."""
    models = [tiny.models(ff.Private(**FREE), weights=weights) for weights in ("uniform", "examples")]
    assert torch.equal(*models)


def noise_of(server: PrivateServer, method: ff.Private, size: int = 4) -> Tensor:
    nothing = Reply(torch.zeros_like(server.params))
    return method.update(server, Cohort(nothing, nothing, size, 10)).params - server.params


def test_weights_do_not_matter_under_noise_either() -> None:
    method, plain, weighted = ff.Private(noise=3.0), Reply(torch.zeros(50)), Reply(torch.full((50,), 9.0))
    server = method.init_server(torch.zeros(50))
    assert torch.equal(method.update(server, Cohort(weighted, plain, 4, 10)).params, noise_of(server, method))


def test_noise_has_the_stated_size() -> None:
    method, n = ff.Private(clip=0.5, noise=3.0), 200_000
    drawn = noise_of(method.init_server(torch.zeros(n, dtype=torch.float64)), method)
    assert float(drawn.std()) == pytest.approx(3.0 * 0.5 / 4, rel=0.01)
    assert float(drawn.mean()) == pytest.approx(0, abs=5 * 0.375 / n**0.5)


def test_noise_differs_between_rounds_keys_and_tensors_only() -> None:
    method, server = ff.Private(), ff.Private().init_server(torch.zeros(50))
    again, later = noise_of(server, method), noise_of(server._replace(round=server.round + 1), method)
    other_key = noise_of(set_noise_key(server, 12345), method)
    assert torch.equal(noise_of(server, method), again)
    assert not torch.isclose(again, later).any()
    assert not torch.isclose(again, other_key).any()


def test_the_tensors_of_a_reply_have_noise_of_their_own() -> None:
    """SCAFFOLD's reply has two of one shape; with all clients there, the server adds their means to zeros."""
    method, zeros = ff.Private(inner=ff.SCAFFOLD()), torch.zeros(50)
    nothing = shared.ControlReply(zeros, zeros)
    inner = method.update(method.init_server(zeros), Cohort(nothing, nothing, 4, 4)).inner
    assert inner.c.all()
    assert not torch.isclose(inner.params, inner.c).any()


def test_the_two_exchanges_of_a_round_have_noise_of_their_own() -> None:
    method = ff.Private(inner=ff.NaiveFedGloSS())
    server = method.init_server(torch.zeros(50))
    nothing = Cohort(Reply(torch.zeros(50)), Reply(torch.zeros(50)), 4, 10)
    first = method.update(server, nothing)
    assert int(first.round) == 1
    assert not torch.isclose(first.inner.ascent, method.update(first, nothing).params).any()


def test_the_noise_key_is_set_inside_wrappers_and_uses_every_bit() -> None:
    server = ff.Averaged(inner=ff.Private(inner=ff.ServerMomentum())).init_server(torch.zeros(3))
    secret = (1 << 96) - 3
    words = set_noise_key(server, secret).inner.key.to(torch.int64).tolist()
    assert sum(word << 24 * i for i, word in enumerate(words)) == secret
    plain = ff.FedAvg().init_server(torch.zeros(3))
    assert set_noise_key(plain, secret) is plain


def test_normal_numbers_are_normal() -> None:
    drawn = normal_from(hash_words(7, torch.arange(200_000))).sort().values
    expected = torch.special.ndtri((torch.arange(200_000).double() + 0.5) / 200_000)
    assert float((torch.special.ndtr(drawn) - torch.special.ndtr(expected)).abs().max()) < 0.005
    assert float(drawn.abs().max()) > 4


def test_methods_without_noise_spend_nothing_that_is_counted() -> None:
    assert find_private(ff.ServerMomentum(inner=ff.FedSOL())) is None
    assert privacy_spent(ff.FedSOL(), [[0, 1]], 4, sampled=True) is None
    assert find_private(ff.ServerMomentum(inner=ff.Private(clip=3.0))) == ff.Private(clip=3.0)


def test_a_run_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    experiment = ff.Experiment(method=ff.Private(), rounds=1, model="mlp", local_epochs=1, engine="sequential")
    result = ff.run(experiment)
    assert result.privacy
    assert result.privacy["epsilon"] is None
    assert describe_privacy(result.privacy) == "privacy: install fedflat[privacy] to have epsilon computed"
    assert "privacy" not in ff.run(dataclasses.replace(experiment, method=ff.FedAvg())).to_json()


def test_seeds_have_noise_of_their_own() -> None:
    """No round is trained, so that the seeds differ in their noise only."""
    experiment = ff.Experiment(method=ff.Private(noise=1.0), seeds=(0, 1, 2))
    servers = [trial.server for trial in build_run(experiment).trials(experiment)]
    keys = torch.stack([server.key for server in servers])
    assert keys.tolist() == [[seed, 0, 0, 0] for seed in (0, 1, 2)]
    noises = torch.stack([noise_of(server, ff.Private(noise=1.0)) for server in servers])
    assert (torch.corrcoef(noises) - torch.eye(3)).abs().max() < 0.05


def test_nothing_changes_a_clipped_reply() -> None:
    around = ff.Experiment(method=ff.ServerMomentum(inner=ff.FedExP(inner=ff.Private())))
    with pytest.raises(ff.UserError, match="method fedexp: changes replies after dpfedavg"):
        around.check()
    ff.Experiment(method=ff.Private(inner=ff.FedExP())).check()
    ff.Experiment(method=ff.ServerMomentum(inner=ff.Private())).check()
