"""Kernels are compiled while a step is traced, and a later launch waits for that; needs Triton, but no GPU."""

from __future__ import annotations

import os
from concurrent.futures import wait
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fedflat.engine.kernels import launch, run


class AnyGPU:
    """What Triton asks a GPU's driver when it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def operators(x: Tensor, w: Tensor, b: Tensor) -> list[Any]:
    """Call every operator on images, filters and biases."""
    y = launch.launch_conv(x, w, b, [2, 2])
    pooled, corner = launch.launch_conv_pool(x, w, b, [2, 2])
    images = [y, pooled, corner, launch.launch_input_grad(y, w, [2, 2])]
    spread = launch.launch_spread(pooled.flatten(0, 1), corner.flatten(0, 1), x.shape[3:])
    return [*images, spread, launch.launch_weight_grad(y, x, [5, 5], [2, 2])]


def inputs() -> tuple[Tensor, ...]:
    """Return images, filters and biases of three lanes."""
    shapes = (3, 4, 32, 16, 16), (3, 64, 32, 5, 5), (3, 64)
    return tuple(torch.empty(shape, dtype=torch.bfloat16) for shape in shapes)


if __name__ == "__main__":
    driver.set_active(AnyGPU())
    torch.cuda.device = lambda device: nullcontext()  # type: ignore[assignment,misc]
    with FakeTensorMode():
        shapes = [tuple(t.shape) for t in operators(*inputs())]
        assert shapes[:2] == [(3, 4, 64, 16, 16), (3, 4, 64, 8, 8)], shapes
        assert shapes[3:] == [(3, 4, 32, 16, 16), (12, 64, 16, 16), (3, 64, 32, 5, 5)], shapes
        compiled = dict(run._compiled)
        operators(*inputs())
    names = sorted(key[0].__name__ for key in compiled)
    assert names == ["add_parts_kernel", *["conv_kernel"] * 3, "spread_kernel", "weight_grad_kernel"], names
    assert run._compiled == compiled  # not again
    assert [future.exception() for future in compiled.values()] == [None] * len(compiled)

    kernels = len([*Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")])
    with FakeTensorMode():  # as in evaluation: one lane, other images, and biases that are not rows of a wide matrix
        x, w, b = (t[:1] for t in inputs())
        launch.launch_conv(torch.cat([x] * 3, 1), w, torch.empty(1, 77)[:, :64].to(b.dtype), [2, 2])
    wait(run._compiled.values())
    assert len([*Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")]) == kernels

    waited: list[Any] = []
    run.wait = waited.extend  # type: ignore[assignment]
    with suppress(AttributeError, RuntimeError, ValueError):  # here is no GPU that could run it
        launch.launch_conv(*inputs(), [2, 2])
    assert waited == [next(iter(compiled.values()))], waited
