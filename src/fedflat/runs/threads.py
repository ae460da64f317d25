"""How many threads of the CPU train a run.

torch's default is one thread per core. A small step is then split into parts that take less time than the threads need
to meet again, and where other programs use the cores as well, every meeting waits for the scheduler. So a run uses

    threads = max(1, min(cores, ⌊multiplications of a forward pass / WORK_PER_THREAD⌋))

where the pass is that of one batch (benchmarks/threads.py measures what this rule costs and gains). Sums are split
among threads, so the last bits of a result depend on their number. The rule has no clock in it: the same run on the
same machine has the same number, however busy the machine is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedflat.core.task import Batch, Task
from fedflat.runs.build import BuiltRun
from fedflat.runs.experiment import Experiment

WORK_PER_THREAD = 25_000_000  # multiplications of a forward pass that are worth one thread
_TERMS: dict[str, Callable[..., int]] = {  # the numbers that are multiplied for one number of the output
    "mm": lambda a, b: a.shape[-1],
    "bmm": lambda a, b: a.shape[-1],
    "addmm": lambda c, a, b: a.shape[-1],
    "baddbmm": lambda c, a, b: a.shape[-1],
    "convolution": lambda x, weight, *_: weight[0].numel(),
}


class _MultiplicationCounter(TorchDispatchMode):
    """Counts the multiplications of matrix products and convolutions while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation and count it."""
        result = func(*args, **(kwargs or {}))
        if terms := _TERMS.get(func.overloadpacket.__name__):
            self.total += result.numel() * terms(*args)
        return result


def count_multiplications(task: Task, params: Tensor, batch: Batch) -> int:
    """Return the multiplications of one forward pass.

    Args:
        task: the model.
        params: its parameters, [P].
        batch: the samples.
    """
    with _MultiplicationCounter() as counter, torch.no_grad():
        task.loss(params, batch)
    return counter.total


def choose_threads(
    experiment: Experiment, built: BuiltRun, batch_size: int | None = None, ranks: int = 1, before: int | None = None
) -> int:
    """Return the number of threads for a run.

    It is that of the option `threads`; else that with which the run was begun, if it is continued; else that of
    OMP_NUM_THREADS; else, on a CPU, the rule above. Where many processes share a machine each has one thread.

    Args:
        experiment: the experiment.
        built: its data and models.
        batch_size: the samples of a batch; those of local training if None.
        ranks: the number of processes that train together.
        before: the number with which the run was begun, None if it is new.
    """
    if experiment.threads is not None:
        return experiment.threads
    if before is not None and ranks == 1:
        return before
    if "OMP_NUM_THREADS" in os.environ or built.client_data.y.device.type != "cpu":
        return torch.get_num_threads()
    return 1 if ranks > 1 else threads_by_size(built, batch_size or built.client_data.batch_size)


def threads_by_size(built: BuiltRun, batch_size: int) -> int:
    """Return the number of threads that the rule above gives.

    Args:
        built: the data and the model.
        batch_size: the samples of a batch.
    """
    samples = len(built.client_data.y)
    if not samples:
        return 1
    two = built.client_data.samples(torch.tensor([0, samples - 1]))
    work = count_multiplications(built.task, built.initial_params[0], two) * batch_size / 2
    return max(1, min(count_cores(), math.floor(work / WORK_PER_THREAD)))


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def restore_threads() -> Iterator[None]:
    """Give torch back its number of threads when the `with` block ends."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
