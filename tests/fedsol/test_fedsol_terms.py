"""FedSOL's proximal terms (Table 4) are those of the methods they come from, and so are state and traffic."""

from __future__ import annotations

import pytest
import torch
from small_federation import SIZES, problem, some_batch, train

from fedflat.core.local_training import count_traffic
from fedflat.core.method import Local, Message
from fedflat.core.state import pack_state
from fedflat.core.task import Task
from fedflat.core.vectors import norm, unit
from fedflat.errors import UserError
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.feddyn import FedDyn
from fedflat.methods.fednova import FedNova
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsol import FedSOL, perturbation_strength
from fedflat.methods.fedsol_ablation import FedSOLAblation
from fedflat.methods.moon import MOON
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.runs.config import dump_yaml, method_from_dict, method_to_dict, same_run

TERMS = ("kl", "l2", "fednova", "scaffold", "feddyn", "moon")
SAME = {
    "rho 0": (FedSOL(rho=0.0), FedAvg()),
    "defaults": (FedSOLAblation(), FedSOL()),
    "all": (FedSOLAblation(perturb="all", lam="dim0", temperature=2.0), FedSOL(2.0, "dim0", "all", 2.0)),
    "A0": (FedSOLAblation(strategy="A0"), FedAvg()),
    "l2": (FedSOLAblation(proximal="l2", strategy="A5", beta=0.7), FedProx(mu=0.7)),
    "scaffold": (FedSOLAblation(proximal="scaffold", strategy="A5", beta=1.0), SCAFFOLD(steps="momentum")),
    "feddyn": (FedSOLAblation(proximal="feddyn", strategy="A5", beta=0.3), FedDyn(dyn_alpha=0.3)),
    "moon": (
        FedSOLAblation(proximal="moon", strategy="A5", beta=0.6, temperature=0.4, perturb="all"),
        MOON(mu=0.6, tau=0.4),
    ),
    "fednova": (FedSOLAblation(proximal="fednova", strategy="A0"), FedNova()),
}


@pytest.mark.parametrize("case", SAME)
def test_a_term_added_to_the_loss_is_its_own_method(case):
    ours, theirs = (train(method).server.params for method in SAME[case])
    assert (ours - theirs).abs().max() < 1e-12


@pytest.mark.parametrize("proximal", TERMS)
def test_every_term_perturbs(proximal):
    _, start, _ = problem()
    end = train(FedSOLAblation(proximal=proximal, perturb="all")).server.params
    plain = train(FedSOLAblation(proximal=proximal, perturb="all", rho=0.0)).server.params
    assert (end - plain).abs().max() > 1e-4
    assert norm(end - start) < 10


MODELS_DOWN_UP_KEPT = {"kl": (1, 1, 0), "l2": (1, 1, 0), "scaffold": (2, 2, 1), "feddyn": (1, 1, 1), "moon": (1, 1, 1)}


@pytest.mark.parametrize("proximal", MODELS_DOWN_UP_KEPT)
def test_terms_cost_what_their_methods_do(proximal):
    _, w, _ = problem()
    sent = count_traffic(FedSOLAblation(proximal=proximal), w)
    assert sent == tuple(8 * len(w) * models for models in MODELS_DOWN_UP_KEPT[proximal])


def test_fednova_also_sends_its_step_count():
    _, w, _ = problem()
    assert count_traffic(FedSOLAblation(proximal="fednova"), w) == (16 * len(w), 16 * len(w) + 8, 8 * len(w))


@pytest.mark.parametrize("strategy", ["A1", "A5"])
@pytest.mark.parametrize("proximal", ["scaffold", "fednova"])
def test_the_servers_control_is_the_mean_of_the_clients(proximal, strategy):
    trial = train(FedSOLAblation(proximal=proximal, strategy=strategy, perturb="all"))
    controls = trial.clients.gather(range(len(SIZES))).c
    assert torch.allclose(trial.server.c, controls.mean(0), atol=1e-13)
    assert norm(trial.server.c) > 0.01


def test_controls_are_mean_gradients_whether_or_not_the_steps_follow_them():
    """With one step and no momentum, c_k is the gradient at the received model plus weight decay."""
    for strategy in ("A1", "A5"):
        task, w, client_data = problem()
        method = FedSOLAblation(proximal="scaffold", strategy=strategy, perturb="all")
        msg = method.broadcast(method.init_server(w)._replace(c=torch.randn_like(w)))
        client = method.init_client(w)._replace(c=torch.randn_like(w))
        batch, lr, one = some_batch(client_data), torch.tensor(0.1, dtype=w.dtype), torch.ones((), dtype=w.dtype)
        direction, client = method.step(task, w, batch, msg, client)
        _, kept = method.reply(w - lr * direction, msg, client, Local(lr, one, torch.zeros_like(lr)))
        assert torch.allclose(kept.c, task.grad(w, batch), atol=1e-13)


