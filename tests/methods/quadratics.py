"""Three clients with quadratic losses ½ Σ a_k (w − b_k)², whose local steps have a closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Batch
from fedflat.data.batches import BatchPlan
from fedflat.engine.rounds import Trial, play_round
from fedflat.engine.sequential import Sequential

_rng = np.random.default_rng(0)
A, B, W0 = _rng.uniform(0.5, 2.0, (3, 4)), _rng.normal(size=(3, 4)), _rng.normal(size=4)
STEPS, SIZES, LR, N = (2, 3, 4), (1.0, 3.0, 2.0), 0.1, 3
COHORTS = ([0, 1], [1, 2], [2, 0], [0, 1])


class Quadratic:
    """A stand-in for Task that has gradients only."""

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        return batch.x[0] * (w - batch.x[1])


class QuadraticBatches:
    """Batches of a client: its curvature a_k and centre b_k, the same in every step."""

    def __init__(self, a: np.ndarray, b: np.ndarray, steps: Sequence[int]) -> None:
        self.x, self.steps = torch.from_numpy(np.stack([a, b], 1)), steps

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> list[int]:
        return [self.steps[client] for client in clients]

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> BatchPlan:
        (client,) = clients
        rows = torch.full((1, self.steps[client], 1), client)
        return BatchPlan(rows, torch.ones_like(rows, dtype=torch.bool), rows)

    def batch(self, plan: BatchPlan) -> Batch:
        return Batch(self.x[int(plan.rows[0])], plan.rows, plan.mask, plan.key)


def train(
    method: Method,
    cohorts: Sequence[Sequence[int]] = COHORTS,
    a: np.ndarray = A,
    b: np.ndarray = B,
    steps: Sequence[int] = STEPS,
    momentum: float = 0.0,
    trial: Trial | None = None,
) -> Trial:
    """Play one round per cohort, averaging by SIZES."""
    trial = trial or Trial(0, method, torch.from_numpy(W0))
    engine: Any = Sequential(method, Quadratic(), QuadraticBatches(a, b, steps))  # type: ignore[arg-type]
    for r, cohort in enumerate(cohorts):
        weights = torch.tensor([SIZES[k % 3] for k in cohort], dtype=torch.float64)
        sgd = Optimiser(torch.tensor(LR, dtype=torch.float64), momentum, 0.0)
        play_round(method, engine, [trial], r, [cohort], [weights], len(a), sgd)
    return trial
