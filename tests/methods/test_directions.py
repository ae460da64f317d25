"""Directions and scalars of single steps, compared with their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import quadratics
import tiny_problem as tiny
import torch
import torch.nn.functional as F
from torch import Tensor

import fedflat as ff
from fedflat.core.local_training import LocalState, local_step
from fedflat.core.method import Cohort, Local, Message, Method
from fedflat.core.optimiser import Optimiser, initial_moments
from fedflat.core.state import stack_states, tree_map
from fedflat.core.task import Batch
from fedflat.engine.sequential import client_batches
from fedflat.methods import fedgf
from fedflat.methods.shared import effective_steps


def _double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _batch() -> Batch:
    client_data = tiny.client_data()
    plan = client_data.plan([0], 0, [2])
    return client_data.batch(type(plan)(*(t[0, 0] for t in plan)))


def _autograd(loss: Any, w: Tensor) -> Tensor:
    v = w.clone().requires_grad_()
    return torch.autograd.grad(loss(v), v)[0]


def test_moon_direction() -> None:
    task, batch = tiny.task(), _batch()
    w, sent, last = (tiny.params(seed=seed) for seed in range(3))

    def loss(v: Tensor) -> Tensor:
        z, near, far = (task.features(p, batch) for p in (v, sent, last))
        pair = torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1) / 0.3
        contrast = F.cross_entropy(pair, torch.zeros(len(z), dtype=torch.int64))
        return F.cross_entropy(task.logits(v, batch), batch.y) + 2.0 * contrast

    method = ff.MOON(mu=2.0, tau=0.3)
    client = method.init_client(last)
    ours, _ = method.step(task, w, batch, Message(sent), client)
    torch.testing.assert_close(ours, _autograd(loss, w), rtol=0, atol=1e-12)


def test_fedntd_direction_at_a_temperature() -> None:
    task, batch = tiny.task(), _batch()
    w, sent = tiny.params(seed=0), tiny.params(seed=1)

    def wrong(p: Tensor) -> Tensor:
        rows = [
            torch.cat([row[:true], row[true + 1 :]]) for row, true in zip(task.logits(p, batch), batch.y, strict=True)
        ]
        return torch.stack(rows) / 2.0

    def loss(v: Tensor) -> Tensor:
        kl = F.kl_div(wrong(v).log_softmax(1), wrong(sent).softmax(1), reduction="batchmean")
        return F.cross_entropy(task.logits(v, batch), batch.y) + 0.7 * 4.0 * kl

    ours, _ = ff.FedNTD(beta=0.7, tau=2.0).step(task, w, batch, Message(sent), ())
    torch.testing.assert_close(ours, _autograd(loss, w), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", ["released", "paper"])
def test_feddecorr_direction(scale: Any) -> None:
    task, batch, w = tiny.task(), _batch(), tiny.params()

    def loss(v: Tensor) -> Tensor:
        z = task.features(v, batch)
        s = (z - z.mean(0)) / (z.var(0) + 1e-8).sqrt()
        m = s.T @ s
        off = m[~torch.eye(len(m), dtype=torch.bool)]
        paper = (m / (len(z) - 1)).square().sum() / len(m) ** 2
        penalty = off.square().mean() / len(z) if scale == "released" else paper
        return F.cross_entropy(task.logits(v, batch), batch.y) + 0.7 * penalty

    ours, _ = ff.FedDecorr(beta=0.7, scale=scale).step(task, w, batch, Message(w), ())
    torch.testing.assert_close(ours, _autograd(loss, w), rtol=0, atol=1e-12)


def test_feddecorr_of_one_sample_is_fedavg() -> None:
    task, batch, w = tiny.task(), _batch(), tiny.params()
    alone = Batch(batch.x[:1], batch.y[:1], batch.mask[:1], None)
    ours, _ = ff.FedDecorr(beta=0.7).step(task, w, alone, Message(w), ())
    torch.testing.assert_close(ours, task.grad(w, alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dual", ["all", "cohort"])
def test_fedgmt_by_hand(dual: Any) -> None:
    """Four rounds in a plain loop, from the printed formulas."""
    task, source, w = tiny.task(), tiny.client_data(), tiny.params()
    e, u = w, torch.zeros(4, len(w)).double()
    for r, who in enumerate(tiny.COHORTS):
        ends = {}
        for k in who:
            v = w
            for batch in client_batches(source, 0, r, k, 0):
                teacher = (task.logits(e, batch) / 2).softmax(1)

                def loss(x: Tensor, batch: Batch = batch, teacher: Tensor = teacher) -> Tensor:
                    kl = F.kl_div((task.logits(x, batch) / 2).log_softmax(1), teacher, reduction="batchmean")
                    return F.cross_entropy(task.logits(x, batch), batch.y) + 0.7 * 4 * kl

                v = v - 0.1 * (_autograd(loss, v) - u[k] + 1e-3 * v)
            ends[k] = v
            u[k] -= (v - w) / 5
        p = source.sizes[who].double() / source.sizes[who].sum()
        duals = [u.mean(0)] * 4 if dual == "all" else list(u)
        w = sum(p[i] * (ends[k] - 5 * duals[k]) for i, k in enumerate(who))
        e = 0.6 * e + 0.4 * w
    method = ff.FedGMT(gamma=0.7, tau=2.0, ema_alpha=0.6, beta=5.0, dual=dual)
    trial = tiny.train(method, momentum=0.0)[0]
    for ours, theirs in ((trial.server.params, w), (trial.server.e, e), (trial.clients.gather(range(4)).u, u)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("biases", [True, False])
def test_fedasam_direction(biases: bool) -> None:
    task, batch, w = tiny.task(), _batch(), tiny.params()
    named, g = task.unflatten(w), task.unflatten(_autograd(lambda v: task.loss(v, batch), w))
    scale = {n: p.abs() + 0.2 if biases or n.endswith("weight") else torch.ones_like(p) for n, p in named.items()}
    length = math.sqrt(sum(float(((scale[n] * g[n]) ** 2).sum()) for n in named))
    climbed = task.flatten({n: p + 0.7 * scale[n] ** 2 * g[n] / length for n, p in named.items()})
    ours, _ = ff.FedASAM(rho=0.7, eta=0.2, biases=biases).step(task, w, batch, Message(w), ())
    torch.testing.assert_close(ours, _autograd(lambda v: task.loss(v, batch), climbed), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("per", "epsilon"), [("round", 0.1), ("client", 0.2)])
def test_fedexp_extrapolates_where_changes_oppose(per: Any, epsilon: float) -> None:
    method, w = ff.FedExP(epsilon=0.1, epsilon_per=per), torch.zeros(2).double()
    server, local = method.init_server(w), Local(_double(0.1), _double(1.0), _double(0.0))
    ends = [torch.tensor(end).double() for end in ([2.0, 0.5], [-2.0, 0.5])]
    replies = stack_states([method.reply(end, method.broadcast(server), (), local)[0] for end in ends])
    mean = tree_map(lambda t: t.mean(0), replies)
    server = method.update(server, Cohort(mean, mean, 2, 9))
    eta = 4.25 / (2 * (0.25 + epsilon))
    torch.testing.assert_close(server.eta, _double(eta))
    torch.testing.assert_close(server.inner.params, torch.tensor([0.0, 0.5 * eta]).double())
    again = method.update(server, Cohort(mean, mean, 2, 9))
    torch.testing.assert_close(server.params, server.inner.params, msg="the initial model does not count")
    torch.testing.assert_close(again.params, (server.inner.params + again.inner.params) / 2)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 7])
def test_effective_steps_are_those_that_momentum_makes_of_a_constant_gradient(momentum: float, steps: int) -> None:
    class Slope:
        def grad(self, w: Tensor, batch: Any) -> Tensor:
            return torch.ones_like(w)

    sgd = Optimiser(_double(0.1), momentum, 0.0)
    carry = LocalState(_double(0.0), initial_moments(sgd, _double(0.0)), ())
    for _ in range(steps):
        carry = local_step(Method(), Slope(), sgd, carry, Batch(*[_double(0)] * 4), None)  # type: ignore[arg-type]
    local = Local(sgd.lr, _double(steps), _double(momentum))
    torch.testing.assert_close(0.1 * effective_steps(local), -carry.w)


@pytest.mark.parametrize(("threshold", "c"), [(1e9, 0.0), (0.0, 1.0)])
def test_fedgf_follows_the_divergence(threshold: float, c: float) -> None:
    method, trial, seen = ff.FedGF(threshold=threshold, window=2), None, []
    for _ in range(4):
        trial = quadratics.train(method, [[0, 1]], trial=trial)
        seen.append(float(trial.server.c))
    assert seen == [c] * 4


def test_fedgfs_divergence_is_the_plain_mean_of_the_distances() -> None:
    """Its model is the weighted mean: the clients' numbers of samples do not decide how far they are apart."""
    method, delta = ff.FedGF(threshold=3.0, window=1), torch.ones(2).double()
    weighted, plain = fedgf.Reply(delta, _double(5.0)), fedgf.Reply(2 * delta, _double(1.0))
    server = method.update(method.init_server(torch.zeros(2).double()), Cohort(weighted, plain, 2, 4))
    assert (float(server.distance), float(server.c)) == (1.0, 0.0)
    torch.testing.assert_close(server.params, delta)


