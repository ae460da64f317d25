"""TF32 is off wherever losses are computed, since all that is measured are small differences of them."""

from __future__ import annotations

import pytest
import torch
from known_surfaces import Problem, perceptron

from fedflat.flatness import discrepancy
from fedflat.flatness.data import loss, loss_and_gradient, losses, score
from fedflat.flatness.discrepancy import sharpness
from fedflat.flatness.eigen import largest
from fedflat.flatness.hessian import Hessian
from fedflat.flatness.landscape import surface
from fedflat.flatness.lpf import low_pass
from fedflat.flatness.path import along, between
from fedflat.flatness.precision import full_precision

KNOWN = perceptron()
DIRECTIONS = torch.ones(2, len(KNOWN.w), dtype=torch.float64)
MEASURES = {
    "loss": lambda k: loss(k.task, k.w, k.data),
    "score": lambda k: score(k.task, k.w, k.data),
    "losses": lambda k: losses(k.task, k.w + DIRECTIONS, k.data),
    "gradient": lambda k: loss_and_gradient(k.task, k.w, k.data),
    "surface": lambda k: surface(k.task, k.w, DIRECTIONS, 1.0, 3, k.data),
    "path": lambda k: along(k.task, k.w, DIRECTIONS[0], 1.0, 3, k.data),
    "barrier": lambda k: between(k.task, k.w, k.w + DIRECTIONS[0], 2, k.data),
    "low pass": lambda k: low_pass(k.task, k.w, k.data, draws=4),
    "sharpness": lambda k: sharpness(k.task, k.w, k.data, 0.1, 2),
    "discrepancy": lambda k: discrepancy(k.task, k.w, k.w[None], [k.data], [1]),
    "eigenvalues": lambda k: largest(Hessian(k.task, k.w, k.data), 1),
}


@pytest.fixture
def allowed():
    """TF32 as a run may leave it."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    cuda.allow_tf32 = cudnn.allow_tf32 = True
    yield lambda: (cuda.allow_tf32, cudnn.allow_tf32)
    cuda.allow_tf32, cudnn.allow_tf32 = before


def test_full_precision_turns_tf32_off_and_on_again(allowed):
    with full_precision():
        assert allowed() == (False, False)
    assert allowed() == (True, True)


@pytest.mark.parametrize("what", MEASURES)
def test_nothing_is_measured_in_tf32(what, allowed, monkeypatch):
    known, seen = KNOWN, []
    inner = known.task.logits
    monkeypatch.setattr(known.task, "logits", lambda w, batch: seen.append(allowed()) or inner(w, batch))
    MEASURES[what](Problem(*known))
    assert set(seen) == {(False, False)}
    assert allowed() == (True, True)
