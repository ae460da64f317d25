"""The Triton convolution kernels on small problems against F.conv2d in float64; needs TRITON_INTERPRET=1."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from fedflat.engine.kernels import launch
from fedflat.engine.kernels.tiles import Tiles


class Case(NamedTuple):
    """One convolution; small tiles make it need several blocks."""

    lanes: int
    batch: int
    channels: int
    outputs: int
    kernel: int
    padding: int
    bias: bool
    tiles: Tiles | None = None


SMALL = Tiles(32, 16, 16, 4, 2)
CASES = [
    Case(3, 2, 3, 5, 5, 2, True),
    Case(1, 1, 3, 8, 5, 0, False),
    Case(3, 1, 8, 16, 3, 0, True),
    Case(2, 3, 16, 20, 3, 1, True, SMALL),
    Case(1, 2, 32, 17, 3, 2, False, SMALL),
    Case(2, 2, 5, 16, 3, 0, False, SMALL),
    Case(2, 2, 24, 9, 3, 1, True, SMALL),
    Case(2, 2, 3, 6, 2, 3, True),
    Case(3, 2, 8, 6, 1, 0, True),
    Case(2, 2, 32, 17, 1, 0, True),
]

ROTATED = [
    Case(2, 2, 5, 32, 3, 1, False, SMALL),
    Case(2, 1, 24, 32, 2, 0, False, SMALL),
    Case(1, 2, 8, 64, 1, 0, False),
]


def reference(x: Tensor, w: Tensor, b: Tensor | None, g: Tensor | None, padding: int) -> tuple[Tensor, ...]:
    """Return y and the gradients of Σ g · y with respect to x and w, in float64."""
    x, w = (t.detach().double().requires_grad_() for t in (x, w))
    biases = [None] * len(x) if b is None else b.double()
    y = torch.stack([F.conv2d(*lane, padding=padding) for lane in zip(x, w, biases, strict=True)])
    return y.detach(), *(torch.autograd.grad(y, (x, w), g.double()) if g is not None else ())


def filters(case: Case) -> Tensor:
    """Return the filters of all lanes as in training: slices of the rows of one matrix."""
    shape = (case.outputs, case.channels, case.kernel, case.kernel)
    return torch.randn(case.lanes, math.prod(shape) + 7)[:, 7:].unflatten(1, shape)


def check_conv(case: Case) -> None:
    """Check conv, input_grad and weight_grad of one case, with images of two memory layouts."""
    size, k, p = (7, 6), case.kernel, [case.padding, case.padding]
    x = torch.randn(case.lanes, case.batch, *size, case.channels).permute(0, 1, 4, 2, 3)
    w = filters(case)
    b = torch.randn(case.lanes, case.outputs) if case.bias else None
    y = launch.launch_conv(x.contiguous(), w, b, p, case.tiles)
    g = torch.randn(y.shape)
    got = (y, launch.launch_input_grad(g, w, p, case.tiles), launch.launch_weight_grad(g, x, (k, k), p, case.tiles))
    for name, a, r in zip(("conv", "input_grad", "weight_grad"), got, reference(x, w, b, g, case.padding), strict=True):
        error = float((a - r).norm() / r.norm())
        assert error < 1e-6, f"{name} {case}: relative error {error}"  # NaN fails too


def check_rotated(case: Case) -> None:
    """Check input_grad in 16 bits, where the kernel rotates the filters; small integers give exact sums."""
    k, p = case.kernel, case.padding
    w = torch.randint(-2, 3, (case.lanes, case.outputs, case.channels, k, k)).half()
    g = torch.randint(-2, 3, (case.lanes, case.batch, case.outputs, 7 + 2 * p - k + 1, 6 + 2 * p - k + 1)).half()
    x = torch.zeros(case.lanes, case.batch, case.channels, 7, 6)
    got = launch.launch_input_grad(g, w, [p, p], case.tiles)
    assert torch.equal(got.double(), reference(x, w, None, g, p)[1]), case


def check_pooled(case: Case) -> None:
    """Check conv_pool, spread and pool_weight_grad; images of 7 x 6 pixels are odd before or after filtering."""
    k, p = case.kernel, [case.padding, case.padding]
    x = torch.randn(case.lanes, case.batch, case.channels, 7, 6)
    w = filters(case)
    b = torch.randn(case.lanes, case.outputs) if case.bias else None
    y, corner = launch.launch_conv_pool(x, w, b, p, case.tiles)
    z = reference(x, w, b, None, case.padding)[0]
    best, index = F.max_pool2d(z.flatten(0, 1), 2, return_indices=True)
    expected = index // z.shape[4] % 2 * 2 + index % z.shape[4] % 2
    assert torch.allclose(y.flatten(0, 1).double(), best.relu(), rtol=1e-5, atol=1e-5), case
    assert torch.equal(corner.flatten(0, 1), expected.to(torch.uint8)), case
    g = torch.randn(y.shape)
    spread = F.max_unpool2d(g.flatten(0, 1), index, 2, output_size=z.shape[3:])
    assert torch.equal(launch.launch_spread(g.flatten(0, 1), corner.flatten(0, 1), z.shape[3:]), spread), case
    got = launch.launch_pool_weight_grad(g, corner, x, (k, k), p, case.tiles)  # used if channels are few
    gradient = reference(x, w, b, spread.unflatten(0, g.shape[:2]), case.padding)[2]
    assert float((got - gradient).norm() / gradient.norm()) < 1e-6, case


def check_bf16_factors() -> None:
    """The weight gradient of the factors is nearly exact; without the low halves its error would be 2e-3."""
    x, g = torch.randn(2, 3, 12, 7, 6), torch.randn(2, 3, 16, 7, 6)
    got, exact = (
        torch.stack([conv2d_weight(lane, (16, 12, 3, 3), a, padding=1) for a, lane in zip(*pair, strict=True)])
        for pair in ([t.double() for t in launch._bf16_factors(g, x)], [g.double(), x.double()])
    )
    assert float((got - exact).norm() / exact.norm()) < 3e-5


def check_ties_and_nan() -> None:
    """The first corner of equal values is taken; NaN counts as the largest value."""
    x = torch.zeros(1, 1, 1, 4, 4)
    x[..., 2, 3] = torch.nan
    x[..., 1, 2] = 1
    y, corner = launch.launch_conv_pool(x, torch.ones(1, 1, 1, 1, 1), None, [0, 0])
    assert torch.equal(y.flatten().isnan(), torch.tensor([False, False, False, True]))
    assert corner.flatten().tolist()[:3] == [0, 2, 0]


def check_shared() -> None:
    """Lanes may share filters, or corners but not gradients."""
    x, w = torch.randn(2, 2, 8, 5, 6), torch.randn(4, 8, 1, 1)
    expected = torch.stack([F.conv2d(lane, w) for lane in x])
    assert torch.allclose(launch.launch_conv(x, w.expand(2, -1, -1, -1, -1), None, [0, 0]), expected, atol=1e-5)
    images, g = torch.randn(1, 2, 3, 6, 6).expand(2, -1, -1, -1, -1), torch.randn(2, 2, 8, 3, 3)
    corner = torch.randint(0, 4, (1, 2, 8, 3, 3), dtype=torch.uint8).expand(2, -1, -1, -1, -1)
    got = launch.launch_pool_weight_grad(g, corner, images, (1, 1), [0, 0])
    spread = launch.launch_spread(g.flatten(0, 1), corner.flatten(0, 1), (6, 6)).unflatten(0, (2, 2))
    assert torch.allclose(got, torch.einsum("lsohw,lschw->loc", spread, images)[..., None, None], atol=1e-4)


if __name__ == "__main__":
    torch.manual_seed(0)
    for case in CASES:
        check_conv(case)
        check_pooled(case)
    for case in ROTATED:
        check_rotated(case)
    check_bf16_factors()
    check_ties_and_nan()
    check_shared()
