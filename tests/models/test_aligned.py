"""A vector cut into aligned parts: the same parts, the same gradients, and every matrix at a multiple of 16 bytes."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap

from fedflat.core.aligned import ENTRIES, find_alignment, split_aligned
from fedflat.core.batch import Batch
from fedflat.core.functional_model import FunctionalModel
from fedflat.core.task import Task
from fedflat.models import MODELS

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=4).map(torch.Size), min_size=1, max_size=6)


def parts_of(w, shapes, alignment):
    return split_aligned(w, alignment) if alignment else w.split([prod(shape) for shape in shapes])


@given(shapes=SHAPES)
@settings(max_examples=200, deadline=None)
def test_parts_are_those_of_split_and_matrices_are_aligned(shapes):
    w, alignment = torch.randn(sum(map(prod, shapes))), find_alignment(shapes)
    parts = parts_of(w, shapes, alignment)
    for part, expected, shape in zip(parts, parts_of(w, shapes, None), shapes, strict=True):
        torch.testing.assert_close(part, expected, rtol=0, atol=0)
        assert len(shape) not in (2, 3) or part.storage_offset() % ENTRIES == 0


def test_gradients_over_lanes_are_those_of_split():
    shapes = [torch.Size(s) for s in ((3,), (4, 5), (), (6, 2), (7,), (2, 3, 3, 3), (5, 5))]
    w = torch.randn(3, sum(map(prod, shapes)), dtype=torch.float64)

    def slopes(alignment):
        def loss(v):
            return sum(i * part.sin().square().sum() for i, part in enumerate(parts_of(v, shapes, alignment)))

        def length(v):
            return (grad(loss)(v) ** 3).sum()

        return vmap(grad(loss))(w), vmap(grad(length))(w)

    torch.testing.assert_close(slopes(find_alignment(shapes)), slopes(None), rtol=0, atol=0)


def test_only_models_with_odd_parameters_before_a_matrix_are_copied():
    odd = [
        name for name, make in MODELS.items() if find_alignment(FunctionalModel(make((3, 32, 32), 10)).shapes.values())
    ]
    assert odd == ["sl-vit"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_model_with_aligned_matrices_computes_the_same():
    task, generator = Task(MODELS["sl-vit"]((3, 32, 32), 10)), torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 3, 32, 32, generator=generator), torch.arange(4)
    batch = Batch(x.cuda(), y.cuda(), torch.ones(4, dtype=torch.bool).cuda(), None)
    w = 0.05 * torch.randn(task.size, generator=generator).cuda()
    torch.testing.assert_close(task.with_aligned_matrices().grad(w, batch), task.grad(w, batch), rtol=1e-4, atol=1e-5)
