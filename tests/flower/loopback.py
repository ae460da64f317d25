"""Flower without processes: a grid that passes each message to a client app at once and keeps the nodes' contexts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

import fedflat as ff
from fedflat.engine.participation import choose_cohort
from fedflat.engine.rounds import Trial, play_round
from fedflat.engine.sequential import Sequential
from fedflat.flower.app import client_app, server_app
from fedflat.flower.config import FederationOptions, to_run_config
from fedflat.flower.server import serve
from fedflat.runs.build import build_attack, build_run
from fedflat.runs.checkpoint import load_tensors

EXPERIMENT = ff.Experiment(
    clients=4, cohort=3, rounds=3, partition="dirichlet", alpha=0.5, model="mlp", local_epochs=1, batch_size=128
)
Change = Callable[[int, Message], Any]  # client, reply → the reply to send instead, or None for no reply


class Crash(Exception):
    """The server dies."""


class Loopback:
    """A grid whose nodes 100, 101, … are clients 0, 1, …; `change` may replace a client's reply or raise."""

    def __init__(self, experiment: ff.Experiment, change: Change | None = None, **node: Any) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.change = client_app(), change
        config = to_run_config(experiment, FederationOptions())
        self.contexts = {
            100 + k: Context(0, 100 + k, {"partition-id": k, **node}, RecordDict(), config)
            for k in range(experiment.clients)
        }
        self.activated = dict.fromkeys(self.contexts, "first")  # node → its activation time
        self.replies: dict[str, Message] = {}
        self.sent = 0

    def get_nodes(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(node_id=node, last_activated_at=time) for node, time in self.activated.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self.sent += 1
        message.metadata.__dict__["_message_id"] = f"m{self.sent}"
        reply = self._reply(message)
        if reply is not None:
            self.replies[f"m{self.sent}"] = reply
        return f"m{self.sent}"

    def _reply(self, message: Message) -> Message | None:
        message, node = copy.deepcopy(message), message.metadata.dst_node_id  # as if it had come over a wire
        context = self.contexts[node]
        before = RecordDict(dict(context.state))
        try:
            reply = self.app(message, context)
            if self.change and not reply.has_error() and message.metadata.message_type.startswith("train"):
                reply = self.change(context.node_config["partition-id"], reply)
        except Exception as error:
            context.state = before  # as in Flower, where a client that raises leaves its context as it was
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        return reply

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self.replies.pop(number) for number in numbers if number in self.replies]


def federate(grid: Loopback, experiment: ff.Experiment, out: Path, **options: Any) -> dict[str, Tensor]:
    """Train and return the server's state. A round does not wait for nodes, unless `min_nodes` is given."""
    serve(experiment, FederationOptions(out=str(out), **{"min_nodes": 1, **options}), grid)  # type: ignore[arg-type]
    return server_state(out)


def run_server_app(grid: Loopback, experiment: ff.Experiment, out: Path, **options: Any) -> None:
    """Train as Flower does, through the server's app; `options` are keys of the run configuration."""
    config = to_run_config(experiment, FederationOptions(out=str(out)))
    server_app()(grid, Context(0, 0, {}, RecordDict(), config | options))  # type: ignore[arg-type]


def server_state(out: Path) -> dict[str, Tensor]:
    named = load_tensors(out / "checkpoint" / "state.safetensors")
    assert named is not None
    return {name: tensor for name, tensor in named.items() if ".server." in name}


def simulate(experiment: ff.Experiment, missing: Mapping[int, set[int]] | None = None) -> dict[str, Tensor]:
    """Train with the sequential engine; in round r (from 0) the clients missing[r] do not reply."""
    experiment = dataclasses.replace(experiment, engine="sequential", device="cpu")
    built = build_run(experiment)
    (trial,) = built.trials(experiment)
    engine = Sequential(built.method, built.task, built.client_data)
    for r in range(experiment.rounds):
        asked = choose_cohort(trial.seed, r, experiment.clients, experiment.cohort)
        clients = [client for client in asked if client not in (missing or {}).get(r, set())]
        _round(experiment, built, engine, trial, r, clients)
    return {f"trial.{trial.seed}.{name}": t for name, t in trial.pack().items() if name.startswith("server.")}


def _round(experiment: ff.Experiment, built: Any, engine: Sequential, trial: Trial, r: int, clients: list[int]) -> None:
    sizes = [len(built.client_rows[client]) if experiment.weights == "examples" else 1 for client in clients]
    optimiser, weights = experiment.optimiser_at(r, trial.server.params), [torch.tensor(sizes).float()]
    replies = (experiment.aggregation(), build_attack(experiment, experiment.clients))
    place = (r, [clients], weights, experiment.clients)
    play_round(built.method, engine, [trial], *place, optimiser, *replies)


def assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tolerance: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=tolerance, msg=name)