def test_fedgf_forgets_rounds_outside_the_window() -> None:
    method, trial, seen = ff.FedGF(rho=0.0, threshold=0.3, window=2), None, []
    for _ in range(14):  # clients start far from their common optimum and end near it
        trial = quadratics.train(method, [[0]], trial=trial)
        seen.append(float(trial.server.c))
    assert seen[:2] == [1.0, 1.0]
    assert 0.5 in seen
    assert seen[-1] == 0.0


@pytest.mark.parametrize("wrapper", [ff.ServerMomentum, ff.ServerAdam])
def test_fedgf_climbs_from_where_a_wrapper_put_the_model(wrapper: Any) -> None:
    method = wrapper(inner=ff.FedGF(rho=0.1, threshold=0.0))
    trial = quadratics.train(method, [[0, 1], [2, 0], [1, 2]])
    message = method.broadcast(trial.server)
    assert torch.dist(message.perturbed, message.params).item() == pytest.approx(0.1)


def test_fedgloss_radius_of_clients_rises_to_its_value() -> None:
    method, trial, radii = ff.FedGloSS(rho=0.2, rho_local=0.1, warmup=4), None, []
    for _ in range(6):
        trial = quadratics.train(method, [[0, 1]], trial=trial)
        message = method.broadcast(trial.server)
        radii.append((float(torch.linalg.vector_norm(message.params - trial.server.params)), float(message.rho)))
    expected = [(0.2, 0.001 + 0.099 * t / 4) for t in (1, 2, 3, 4, 4, 4)]
    torch.testing.assert_close(torch.tensor(radii), torch.tensor(expected))


