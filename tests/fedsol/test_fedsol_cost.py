"""What a FedSOL step costs, counted in floating-point operations on FedSOL's own CNN."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedflat.core.method import Message, Method
from fedflat.core.task import Batch, Task
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedsol import FedSOL
from fedflat.methods.fedsol_ablation import FedSOLAblation
from fedflat.models import build_model


@pytest.fixture(scope="module")
def cnn():
    model = build_model("fedavg-cnn", (3, 32, 32), 10)
    task = Task(model)
    return task, task.flatten(dict(model.named_parameters())).detach()


def count(method: Method, cnn) -> int:
    """Multiplications and additions of one step on eight images."""
    task, w = cnn
    batch = Batch(torch.randn(8, 3, 32, 32), torch.arange(8), torch.ones(8, dtype=torch.bool), None)
    with FlopCounterMode(display=False) as counter:
        method.step(task, w + 0.01 * torch.randn_like(w), batch, Message(w), ())
    return counter.get_total_flops()


def forward(cnn) -> int:
    task, w = cnn
    batch = Batch(torch.randn(8, 3, 32, 32), torch.arange(8), torch.ones(8, dtype=torch.bool), None)
    with FlopCounterMode(display=False) as counter:
        task.logits(w, batch)
    return counter.get_total_flops()


def test_head_only_steps_share_the_body(cnn):
    """FedAvg plus the teacher's forward plus passes through the head, whose 5,130 parameters hardly count."""
    fedavg, fedsol = count(FedAvg(), cnn), count(FedSOL(perturb="head"), cnn)
    assert fedsol <= 1.4 * fedavg
    head_passes = fedsol - fedavg - forward(cnn)
    assert 0 < head_passes < 0.001 * fedavg


def test_terms_without_a_loss_cost_nothing(cnn):
    assert count(FedSOLAblation(perturb="head", proximal="l2"), cnn) == count(FedAvg(), cnn)
    assert count(FedSOLAblation(perturb="all", proximal="l2"), cnn) == count(FedAvg(), cnn)


@pytest.mark.parametrize("perturb", ["body", "all"])
def test_full_perturbation_takes_two_gradients_and_the_teacher(cnn, perturb):
    assert count(FedSOL(perturb=perturb), cnn) == 2 * count(FedAvg(), cnn) + forward(cnn)
