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

from probed_rounds import ProbedRound, probe_rounds, tiny

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
from fedflat.methods.fedsol import FedSOL, perturbation_strength
from fedflat.methods.fedsol_ablation import FedSOLAblation
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


def correct(w: torch.Tensor) -> np.ndarray:
    test = tiny.client_data().test()
    return outputs(w, test.x).argmax(-1) == test.y.numpy()


def test_drift() -> None:
    for probed in probe_rounds(FedAvg(), "drift"):
        w, (one, two) = probed.job.message.params.numpy(), probed.local_models.numpy()
        mean = (np.linalg.norm(one - w) + np.linalg.norm(two - w)) / 2
        assert probed.values == {"drift.global_local": near(mean), "drift.local_local": near(np.linalg.norm(one - two))}


def test_forgetting() -> None:
    for probed in probe_rounds(FedAvg(), "forgetting"):
        after = [correct(w).mean() for w in probed.local_models]
        assert probed.values == {
            "forgetting.before": near(correct(probed.server_before.params).mean()),
            "forgetting.after": near(statistics.fmean(after)),
            "forgetting.after_std": near(statistics.stdev(after)),
        }


def test_classes() -> None:
    y = tiny.client_data().test().y.numpy()
    for probed in probe_rounds(FedAvg(), "classes"):
        shares = [correct(probed.server_after.params)[y == label].mean() for label in range(3)]
        assert probed.values == {"classes.accuracy": near(shares)}


def test_a_class_without_test_samples_has_no_accuracy() -> None:
    """A value that is not a number becomes None."""
    client_data, trial, task = tiny.client_data(), Trial(0, FedAvg(), tiny.params()), tiny.task()
    kept = client_data.test().y != 1
    test = Batch(*(t[kept] for t in client_data.test()[:3]), None)
    probes = ProbeRunner(("classes",), lambda round: True, FedAvg(), task, client_data, test)
    probed = probe_rounds(FedAvg(), rounds=1)[0]
    probes.begin([trial], [probed.job])
    probes.end(ENGINES["sequential"](FedAvg(), task, client_data).train([probed.job]))
    values = probes.measure([trial], [])[0]["probes"]["classes.accuracy"]
    assert [value is None for value in values] == [False, True, False]


def by_hand(probed: ProbedRound, k: int, direction) -> tuple[float, float]:
    """One client's proximal loss, and the cosine with ∇KL = (q − p) / (3 n) pulled back by autograd."""
    client, client_data, total = probed.job.clients[k], tiny.client_data(), []
    plan = client_data.plan([0], probed.job.round, [client], probed.job.exchange)
    for step in range(-(-client_data.counts[client] // client_data.batch_size)):
        mask = plan.mask[0, step]
        batch = client_data.batch(type(plan)(*(t[0, step][mask] for t in plan)))
        p, q = (softmax(outputs(w, batch.x) / 3) for w in (probed.job.message.params, probed.local_models[k]))
        loss = (p * np.log(p / q)).sum(-1).mean()
        w = probed.local_models[k].clone().requires_grad_()
        pulled = (tiny.task().logits(w, batch) * torch.from_numpy((q - p) / 3 / len(p))).sum()
        g_p, g_u = torch.autograd.grad(pulled, w)[0].numpy(), direction(probed.local_models[k], batch, k).numpy()
        total.append((len(p), loss, g_u @ g_p / np.linalg.norm(g_u) / np.linalg.norm(g_p)))
    sizes, losses, cosines = zip(*total, strict=True)
    return float(np.average(losses, weights=sizes)), float(np.average(cosines, weights=sizes))


@pytest.mark.parametrize("method", [FedAvg(), FedSOL(rho=0.5), SCAFFOLD()], ids=["fedavg", "fedsol", "scaffold"])
def test_proximal(method) -> None:
    for probed in probe_rounds(method, "proximal", rounds=3):
        task = tiny.task()
        states = [tuple(t[k] for t in probed.client_states) for k in range(2)]
        made = [type(probed.client_states)(*s) if s else () for s in states]
        found = [
            by_hand(probed, k, lambda w, b, i: method.step(task, w, b, probed.job.message, made[i])[0])
            for k in range(2)
        ]
        loss, cosine = np.mean(found, 0)
        assert probed.values == {"proximal.loss": near(loss), "proximal.cosine": near(cosine)}


def test_the_update_of_frozen_parameters_is_zero() -> None:
    task, probed = tiny.task(), probe_rounds(FedBABU(), "proximal", rounds=1)[0]
    body = ~task.mask("head.")
    found = [by_hand(probed, k, lambda w, b, i: task.grad(w, b) * body) for k in range(2)]
    assert probed.values["proximal.cosine"] == near(np.mean(found, 0)[1])


def test_lambda() -> None:
    for probed in probe_rounds(FedAvg(), "lambda"):
        moved = np.abs((probed.local_models - probed.job.message.params).numpy())
        tensors = np.split(moved, np.cumsum([16, 4, 12]), axis=1)
        means = [np.mean([row / np.linalg.norm(row) for row in tensor]) for tensor in tensors]
        assert probed.values == {"lambda.mean": near(means)}


def test_lambda_is_what_fedsol_scales_by() -> None:
    probed, task = probe_rounds(FedSOL(), "lambda")[1], tiny.task()
    scales = [
        perturbation_strength("tensor", 1.0, task.unflatten(end - probed.job.message.params))
        for end in probed.local_models
    ]
    means = [np.mean([float(scale[name].mean()) for scale in scales]) for name in task.shapes]
    assert probed.values["lambda.mean"] == near(means)


def test_norm() -> None:
    for probed in probe_rounds(FedAvg(), "norm"):
        assert probed.values == {"norm.model": near(np.sqrt((probed.server_after.params.numpy() ** 2).sum()))}


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: ServerMomentum(inner=m)], ids=["alone", "wrapped"])
def test_fedgf(wrap) -> None:
    lengths = [float(s.values["drift.global_local"]) for s in probe_rounds(wrap(FedGF(rho=0.01)), "drift", rounds=4)]
    between = (min(lengths) + max(lengths)) / 2
    rounds = probe_rounds(wrap(FedGF(rho=0.01, threshold=between)), "fedgf", "drift", rounds=4)
    distances = [probed.values["drift.global_local"] for probed in rounds]
    flags = [d > between for d in distances]
    assert len(set(flags)) == 2
    for r, probed in enumerate(rounds):
        assert probed.values["fedgf.distance"] == near(distances[r])
        assert probed.values["fedgf.c"] == near(np.mean(flags[: r + 1]))


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(np.linalg.norm(a.numpy() / np.linalg.norm(a) - b.numpy() / np.linalg.norm(b)))


