"""Every probe against its formula, calculated by hand in float64."""

from __future__ import annotations

import inspect
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from watched import Round, tiny, watch

from fedflat.cli.catalogue import describe_probe
from fedflat.core.local_training import count_traffic
from fedflat.core.task import Batch
from fedflat.engine import ENGINES
from fedflat.engine.rounds import Trial
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedbabu import FedBABU
from fedflat.methods.fedgf import FedGF
from fedflat.methods.fedgloss import FedGloSS
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsol import FedSOL
from fedflat.methods.naivefedgloss import NaiveFedGloSS
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.methods.wrappers import ServerMomentum
from fedflat.probes import PROBES, ProbeRunner

near = pytest.approx


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def outputs(w: torch.Tensor, x: torch.Tensor) -> np.ndarray:
    """The tiny network written out."""
    v, x = w.numpy(), x.numpy()
    hidden = np.tanh(x @ v[:16].reshape(4, 4).T + v[16:20])
    return hidden @ v[20:32].reshape(3, 4).T + v[32:]


def right(w: torch.Tensor) -> np.ndarray:
    test = tiny.feed().test()
    return outputs(w, test.x).argmax(-1) == test.y.numpy()


def test_drift() -> None:
    for seen in watch(FedAvg(), "drift"):
        w, (one, two) = seen.job.message.params.numpy(), seen.ends.numpy()
        mean = (np.linalg.norm(one - w) + np.linalg.norm(two - w)) / 2
        assert seen.found == {"drift.global_local": near(mean), "drift.local_local": near(np.linalg.norm(one - two))}


def test_forgetting() -> None:
    for seen in watch(FedAvg(), "forgetting"):
        after = [right(w).mean() for w in seen.ends]
        assert seen.found == {
            "forgetting.before": near(right(seen.before.params).mean()),
            "forgetting.after": near(statistics.fmean(after)),
            "forgetting.after_std": near(statistics.stdev(after)),
        }


def test_classes() -> None:
    y = tiny.feed().test().y.numpy()
    for seen in watch(FedAvg(), "classes"):
        shares = [right(seen.after.params)[y == label].mean() for label in range(3)]
        assert seen.found == {"classes.accuracy": near(shares)}


def test_a_class_without_test_samples_has_no_accuracy() -> None:
    """Null stands for what is not a number."""
    feed, trial, task = tiny.feed(), Trial(0, FedAvg(), tiny.params()), tiny.task()
    kept = feed.test().y != 1
    test = Batch(*(t[kept] for t in feed.test()[:3]), None)
    probes = ProbeRunner(("classes",), lambda round: True, FedAvg(), task, feed, test)
    seen = watch(FedAvg(), rounds=1)[0]
    probes.begin([trial], [seen.job])
    probes.end(ENGINES["sequential"](FedAvg(), task, feed).train([seen.job]))
    values = probes.measure([trial], [])[0]["probes"]["classes.accuracy"]
    assert [value is None for value in values] == [False, True, False]


