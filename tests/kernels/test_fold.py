"""Convolutions with stride as dense ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflat.engine.kernels.fold import fold_stride

SMALL = st.integers(1, 4)


@settings(deadline=None, max_examples=60)
@given(
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    kernel=st.tuples(SMALL, SMALL),
    stride=st.tuples(SMALL, SMALL),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_a_folded_convolution_and_its_gradients_equal_the_strided_one(size, kernel, stride, padding):
    torch.manual_seed(0)
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 3, *kernel, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(x, w, None, stride, padding)
    got = F.conv2d(*fold_stride(x, w, stride, padding))
    torch.testing.assert_close(got, expected)
    g = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(got, (x, w), g), torch.autograd.grad(expected, (x, w), g))


def test_a_filter_of_one_pixel_reads_no_other_pixels():
    images, filters = fold_stride(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 1, 1), (2, 2), (0, 0))
    assert images.shape == (2, 3, 4, 4)
    assert filters.shape == (4, 3, 1, 1)
