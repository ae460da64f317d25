"""Gradients by autograd where nothing else differentiates, by torch.func elsewhere: always the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedflat.core.gradient import grad

W = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def cubes(w: Tensor) -> Tensor:
    return (w**3).sum()


def test_without_a_transform_autograd_is_used(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.func, "grad", lambda *given, **options: calls.append(given))
    with torch.no_grad():
        found = grad(cubes)(W)
    assert not calls
    assert torch.equal(found, 3 * W**2)
    assert not found.requires_grad


@pytest.mark.parametrize("recording", [False, True])
def test_a_gradient_of_a_gradient(recording):
    with torch.set_grad_enabled(recording):
        second = grad(lambda w: grad(cubes)(w).sum())(W)
    torch.testing.assert_close(second, 6 * W)


def test_autograd_outside_sees_through_it():
    w = W.clone().requires_grad_()
    grad(cubes)(w).sum().backward()
    torch.testing.assert_close(w.grad, 6 * W)


def test_many_at_once():
    with torch.no_grad():
        found = torch.func.vmap(grad(cubes))(torch.stack([W, 2 * W]))
    torch.testing.assert_close(found, torch.stack([3 * W**2, 12 * W**2]))


def test_what_comes_with_the_value_is_detached():
    with torch.no_grad():
        found, (doubled, name) = grad(lambda w: (cubes(w), (2 * w, "w")), has_aux=True)(W)
    torch.testing.assert_close(found, 3 * W**2)
    assert torch.equal(doubled, 2 * W)
    assert not doubled.requires_grad
    assert name == "w"


def test_a_function_that_ignores_its_argument():
    used = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(grad(lambda w: (used * 2).sum())(W), torch.zeros_like(W))
        assert torch.equal(grad(lambda w: W.sum())(W), torch.zeros_like(W))


def test_named_tensors_inside_another_gradient():
    def outer(v: Tensor) -> Tensor:
        inner = grad(lambda named: (named["a"] ** 2 * v.detach()).sum())({"a": torch.ones_like(v)})
        return (v * inner["a"]).sum()

    with torch.no_grad():
        torch.testing.assert_close(grad(outer)(W), 2 * W)


def test_named_tensors_without_a_transform():
    with torch.no_grad():
        found = grad(lambda named: (named["a"] ** 2).sum() + named["b"].sum())({"a": W, "b": W})
    assert torch.equal(found["a"], 2 * W)
    assert torch.equal(found["b"], torch.ones_like(W))