def by_hand(seen: Round, k: int, direction) -> tuple[float, float]:
    """One client's proximal loss, and the cosine with ∇KL = (q − p) / (3 n) pulled back by autograd."""
    client, feed, total = seen.job.clients[k], tiny.feed(), []
    plan = feed.plan([0], seen.job.round, [client], seen.job.exchange)
    for step in range(-(-feed.counts[client] // feed.batch_size)):
        mask = plan.mask[0, step]
        batch = feed.batch(type(plan)(*(t[0, step][mask] for t in plan)))
        p, q = (softmax(outputs(w, batch.x) / 3) for w in (seen.job.message.params, seen.ends[k]))
        loss = (p * np.log(p / q)).sum(-1).mean()
        w = seen.ends[k].clone().requires_grad_()
        pulled = (tiny.task().logits(w, batch) * torch.from_numpy((q - p) / 3 / len(p))).sum()
        g_p, g_u = torch.autograd.grad(pulled, w)[0].numpy(), direction(seen.ends[k], batch, k).numpy()
        total.append((len(p), loss, g_u @ g_p / np.linalg.norm(g_u) / np.linalg.norm(g_p)))
    sizes, losses, cosines = zip(*total, strict=True)
    return float(np.average(losses, weights=sizes)), float(np.average(cosines, weights=sizes))


@pytest.mark.parametrize("method", [FedAvg(), FedSOL(rho=0.5), SCAFFOLD()], ids=["fedavg", "fedsol", "scaffold"])
def test_proximal(method) -> None:
    for seen in watch(method, "proximal", rounds=3):
        task = tiny.task()
        states = [tuple(t[k] for t in seen.states) for k in range(2)]
        made = [type(seen.states)(*s) if s else () for s in states]
        found = [
            by_hand(seen, k, lambda w, b, i: method.step(task, w, b, seen.job.message, made[i])[0]) for k in range(2)
        ]
        loss, cosine = np.mean(found, 0)
        assert seen.found == {"proximal.loss": near(loss), "proximal.cosine": near(cosine)}


def test_the_update_of_frozen_parameters_is_nothing() -> None:
    task, seen = tiny.task(), watch(FedBABU(), "proximal", rounds=1)[0]
    body = ~task.mask("head.")
    found = [by_hand(seen, k, lambda w, b, i: task.grad(w, b) * body) for k in range(2)]
    assert seen.found["proximal.cosine"] == near(np.mean(found, 0)[1])


def test_lambda() -> None:
    for seen in watch(FedAvg(), "lambda"):
        moved = np.abs((seen.ends - seen.job.message.params).numpy())
        tensors = np.split(moved, np.cumsum([16, 4, 12]), axis=1)
        means = [np.mean([row / np.linalg.norm(row) for row in tensor]) for tensor in tensors]
        assert seen.found == {"lambda.mean": near(means)}


def test_lambda_is_what_fedsol_scales_by() -> None:
    seen, task = watch(FedSOL(), "lambda")[1], tiny.task()
    scales = [FedSOL(rho=1.0)._scale(task.unflatten(end - seen.job.message.params)) for end in seen.ends]
    means = [np.mean([float(scale[name].mean()) for scale in scales]) for name in task.shapes]
    assert seen.found["lambda.mean"] == near(means)


def test_norm() -> None:
    for seen in watch(FedAvg(), "norm"):
        assert seen.found == {"norm.model": near(np.sqrt((seen.after.params.numpy() ** 2).sum()))}


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: ServerMomentum(inner=m)], ids=["alone", "wrapped"])
def test_fedgf(wrap) -> None:
    lengths = [float(s.found["drift.global_local"]) for s in watch(wrap(FedGF(rho=0.01)), "drift", rounds=4)]
    between = (min(lengths) + max(lengths)) / 2
    rounds = watch(wrap(FedGF(rho=0.01, threshold=between)), "fedgf", "drift", rounds=4)
    distances = [seen.found["drift.global_local"] for seen in rounds]
    flags = [d > between for d in distances]
    assert len(set(flags)) == 2
    for r, seen in enumerate(rounds):
        assert seen.found["fedgf.distance"] == near(distances[r])
        assert seen.found["fedgf.c"] == near(np.mean(flags[: r + 1]))


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(np.linalg.norm(a.numpy() / np.linalg.norm(a) - b.numpy() / np.linalg.norm(b)))


def pseudo_grad(start: torch.Tensor, seen: Round, ends: torch.Tensor) -> torch.Tensor:
    p = seen.job.weights / seen.job.weights.sum()
    return sum(p[k] * (start - ends[k]) for k in range(2))


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: ServerMomentum(inner=m)], ids=["alone", "wrapped"])
def test_fedgloss(wrap) -> None:
    first, second, third = watch(wrap(FedGloSS(rho=0.2)), "fedgloss", rounds=3)
    assert first.found == {}, "the first round is not perturbed"
    for last, seen in ((first, second), (second, third)):
        grads = [pseudo_grad(r.job.message.params, r, r.ends) for r in (last, seen)]
        assert seen.found == {"fedgloss.delta": near(0.2 * angle(*grads))}