def pseudo_grad(start: torch.Tensor, probed: ProbedRound, ends: torch.Tensor) -> torch.Tensor:
    p = probed.job.weights / probed.job.weights.sum()
    return sum(p[k] * (start - ends[k]) for k in range(2))


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: ServerMomentum(inner=m)], ids=["alone", "wrapped"])
def test_fedgloss(wrap) -> None:
    first, second, third = probe_rounds(wrap(FedGloSS(rho=0.2)), "fedgloss", rounds=3)
    assert first.values == {}, "the first round is not perturbed"
    for last, probed in ((first, second), (second, third)):
        grads = [pseudo_grad(r.job.message.params, r, r.local_models) for r in (last, probed)]
        assert probed.values == {"fedgloss.delta": near(0.2 * angle(*grads))}


def test_fedgloss_exact_is_the_first_exchange_of_naivefedgloss() -> None:
    """Trained from w with the clients' states of that round, as by NaiveFedGloSS, which finds the true perturbation."""
    first, second = probe_rounds(FedGloSS(rho=0.2), "fedgloss-exact")
    assert first.values == {}
    naive, trial = NaiveFedGloSS(rho=0.2), Trial(0, NaiveFedGloSS(), second.server_before.params)
    trial.clients.scatter(second.job.clients, second.client_states)
    message = naive.broadcast(trial.server)
    job = second.job._replace(message=message, states=trial.clients)
    ends = ENGINES["sequential"](naive, tiny.task(), tiny.client_data()).train([job])[0].ends
    true = pseudo_grad(second.server_before.params, second, ends)
    assert second.values == {"fedgloss-exact.delta": near(0.2 * angle(first.server_after.pseudo_grad, true), rel=1e-9)}


def test_communication() -> None:
    sent = count_traffic(SCAFFOLD(), tiny.params())
    found = [probed.values["communication.bytes"] for probed in probe_rounds(SCAFFOLD(), "communication", rounds=3)]
    assert found == [2 * (sent.down + sent.up) * r for r in (1, 2, 3)]
    assert sent.down == 2 * 35 * 8


def test_gradients_of_a_step() -> None:
    """Operations are counted in gradients; times are only positive."""
    for method, gradients in ((FedAvg(), 1), (FedSAM(rho=0.1), 2), (FedGF(), 2), (FedSOL(perturb="all"), None)):
        first, second = probe_rounds(method, "cost")
        assert first.values.keys() == {"cost.gradients", "cost.seconds", "cost.latency"}
        assert min(first.values.values()) > 0
        assert second.values == {}, "measured once"
        if gradients:
            assert first.values["cost.gradients"] == gradients
        else:
            assert 2 < first.values["cost.gradients"] < 3, "the teacher's forward pass on top"