@pytest.mark.parametrize("proximal", TERMS)
def test_the_first_local_step_is_plain(proximal):
    task, w, client_data = problem()
    for lam in ("tensor", "dim0", "fixed"):
        method = FedSOLAblation(proximal=proximal, lam=lam, perturb="all")
        msg, batch = method.broadcast(method.init_server(w)), some_batch(client_data)
        direction, _ = method.step(task, w, batch, msg, method.init_client(w + 1))
        assert torch.equal(direction, task.grad(w, batch))


@pytest.mark.parametrize("lam", ["tensor", "dim0", "fixed"])
def test_sharing_the_body_changes_nothing(lam):
    task, w, client_data = problem()
    batch, msg, here = some_batch(client_data), Message(w), w + 0.1 * torch.randn_like(w)
    method = FedSOL(lam=lam, perturb="head", temperature=2.0)
    shared, _ = method.step(task, here, batch, msg, ())
    climb = FedSOLAblation(temperature=2.0).proximal_gradient(task, here, batch, msg, ())
    scale = task.flatten(perturbation_strength(lam, method.rho, task.unflatten(here - w)))
    climb = scale * unit(climb * task.mask("head."))
    assert norm(climb) > 0.01
    assert torch.allclose(shared, task.grad(here + climb, batch), atol=1e-13)


def test_scales_of_the_perturbation():
    """Eq. 7 gives every tensor's Λ length 1; the released code every column; a fixed ρ is the perturbation's length."""
    task, w, _ = problem()
    drift = task.unflatten(torch.randn_like(w))
    tensors = perturbation_strength("tensor", 1.0, drift).values()
    assert all(torch.isclose(norm(t.flatten()), torch.ones((), dtype=t.dtype)) for t in tensors)
    columns = perturbation_strength("dim0", 1.0, drift)["head.weight"]
    assert torch.allclose(columns.norm(dim=0), torch.ones(columns.shape[1], dtype=w.dtype))
    assert all((t == 3).all() for t in perturbation_strength("fixed", 3.0, drift).values())


@pytest.mark.parametrize("proximal", TERMS)
@pytest.mark.parametrize("strategy", ["A1", "A4", "project"])
def test_engines_agree(proximal, strategy):
    method = FedSOLAblation(proximal=proximal, strategy=strategy, perturb="body")
    one, two = (train(method, engine).server.params for engine in ("sequential", "batched"))
    assert (one - two).abs().max() < 1e-10


def test_parts_that_cannot_be_perturbed_are_refused():
    task, w, client_data = problem()
    batch = some_batch(client_data)
    with pytest.raises(UserError, match='perturb="head": MOON'):
        FedSOLAblation(proximal="moon").step(task, w, batch, Message(w), FedSOLAblation(proximal="moon").init_client(w))
    headless = Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 3).double()))
    start = torch.zeros(headless.size, dtype=torch.float64)
    with pytest.raises(UserError, match='perturb="body": the model has no parts'):
        FedSOL(perturb="body").step(headless, start, batch, Message(start), ())


OLD = {"name": "fedsol", "rho": 2.0, "lam": "tensor", "perturb": "all", "proximal": "kl", "temperature": None}
OLD |= {"strategy": "A1", "beta": 1.0}


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({}, FedSOL(perturb="all")),
        ({"temperature": 2.0}, FedSOL(perturb="all", temperature=2.0)),
        ({"proximal": "l2"}, FedSOLAblation(perturb="all", proximal="l2")),
        ({"strategy": "A5", "beta": 0.5}, FedSOLAblation(perturb="all", strategy="A5", beta=0.5)),
    ],
)
def test_configurations_of_earlier_versions_mean_the_same(changes, method):
    """Ablations were options of fedsol; whole configurations of then compare equal to those of today."""
    old = OLD | changes
    assert method_from_dict(old) == method
    assert method_from_dict({"name": "fedavgm", "inner": old}).inner == method
    today = dump_yaml({"method": method_to_dict(method)})
    assert same_run(dump_yaml({"method": old}), today)
    assert not same_run(dump_yaml({"method": old | {"rho": 1.0}}), today)


def test_states_are_stored_under_the_names_of_earlier_versions():
    _, w, _ = problem()
    names = {p: list(pack_state(FedSOLAblation(proximal=p).init_client(w))) for p in TERMS}
    assert names == {"kl": [], "l2": [], "fednova": ["c"], "scaffold": ["c"], "feddyn": ["lam"], "moon": ["params"]}
