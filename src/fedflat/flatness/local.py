"""Local against global curvature: clients' models on their own data and on everyone's (FedGloSS, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fedflat.core.task import Task
from fedflat.flatness.data import Data
from fedflat.flatness.eigen import largest
from fedflat.flatness.hessian import Hessian


class LocalGlobal(NamedTuple):
    """λ1 of one client's model on its own data (λ_{1,l}) and on all data (λ_{1,g})."""

    own: float
    all: float


def local_and_global(
    task: Task, ends: Tensor, own: Sequence[Data], everything: Data, seed: int = 0
) -> list[LocalGlobal]:
    """λ1 of every client's model, by Lanczos, on both objectives."""
    return [
        LocalGlobal(*(float(largest(Hessian(task, end, part), 1, seed=seed).values[0]) for part in (data, everything)))
        for end, data in zip(ends, own, strict=True)
    ]
