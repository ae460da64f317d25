"""Text for every engine: windows of six tokens, and a transformer of which LoRA trains a part."""

from __future__ import annotations

from typing import Any

import tiny_problem as tiny
import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.tasks import IGNORED, NextToken
from fedflat.data.batches import ClientBatches
from fedflat.data.dataset import Dataset
from fedflat.engine.rounds import Trial
from fedflat.models.lora import lora
from fedflat.models.text import transformer

TOKENS, LENGTH = 7, 6


def client_data() -> ClientBatches:
    """Four clients with 5, 3, 9 and 4 windows; in every third one the last two positions do not count."""
    count = sum(tiny.RAGGED)
    text = torch.randint(TOKENS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    x, y = text[:, :-1].contiguous(), text[:, 1:].clone()
    y[::3, -2:] = IGNORED
    parts = torch.arange(count).split(tiny.RAGGED)
    data = Dataset("tokens", x, y, x, y, classes=TOKENS)
    return ClientBatches(data, [rows.numpy() for rows in parts], 4, 1, dtype=torch.float64)


def task() -> NextToken:
    """LoRA of rank 2 on queries and values, and a head that is trained as a whole."""
    torch.manual_seed(0)
    return NextToken(lora(transformer(TOKENS, LENGTH, 8, 1, 2), rank=2, train=("head",)))


def train(method: Method, engine: str, momentum: float = 0.5, **setting: Any) -> list[Trial]:
    """Play three rounds as `tiny_problem.train` does."""
    problem, optimiser = task(), Optimiser(torch.tensor(0.1).double(), momentum, 1e-3)
    start: Tensor = problem.flatten(dict(problem.model.named_parameters())).detach().double()
    noise = torch.randn(len(start), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    trials = [Trial(seed, method, start + 0.1 * (seed + 1) * noise, optimiser=optimiser) for seed in (0, 1)]
    setting = {"rounds": range(3)} | setting
    return tiny.train(
        method, engine, source=client_data(), trials=trials, optimiser=optimiser, problem=problem, **setting
    )
