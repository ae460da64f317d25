# mypy: disable-error-code="import-not-found,import-untyped"
"""Runs Triton kernels in operators of torch, and compiles them ahead.

A step is traced with tensors without data. The operators then begin to compile their kernels, all at the same time,
while the step is traced and the rest of it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.library import custom_op

_compilers = ThreadPoolExecutor(thread_name_prefix="fedflat-kernels")
_compiled: dict[Any, Future[None]] = {}


def run_kernel(kernel: Any, grid: tuple[int, ...], *args: Any, **options: int) -> None:
    """Launch a kernel; of tensors without data only compile it, in a thread of its own.

    Args:
        kernel: a kernel of triton_kernels.py.
        grid: the number of its programs.
        args: what it is called with, a tensor first.
        options: `num_warps` and `num_stages`.
    """
    types = tuple(arg.dtype if isinstance(arg, Tensor) else arg for arg in args)
    key, device = (kernel, types, *options.values()), args[0].device
    if not isinstance(args[0], FakeTensor):
        wait([_compiled[key]] if key in _compiled else [])
        kernel[grid](*args, **options)
    elif key not in _compiled:
        _compiled[key] = _compilers.submit(_compile, kernel, grid, types, options, device)


def _compile(kernel: Any, grid: tuple[int, ...], types: tuple[Any, ...], options: Any, device: torch.device) -> None:
    with torch.cuda.device(device):
        kernel.warmup(*types, grid=grid, **options)


def tile_op(name: str, schema: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an operator of a function, which allocates its result and runs kernels.

    Args:
        name: the operator's name after `fedflat::`.
        schema: its arguments and results, as torch writes them.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        operator = custom_op(f"fedflat::{name}", function, mutates_args=(), schema=schema)
        operator.register_fake(function)
        return operator

    return decorate