def test_naivefedgloss_radius_rises_with_rounds_not_with_exchanges() -> None:
    """After the last of T_s rounds it is ρ_l, and stays so."""
    method, radii = ff.NaiveFedGloSS(rho_local=0.1, warmup=3), []
    server, still = method.init_server(torch.zeros(2).double()), ff.Reply(torch.ones(2).double())
    for _ in range(2 * 5):
        radii.append(float(method.broadcast(server).rho))
        server = method.update(server, Cohort(still, still, 1, 1))
    assert radii == pytest.approx([0.001 + 0.099 * min(t, 3) / 3 for t in range(5) for _ in range(2)])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_mofedsams_direction_is_an_average_gradient_with_momentum_too(momentum: float) -> None:
    """Where every gradient is g, Δ is g in the first round and stays so: nothing adds up."""
    g, w, method = torch.tensor([1.0, -2.0]).double(), torch.zeros(2).double(), ff.MoFedSAM(beta=0.3)
    server, lr = method.init_server(w), _double(0.1)
    for _ in range(3):
        message, v, buffer = method.broadcast(server), server.params, torch.zeros_like(w)
        for _ in range(8):
            buffer = momentum * buffer + 0.3 * g + 0.7 * message.delta
            v = v - lr * buffer
        reply, _ = method.reply(v, message, (), Local(lr, _double(8.0), _double(momentum)))
        server = method.update(server, Cohort(reply, reply, 1, 1))
    torch.testing.assert_close(server.delta, (1 - 0.7**3) * g, rtol=0, atol=1e-12)
