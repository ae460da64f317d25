"""Replays a golden run through an engine: same data, batches and clients, so the numbers must come out the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedflat.data.feed import Plan
from fedflat.engine import ENGINES
from fedflat.engine.rounds import Trial, play
from fedflat.engine.state import pack
from fedflat.local import SGD
from fedflat.method import Method
from fedflat.task import Batch, Task

CASES = Path(__file__).parent / "cases"


class Net(nn.Module):
    """6 → 5 (tanh) → 3, with the parameter order of the files."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer1(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Recorded:
    """Batches as they are in the file, indexed by round and client."""

    def __init__(self, case: Any, dtype: torch.dtype) -> None:
        self.case, self.x, self.y = case, torch.tensor(case["x"], dtype=dtype), torch.tensor(case["y"])

    def plan(self, seed: int, round: int, clients: Sequence[int], exchange: int = 0) -> Plan:
        end = "_2" if exchange and "batch_index_2" in self.case else ""
        seats = [list(self.case["participants"][round]).index(client) for client in clients]
        index, mask = (torch.tensor(self.case[f"batch_{name}{end}"][round][seats]) for name in ("index", "mask"))
        return Plan(index, mask.bool(), index)

    def batch(self, plan: Plan) -> Batch:
        return Batch(self.x[plan.index], self.y[plan.index], plan.mask, plan.key)


def load(case: str | Path) -> Any:
    """A case by name or path."""
    path = Path(case)
    return np.load(path if path.suffix else CASES / f"{case}.npz", allow_pickle=False)


def replay(case: str | Path, method: Method, engine: str = "sequential", dtype: torch.dtype = torch.float64) -> float:
    """The largest difference of server parameters, broadcasts, local ends and states from the recorded ones."""
    data = load(case)
    task, meta = Task(Net()), json.loads(str(data["meta"]))
    runner = ENGINES[engine](method, task, Recorded(data, dtype))
    trial = Trial(0, method, torch.tensor(data["init.params"], dtype=dtype))
    worst = 0.0
    for r in range(meta["rounds"]):
        lr = torch.tensor(data["lr"][r], dtype=dtype)
        sgd = SGD(lr, meta["optimizer"]["momentum"], meta["optimizer"]["weight_decay"])
        cohort = [int(client) for client in data["participants"][r]]
        weights = torch.tensor(data["agg_weight"][r], dtype=dtype)
        start = method.broadcast(trial.server).params
        ends = play(method, runner, [trial], r, [cohort], [weights], len(data["sizes"]), sgd)[0].ends
        seen = {"server.params": trial.server.params, "local.params": ends, **_states(trial, len(data["sizes"]))}
        if method.exchanges == 1:
            seen["broadcast.params"] = start
        worst = max([worst, *(_gap(value, data, name, r) for name, value in seen.items())])
    return worst


def _states(trial: Trial, clients: int) -> dict[str, Tensor]:
    """Server and client states under the files' names."""
    server = {f"server.{name.split('.')[-1]}": value for name, value in pack(trial.server).items()}
    client = {f"client.{name}": value for name, value in pack(trial.clients.gather(range(clients))).items()}
    return {**server, **client}


def _gap(value: Tensor, data: Any, name: str, r: int) -> float:
    """The difference from the recorded array, 0 where the file has none of that name and shape."""
    if name not in data or data[name][r].shape != tuple(value.shape):
        return 0.0
    recorded = torch.tensor(data[name][r], dtype=torch.float64)
    if name == "server.flags":  # the file puts rounds not yet played last
        value, recorded = value.sort().values, recorded.sort().values
    return float((value.double() - recorded).abs().max())