def test_of_two_exchanges_the_last_is_probed() -> None:
    first, second = probe_rounds(NaiveFedGloSS(rho=0.3), "drift", "forgetting")
    for probed in (first, second):
        assert float(torch.linalg.vector_norm(probed.job.message.params - probed.server_before.params)) == near(0.3)
        assert probed.values["forgetting.before"] == near(correct(probed.job.message.params).mean())
        mean = np.mean([np.linalg.norm(end - probed.job.message.params) for end in probed.local_models])
        assert probed.values["drift.global_local"] == near(mean)


@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD(), FedSOLAblation(proximal="moon", perturb="all")], ids=repr)
def test_what_a_method_does_not_have_is_absent(method) -> None:
    names = ("fedgf", "fedgloss", "fedgloss-exact")
    assert [probed.values for probed in probe_rounds(method, *names)] == [{}, {}]


@pytest.mark.parametrize("method", [FedAvg(), FedGloSS(), FedGF(), NaiveFedGloSS()], ids=lambda m: type(m).__name__)
def test_engines_agree(method) -> None:
    names = [name for name in PROBES if name != "cost"]
    runs = [probe_rounds(method, *names, engine=engine) for engine in ENGINES]
    for one, other in zip(*runs, strict=True):
        assert one.values.keys() == other.values.keys()
        for key, value in one.values.items():
            assert other.values[key] == near(value, rel=1e-8, abs=1e-10), key


@pytest.mark.parametrize("name", PROBES)
def test_docstrings_have_a_summary_formulas_and_costs(name: str) -> None:
    row = describe_probe(name, PROBES[name])
    assert all(row.values()), row
    assert " = " in row["formulas"]
    assert inspect.getdoc(PROBES[name]).count("\n\nCosts ") == 1
    for method in (FedGloSS(), FedGF()):
        measures = {key.split(".")[1] for probed in probe_rounds(method, name) for key in probed.values}
        assert all(f"{measure} = " in row["formulas"] or f"{measure}[" in row["formulas"] for measure in measures)


def hessian(w: torch.Tensor) -> np.ndarray:
    """The Hessian of the mean loss on the test samples, by differences of exact gradients."""
    test = tiny.client_data().test()
    return torch.func.jacrev(lambda v: tiny.task().grad(v, test))(w).numpy()


def test_sharpness() -> None:
    for probed in probe_rounds(FedAvg(), "sharpness"):
        values = np.linalg.eigvalsh(hessian(probed.server_after.params))
        found = probed.values["sharpness.lambda1"]
        assert values[-2] < found <= values[-1] * (1 + 1e-9)
        assert found == near(values[-1], rel=0.02)


def test_clients() -> None:
    data = tiny.client_data()
    for probed in probe_rounds(FedAvg(), "clients"):
        shares = [
            (outputs(probed.server_after.params, data.x[rows].double()).argmax(-1) == data.y[rows].numpy()).mean()
            for rows in map(data.rows_of, range(len(data.counts)))
        ]
        assert probed.values["clients.accuracy"] == near(shares)
        assert probed.values["clients.worst"] == near(min(shares))
        assert probed.values["clients.spread"] == near(np.std(shares))
        assert probed.values["clients.jain"] == near(sum(shares) ** 2 / (len(shares) * sum(a * a for a in shares)))


def test_alignment() -> None:
    for probed in probe_rounds(FedAvg(), "alignment"):
        one, two = (probed.local_models - probed.job.message.params).numpy()
        lengths = np.linalg.norm(one), np.linalg.norm(two)
        assert probed.values["alignment.cosine"] == near(one @ two / (lengths[0] * lengths[1]))
        assert probed.values["alignment.mean_update"] == near(np.linalg.norm((one + two) / 2) / np.mean(lengths))


def test_class_forgetting() -> None:
    y = tiny.client_data().test().y.numpy()
    for probed in probe_rounds(FedAvg(), "class-forgetting"):
        assert probed.values["class-forgetting.client"] == probed.job.clients
        before, *after = (
            [correct(w)[y == c].mean() if (y == c).any() else np.nan for c in range(3)]
            for w in (probed.job.message.params, *probed.local_models)
        )
        expected = [b - a for each in after for b, a in zip(before, each, strict=True)]
        found = [np.nan if value is None else value for value in probed.values["class-forgetting.forgotten"]]
        assert found == near(expected, nan_ok=True)
