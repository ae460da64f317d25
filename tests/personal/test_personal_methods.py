"""Per-FedAvg and FedBABU: what they change of FedAvg, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat import Averaged, Private, ServerMomentum
from fedflat.core.local_training import local_update
from fedflat.core.method import Message, Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Batch, Task
from fedflat.data.batches import ClientBatches
from fedflat.data.dataset import Augment, Dataset
from fedflat.engine import ENGINES
from fedflat.engine.rounds import Trial, play_round
from fedflat.errors import UserError
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedbabu import FedBABU
from fedflat.methods.perfedavg import PerFedAvg
from fedflat.models.cnn import mlp

SIZES = (11, 7, 1, 9)


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    model, n = mlp((5, 1, 1), 3).double(), sum(SIZES)
    data = Dataset("random", torch.randn(n, 5, 1, 1), torch.randint(3, (n,)), torch.zeros(1, 5), torch.zeros(1), 3)
    client_data = ClientBatches(
        data, np.split(np.arange(n), np.cumsum(SIZES)[:-1]), 4, 2, Augment(), dtype=torch.float64
    )
    task = Task(model)
    return task, task.flatten(dict(model.named_parameters())).detach(), client_data


def train(method: Method, problem, weight_decay: float, engine: str = "sequential") -> Trial:
    task, w, client_data = problem
    trial, runner = Trial(0, method, w), ENGINES[engine](method, task, client_data)
    sgd = Optimiser(torch.tensor(0.1, dtype=torch.float64), 0.9, weight_decay)
    for r, cohort in enumerate([[0, 2], [1, 3], [2, 1]]):
        play_round(method, runner, [trial], r, [cohort], [torch.ones(2, dtype=torch.float64)], len(SIZES), sgd)
    return trial


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_fedbabu_leaves_the_head_alone_in_spite_of_weight_decay(problem, engine):
    task, w, _ = problem
    end, head = train(FedBABU(), problem, 0.1, engine).server.params, task.mask("head.")
    assert torch.equal(end[head], w[head])
    assert (end != w)[~head].all()


@pytest.mark.parametrize(
    "wrapped", [ServerMomentum(inner=FedBABU()), Averaged(inner=FedBABU()), Private(inner=FedBABU(), noise=0.0)]
)
def test_fedbabu_leaves_the_head_alone_inside_wrappers(problem, wrapped):
    task, w, _ = problem
    head = task.mask("head.")
    assert torch.equal(train(wrapped, problem, 0.1).server.params[head], w[head])


def test_fedbabu_trains_the_body_as_if_the_head_were_a_constant(problem):
    """The same numbers as a model whose head is no parameter at all."""
    task, w, client_data = problem

    class Frozen(Task):
        def outputs(self, v, batch):
            return super().outputs(torch.where(self.mask("head."), w, v), batch)

    constant = Frozen(task.model)
    end = train(FedAvg(), (constant, w, client_data), 0.1).server.params
    body = ~task.mask("head.")
    assert torch.allclose(train(FedBABU(), problem, 0.1).server.params[body], end[body], atol=1e-14)


def test_fedbabu_finds_a_head_that_is_not_last(problem):
    class HeadFirst(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.features = (
                torch.nn.Linear(4, 3),
                torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 4)),
            )

        def forward(self, x):
            return self.head(self.features(x))

    model = HeadFirst().double()
    task = Task(model)
    w = task.flatten(dict(model.named_parameters())).detach()
    end, head = train(FedBABU(), (task, w, problem[2]), 0.1).server.params, task.mask("head.")
    assert torch.equal(end[head], w[head])
    assert (end != w)[~head].any()


def test_fedbabu_needs_a_head():
    task = Task(torch.nn.Linear(5, 3))
    w, yes = torch.zeros(task.size), torch.ones(2, dtype=torch.bool)
    batch = Batch(torch.ones(2, 5), torch.tensor([0, 1]), yes, None)
    with pytest.raises(UserError, match=r"has no parameters named 'head\.…'"):
        local_update(FedBABU(), task, Optimiser(torch.tensor(0.1), 0.0, 0.0), Message(w), (), [batch])


def test_perfedavg_takes_the_gradient_after_a_step_on_other_samples(problem):
    task, w, client_data = problem
    x, y, yes = client_data.x.double(), client_data.y, torch.ones(3, dtype=torch.bool)
    batch = Batch(x[:6], y[:6], torch.ones(6, dtype=torch.bool), None)
    first, second = Batch(x[0:6:2], y[0:6:2], yes, None), Batch(x[1:6:2], y[1:6:2], yes, None)
    direction, _ = PerFedAvg(inner_lr=0.3).step(task, w, batch, Message(w), ())
    adapted = w - 0.3 * task.grad(w, first)
    assert torch.allclose(direction, task.grad(adapted, second), atol=1e-15)


def test_perfedavg_of_one_sample_uses_it_twice(problem):
    task, w, client_data = problem
    mask = torch.tensor([True, False, False, False])
    padded = Batch(client_data.x[:4].double(), client_data.y[:4], mask, None)
    direction, _ = PerFedAvg(inner_lr=0.3).step(task, w, padded, Message(w), ())
    g = task.grad(w, padded)
    assert torch.allclose(direction, task.grad(w - 0.3 * g, padded), atol=1e-15)
    assert direction.abs().max() > 0.01


@pytest.mark.parametrize("method", [PerFedAvg(inner_lr=0.1), FedBABU()])
def test_engines_agree_on_ragged_clients(problem, method):
    one, two = (train(method, problem, 0.01, engine).server.params for engine in ("sequential", "batched"))
    assert (one - two).abs().max() < 1e-10
