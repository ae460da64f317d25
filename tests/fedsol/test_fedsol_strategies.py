"""The uses of a proximal gradient: FedSOL's Table 12 row by row, and its eq. 3."""

from __future__ import annotations

import pytest
import torch
from small_federation import problem, some_batch

from fedflat.core.method import Message
from fedflat.core.vectors import norm, unit
from fedflat.methods.fedsol import kl_loss, part_of
from fedflat.methods.fedsol_ablation import FedSOLAblation, combine_gradients, project_gradient

BETA, RHO = 0.7, 0.3


def gradients():
    """Local and proximal gradients that no formula confuses, and the climb of length ρ."""
    torch.manual_seed(1)
    a, b = (torch.randn(4, 4, dtype=torch.float64) for _ in "ab")
    return lambda v: torch.tanh(a @ v), lambda v: b @ v, lambda g: RHO * unit(g)


def printed(w):
    """Table 12: the gradient of each formulation, ε taken as a constant."""
    local, proximal, climb = gradients()
    eps_p, eps_c = climb(proximal(w)), climb(local(w) + BETA * proximal(w))
    return {
        "A0": local(w),
        "A1": local(w + eps_p),
        "A2": local(w) + BETA * proximal(w + eps_p),
        "A3": local(w + eps_p) + BETA * proximal(w + eps_p),
        "A4": local(w + eps_c) + BETA * proximal(w + eps_c),
        "A5": local(w) + BETA * proximal(w),
        "A6": local(w + eps_p) + BETA * proximal(w),
    }


@pytest.mark.parametrize("strategy", [f"A{i}" for i in range(7)])
def test_strategies_are_the_rows_of_the_table(strategy):
    w = torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64)
    rows = printed(w)
    ours = {name: combine_gradients(name, *gradients(), w, BETA) for name in rows}
    assert torch.allclose(ours[strategy], rows[strategy], atol=1e-14)
    others = [name for name in rows if name != strategy]
    assert all(norm(ours[strategy] - rows[name]) > 1e-3 for name in others)


def test_projection_removes_only_what_conflicts():
    p = torch.tensor([0.0, 2.0])
    assert torch.equal(project_gradient(torch.tensor([1.0, -3.0]), p), torch.tensor([1.0, 0.0]))
    assert torch.equal(project_gradient(torch.tensor([1.0, 3.0]), p), torch.tensor([1.0, 3.0]))
    assert torch.equal(project_gradient(torch.tensor([1.0, -3.0]), torch.zeros(2)), torch.tensor([1.0, -3.0]))


@pytest.mark.parametrize("proximal", ["kl", "l2"])
def test_projected_steps_never_raise_the_proximal_loss(proximal):
    task, w, client_data = problem()
    batch, conflicts = some_batch(client_data), 0
    for seed in range(10):
        torch.manual_seed(seed)
        here = w + 0.3 * torch.randn_like(w)
        g_p = FedSOLAblation().proximal_gradient(task, here, batch, Message(w), ()) if proximal == "kl" else here - w
        direction, _ = FedSOLAblation(strategy="project", proximal=proximal).step(task, here, batch, Message(w), ())
        conflicts += int((task.grad(here, batch) @ g_p) < 0)
        assert (direction @ g_p) > -1e-12
    assert conflicts > 0


def test_the_base_use_is_the_gradient_of_the_sum():
    task, w, client_data = problem()
    batch, here = some_batch(client_data), w + 0.1
    direction, _ = FedSOLAblation(strategy="A5", beta=0.4).step(task, here, batch, Message(w), ())

    def total(v):
        return task.loss(v, batch) + 0.4 * kl_loss(task, task.logits(v, batch), task.logits(w, batch), batch, 3.0)

    assert torch.allclose(direction, torch.func.grad(total)(here), atol=1e-14)


def test_parts_of_the_model():
    task, w, _ = problem()
    head, body, everything = (part_of(task, name, torch.ones_like(w)) for name in ("head", "body", "all"))
    assert head.sum() == sum(p.numel() for name, p in task.unflatten(w).items() if name.startswith("head."))
    assert torch.equal(head + body, everything)
