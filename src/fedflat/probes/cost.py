"""What a local step costs."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedflat.methods.fedavg import FedAvg
from fedflat.probes.sight import Sight, Value

TIMED = 10  # steps of each method, of which the median counts


def cost(sight: Sight) -> dict[str, Value]:
    """Work and time of one local step beside one of FedAvg's (FedSOL, Tables 5 and 13), measured once in a run.

    gradients = operations of the method's step / operations of ∇f at one point, counted in matrix products and
    convolutions: 1 for FedAvg, 2 for SAM
    seconds = median time of the step as the sequential engine takes it, latency = seconds / those of FedAvg

    Costs 12 steps of the method and 12 of FedAvg.
    """
    if not sight.first:
        return {}
    own, plain = _step(sight, False), _step(sight, True)
    work, seconds = [_operations(step) for step in (own, plain)], [_seconds(step) for step in (own, plain)]
    return {
        "gradients": work[0] / work[1] if work[1] else math.nan,
        "seconds": seconds[0],
        "latency": seconds[0] / seconds[1],
    }


def _step(sight: Sight, plain: bool) -> Callable[[], Tensor]:
    """A step on the first batch of the cohort's first client, at the end of its training: the method's or FedAvg's."""
    method, batch, state = FedAvg() if plain else sight.method, next(sight.batches(0)), sight.state(0)
    return lambda: method.step(sight.task, sight.ends[0], batch, sight.job.message, state)[0]


def _operations(step: Callable[[], Tensor]) -> int:
    """Multiplications and additions."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def _seconds(step: Callable[[], Tensor]) -> float:
    """Median time, after one step to warm up."""
    step()
    times = []
    for _ in range(TIMED):
        start = time.perf_counter()
        if step().is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
