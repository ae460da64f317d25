"""A federation of four ragged clients in float64, small enough to compare methods to the last digit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Batch, Task
from fedflat.data.batches import ClientBatches
from fedflat.data.dataset import Augment, Dataset
from fedflat.engine import ENGINES
from fedflat.engine.rounds import Trial, play_round
from fedflat.models.cnn import mlp

SIZES = (11, 7, 3, 9)


def problem(seed: int = 0) -> tuple[Task, Tensor, ClientBatches]:
    """A network, its initial parameters and the clients' data."""
    torch.manual_seed(seed)
    model, n = mlp((5, 1, 1), 3).double(), sum(SIZES)
    data = Dataset("random", torch.randn(n, 5, 1, 1), torch.randint(3, (n,)), torch.zeros(1, 5), torch.zeros(1), 3)
    parts = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    task = Task(model)
    w = task.flatten(dict(model.named_parameters())).detach()
    return task, w, ClientBatches(data, parts, 4, 2, Augment(), dtype=torch.float64)


def some_batch(client_data: ClientBatches, client: int = 0) -> Batch:
    """Four samples of a client, the last one padding."""
    rows = torch.arange(4) + client
    mask = torch.tensor([True, True, True, False])
    return Batch(client_data.x[rows].double(), client_data.y[rows], mask, rows)


def train(method: Method, engine: str = "sequential", rounds: int = 4) -> Trial:
    """Play rounds of two clients each."""
    task, w, client_data = problem()
    runner, trial = ENGINES[engine](method, task, client_data), Trial(0, method, w)
    for r in range(rounds):
        sgd = Optimiser(torch.tensor(0.1 * 0.9**r, dtype=torch.float64), 0.9, 1e-3)
        cohort = [[0, 2], [1, 3], [2, 1], [3, 0]][r % 4]
        weights = torch.tensor([float(SIZES[client]) for client in cohort], dtype=torch.float64)
        play_round(method, runner, [trial], r, [cohort], [weights], len(SIZES), sgd)
    return trial
