"""Replay a golden run through an engine, with its data, batches and cohorts, and compare the numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedflat.core.method import Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.state import pack_state
from fedflat.core.task import Batch, Task
from fedflat.data.batches import BatchPlan
from fedflat.engine import ENGINES
from fedflat.engine.rounds import CohortJob, Engine, TrainedCohort, Trial, play_round
from fedflat.methods.wrappers import training_params

CASES = Path(__file__).parent / "cases"
ALIASES = {"lam": ("lambda",), "ghat": ("g_hat", "g"), "momentum": ("m",), "evaluated": ("mean2",)}


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
    """The batches recorded in the file, by round and client."""

    def __init__(self, case: Any, dtype: torch.dtype) -> None:
        self.case, self.x, self.y = case, torch.tensor(case["x"], dtype=dtype), torch.tensor(case["y"])

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> BatchPlan:
        end = "_2" if exchange and "batch_index_2" in self.case else ""
        positions = [list(self.case["participants"][round]).index(client) for client in clients]
        index, mask = (torch.tensor(self.case[f"batch_{name}{end}"][round][positions]) for name in ("index", "mask"))
        return BatchPlan(index, mask.bool(), index)

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> list[int]:
        return self.plan(seeds, round, clients, exchange).mask.any(-1).sum(-1).tolist()

    def batch(self, plan: BatchPlan) -> Batch:
        return Batch(self.x[plan.rows], self.y[plan.rows], plan.mask, plan.key)


def load(case: str | Path) -> Any:
    """A case by name or path."""
    path = Path(case)
    return np.load(path if path.suffix else CASES / f"{case}.npz", allow_pickle=False)


class Recorder:
    """An engine that records the message and the trained models of each exchange."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.messages, self.ends = engine, list[Any](), list[Tensor]()

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        trained = self.engine.train(jobs)
        self.messages.append(jobs[0].message)
        self.ends.append(trained[0].ends)
        return trained


def replay(case: str | Path, method: Method, engine: str = "sequential", dtype: torch.dtype = torch.float64) -> float:
    """The largest difference of server parameters, messages, local ends and states from the recorded ones."""
    return max(gaps(case, method, engine, dtype).values())


def gaps(case: str | Path, method: Method, engine: str, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """The largest difference over rounds of every recorded array that the method has a counterpart of."""
    data = load(case)
    meta, clients = json.loads(str(data["meta"])), len(data["sizes"])
    runner = ENGINES[engine](method, Task(Net()), Recorded(data, dtype))
    trial = Trial(0, method, torch.tensor(data["init.params"], dtype=dtype))
    worst: dict[str, float] = {}
    for r in range(meta["rounds"]):
        sgd = Optimiser(torch.tensor(data["lr"][r], dtype=dtype), *_optimiser(meta))
        cohort = [int(client) for client in data["participants"][r]]
        weights = torch.tensor(data["agg_weight"][r], dtype=dtype)
        recorder = Recorder(runner)
        play_round(method, recorder, [trial], r, [cohort], [weights], clients, sgd)
        ours = _recorded(trial, recorder, clients)
        found = {n: _gap(values, data[n][r], n) for n, values in ours.items() if _comparable(values, data, n, r)}
        worst = {name: max(gap, worst.get(name, 0.0)) for name, gap in found.items()}
    return worst


def _optimiser(meta: Any) -> tuple[float, float]:
    return meta["optimizer"]["momentum"], meta["optimizer"]["weight_decay"]


def _recorded(trial: Trial, recorder: Recorder, clients: int) -> dict[str, list[Tensor]]:
    """Return the round's states and messages by the files' names; with two exchanges a file may hold either message.

    `server.params` of a file may be the model that is evaluated, or the one from which training continues.
    """
    messages = [_named("broadcast", message) for message in recorder.messages]
    server = _named("server", trial.server)
    if hasattr(trial.server, "perturbed"):  # FedGF stores the difference from params
        server["server.perturbed"] = trial.server.perturbed
    states = server | _named("client", trial.clients.gather(range(clients))) | {"local.params": recorder.ends[-1]}
    first = {"exchange0.local.params": recorder.ends[0]} if len(recorder.ends) > 1 else {}
    once = {name: [value] for name, value in (states | first).items()}
    once["server.params"] = [trial.server.params, training_params(trial.server)]
    return once | {name: [message[name] for message in messages] for name in messages[0]}


def _named(owner: str, state: Any) -> dict[str, Tensor]:
    """A state's tensors by their own names and by those the files may use."""
    own = {name.split(".")[-1]: tensor for name, tensor in pack_state(state).items()}
    return {f"{owner}.{known}": tensor for name, tensor in own.items() for known in (name, *ALIASES.get(name, ()))}


def _comparable(values: list[Tensor], data: Any, name: str, r: int) -> bool:
    return name in data and data[name][r].shape == tuple(values[0].shape)


def _gap(values: list[Tensor], recorded: Any, name: str) -> float:
    """The largest difference, from the nearest of several values."""
    known = torch.tensor(recorded, dtype=torch.float64)
    if name == "server.flags":  # the file puts rounds not yet played last
        values, known = [value.sort().values for value in values], known.sort().values
    return min(float((value.double() - known).abs().max()) for value in values)
