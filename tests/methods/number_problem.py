"""A regression for every engine: the network of tiny_problem predicts three numbers for each sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tiny_problem as tiny
import torch

from fedflat.core.method import Method
from fedflat.core.tasks import Regression
from fedflat.data.batches import ClientBatches
from fedflat.engine.rounds import Trial


def client_data() -> ClientBatches:
    """The clients of `tiny_problem` with targets [n, 3] that are numbers."""
    data = tiny.client_data().dataset
    mixing = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 3)))
    y = torch.sin(data.x @ mixing)
    parts = np.split(np.arange(len(y)), np.cumsum(tiny.RAGGED)[:-1])
    return ClientBatches(replace(data, y=y, y_test=y), parts, 4, 2, dtype=torch.float64)


def train(method: Method, engine: str, **setting: Any) -> list[Trial]:
    """Play two rounds as `tiny_problem.train` does."""
    setting = {"rounds": range(2)} | setting
    return tiny.train(method, engine, source=client_data(), problem=Regression(tiny.Net()), **setting)
