"""TF32 is off wherever losses are computed, because flatness is measured by small differences of losses."""

from __future__ import annotations

import pytest
import torch
from known_surfaces import Problem, perceptron

from fedflat.flatness.hessian import Hessian, largest_eigenpairs
from fedflat.flatness.landscape import loss_along, loss_between, loss_surface
from fedflat.flatness.objective import full_precision, loss_and_accuracy, loss_and_gradient, losses_at, mean_loss
from fedflat.flatness.sharpness import flatness_discrepancy, low_pass_loss, worst_case_sharpness

KNOWN = perceptron()
DIRECTIONS = torch.ones(2, len(KNOWN.w), dtype=torch.float64)
MEASURES = {
    "loss": lambda k: mean_loss(k.task, k.w, k.data),
    "metrics": lambda k: loss_and_accuracy(k.task, k.w, k.data),
    "losses": lambda k: losses_at(k.task, k.w + DIRECTIONS, k.data),
    "gradient": lambda k: loss_and_gradient(k.task, k.w, k.data),
    "surface": lambda k: loss_surface(k.task, k.w, DIRECTIONS, 1.0, 3, k.data),
    "path": lambda k: loss_along(k.task, k.w, DIRECTIONS[0], 1.0, 3, k.data),
    "barrier": lambda k: loss_between(k.task, k.w, k.w + DIRECTIONS[0], 2, k.data),
    "low pass": lambda k: low_pass_loss(k.task, k.w, k.data, draws=4),
    "sharpness": lambda k: worst_case_sharpness(k.task, k.w, k.data, 0.1, 2),
    "discrepancy": lambda k: flatness_discrepancy(k.task, k.w, k.w[None], [k.data], [1]),
    "eigenvalues": lambda k: largest_eigenpairs(Hessian(k.task, k.w, k.data), 1),
}


@pytest.fixture
def allowed():
    """Switches TF32 on, as a run may do, and returns a function that reads the two switches."""
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
    inner = known.task.outputs
    monkeypatch.setattr(known.task, "outputs", lambda w, batch: seen.append(allowed()) or inner(w, batch))
    MEASURES[what](Problem(*known))
    assert set(seen) == {(False, False)}
    assert allowed() == (True, True)