def test_fedgloss_exact_is_the_first_exchange_of_naivefedgloss() -> None:
    """Trained from w with the clients' states of that round, as by NaiveFedGloSS, which finds the true perturbation."""
    first, second = watch(FedGloSS(rho=0.2), "fedgloss-exact")
    assert first.found == {}
    naive, trial = NaiveFedGloSS(rho=0.2), Trial(0, NaiveFedGloSS(), second.before.params)
    trial.clients.scatter(second.job.clients, second.states)
    message = naive.broadcast(trial.server)
    job = second.job._replace(message=message, states=trial.clients)
    ends = ENGINES["sequential"](naive, tiny.task(), tiny.feed()).train([job])[0].ends
    true = pseudo_grad(second.before.params, second, ends)
    assert second.found == {"fedgloss-exact.delta": near(0.2 * angle(first.after.pseudo_grad, true), rel=1e-9)}


def test_communication() -> None:
    sent = count_traffic(SCAFFOLD(), tiny.params())
    found = [seen.found["communication.bytes"] for seen in watch(SCAFFOLD(), "communication", rounds=3)]
    assert found == [2 * (sent.down + sent.up) * r for r in (1, 2, 3)]
    assert sent.down == 2 * 35 * 8


def test_gradients_of_a_step() -> None:
    """Counted in whole gradients; times are only there."""
    for method, gradients in ((FedAvg(), 1), (FedSAM(rho=0.1), 2), (FedGF(), 2), (FedSOL(perturb="all"), None)):
        first, second = watch(method, "cost")
        assert first.found.keys() == {"cost.gradients", "cost.seconds", "cost.latency"}
        assert min(first.found.values()) > 0
        assert second.found == {}, "measured once"
        if gradients:
            assert first.found["cost.gradients"] == gradients
        else:
            assert 2 < first.found["cost.gradients"] < 3, "the teacher's forward pass on top"


def test_two_exchanges_are_seen_as_their_last() -> None:
    first, second = watch(NaiveFedGloSS(rho=0.3), "drift", "forgetting")
    for seen in (first, second):
        assert float(torch.linalg.vector_norm(seen.job.message.params - seen.before.params)) == near(0.3)
        assert seen.found["forgetting.before"] == near(right(seen.job.message.params).mean())
        mean = np.mean([np.linalg.norm(end - seen.job.message.params) for end in seen.ends])
        assert seen.found["drift.global_local"] == near(mean)


@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD(), FedSOL(proximal="moon", perturb="all")], ids=repr)
def test_what_a_method_does_not_have_is_absent(method) -> None:
    names = ("fedgf", "fedgloss", "fedgloss-exact")
    assert [seen.found for seen in watch(method, *names)] == [{}, {}]


@pytest.mark.parametrize("method", [FedAvg(), FedGloSS(), FedGF(), NaiveFedGloSS()], ids=lambda m: type(m).__name__)
def test_engines_agree(method) -> None:
    names = [name for name in PROBES if name != "cost"]
    runs = [watch(method, *names, engine=engine) for engine in ENGINES]
    for one, other in zip(*runs, strict=True):
        assert one.found.keys() == other.found.keys()
        for key, value in one.found.items():
            assert other.found[key] == near(value, rel=1e-8, abs=1e-10), key


@pytest.mark.parametrize("name", PROBES)
def test_docstrings_say_what_is_measured_and_what_it_costs(name: str) -> None:
    told = describe_probe(name, PROBES[name])
    assert all(told.values()), told
    assert " = " in told["formulas"]
    assert inspect.getdoc(PROBES[name]).count("\n\nCosts ") == 1
    for method in (FedGloSS(), FedGF()):
        measures = {key.split(".")[1] for seen in watch(method, name) for key in seen.found}
        assert all(f"{measure} = " in told["formulas"] or f"{measure}[" in told["formulas"] for measure in measures)
