"""A client on its node: its data, its state between rounds, and local training as the server's message asks.

A turn is one exchange of one round. The server says which of a client's replies it took last; the client goes on from
the state that belongs to that reply. So a reply that was lost or refused, a round that is played again after a crash
of the server, and a node that restarts (with a folder for its states) all leave server and clients in agreement.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from fedflat.core.local_training import SGD, local_update
from fedflat.core.state import pack_state, unpack_state
from fedflat.data.dataset import Dataset
from fedflat.data.image_files import find_subfolder
from fedflat.data.load import load_dataset
from fedflat.engine.sequential import client_batches
from fedflat.errors import UserError
from fedflat.flower.messages import (
    ClientInfo,
    TrainRequest,
    record_of,
    record_to_state,
    record_to_tensors,
    sample_kind,
    tensors_to_record,
)
from fedflat.flower.secure_aggregation import close_reply, open_request
from fedflat.runs.build import RunParts, build_run
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import load_tensors, save_tensors


def class_names(source: object, classes: int) -> list[str]:
    """The federation's classes: the folders of the server's folder:PATH, the numbers of any other data set."""
    return _folders(source) or [str(label) for label in range(classes)]


def with_federation_labels(own: Dataset, source: str, names: list[str]) -> Dataset:
    """A node's data with the federation's labels where its classes are folders; other data carry their labels."""
    mine = _folders(source)
    if not mine:
        return own
    if unknown := [name for name in mine if name not in names]:
        raise UserError(f"--node-config data={source}: no class is called {unknown[0]}; they are {', '.join(names)}")
    labels = torch.tensor([names.index(name) for name in mine])
    return dataclasses.replace(own, y=labels[own.y], y_test=labels[own.y_test])


def _folders(source: object) -> list[str]:
    """The class folders of folder:PATH in the order of their labels; none for other data."""
    kind, _, path = source.partition(":") if isinstance(source, str) else ("", "", "")
    if kind != "folder":
        return []
    train = find_subfolder(Path(path).expanduser().resolve(), "train")
    return sorted(entry.name for entry in train.iterdir() if entry.is_dir() and not entry.name.startswith("."))


NamedTensors = dict[str, Tensor]


def state_folder(node: Mapping[str, Any]) -> Path | None:
    """The folder for states that a node's configuration names, if any."""
    return Path(str(node["state"])) if node.get("state") else None


def check_state_folder(folder: Path) -> None:
    """Make the folder and refuse one to which nothing can be written, before anyone trains in vain."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"--node-config state={folder}: must be a folder that can be written ({reason})") from None


class ClientState:
    """A client's states in the node's context and, where the node names a folder, in a file there.

    Another node may have stood for the client meanwhile and left newer states in a folder that they share.
    A server that dies goes back by one round, so what a round's turns began with is kept: `turns` states and one more.
    """

    def __init__(self, context: RecordDict, folder: Path | None, run: str, client: int, turns: int) -> None:
        self.context, self.prefix, self.turns = context, f"{run}.", turns
        self.path = folder / f"client-{client}-{run}.safetensors" if folder else None
        names = [name for name in context.array_records if name.startswith(self.prefix)]
        remembered = {
            int(name.removeprefix(self.prefix)): record_to_tensors(context.array_records[name]) for name in names
        }
        self.states = remembered | self._read()

    def begin(self, accepted: int, initial: NamedTensors) -> tuple[NamedTensors, bool]:
        """The state to train from, and whether the one that the server counts on is gone."""
        if accepted < 0 or not initial:
            return initial, False
        found = self.states.get(accepted)
        return (initial, True) if found is None else (found, False)

    def store(self, accepted: int, before: NamedTensors, turn: int, after: NamedTensors) -> None:
        """Keep what this turn left and what it began with; states that the server did not take are dropped."""
        states = {t: named for t, named in self.states.items() if t < accepted} | {accepted: before, turn: after}
        self.states = {t: states[t] for t in sorted(states)[-self.turns - 1 :]}
        for name in [name for name in self.context.array_records if name.startswith(self.prefix)]:
            del self.context[name]
        for t, named in self.states.items():
            self.context[f"{self.prefix}{t}"] = tensors_to_record(named)
        self._write()

    def _read(self) -> dict[int, NamedTensors]:
        """The states in the file, none where it is missing or damaged."""
        states: dict[int, NamedTensors] = {}
        for key, tensor in ((load_tensors(self.path) if self.path else None) or {}).items():
            turn, _, name = key.partition("/")
            states.setdefault(int(turn), {})[name] = tensor
        return states

    def _write(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            each = ((f"{turn}/{name}", t) for turn, named in self.states.items() for name, t in named.items())
            save_tensors(self.path, dict(each))


class ClientNode(NamedTuple):
    """The client that a node stands for, and what it trains with."""

    client: int
    experiment: Experiment
    assembly: RunParts

    @property
    def start(self) -> Tensor:
        """The model that training began with."""
        return self.assembly.starts[0]

    @property
    def examples(self) -> int:
        """Samples the client holds."""
        return len(self.assembly.parts[self.client])


def prepare_node(experiment: Experiment, node: Mapping[str, Any], order: TrainRequest) -> ClientNode:
    """The node whose configuration names its client number (partition-id) and, if it likes, data of its own (data)."""
    client = node.get("partition-id")
    if not isinstance(client, int) or not 0 <= client < order.population:
        raise UserError(f"--node-config partition-id={client}: must be a client number below {order.population}")
    experiment = dataclasses.replace(experiment, seeds=(order.seed,))
    if "data" not in node:
        return ClientNode(client, experiment, build_run(experiment))
    dataset = _agreed(str(node["data"]), order)
    parts = [np.empty(0, np.int64)] * order.population
    parts[client] = np.arange(len(dataset.y))
    return ClientNode(client, experiment, build_run(experiment, dataset, parts))


def _agreed(source: str, order: TrainRequest) -> Dataset:
    """The node's data, labelled and normalised as all others' are; refused where the model could not take them."""
    own = with_federation_labels(load_dataset(source), source, order.names)
    if sample_kind(own) != order.samples:
        raise UserError(f"--node-config data: samples are {sample_kind(own)}, the federation's are {order.samples}")
    if int(own.y.max()) >= order.classes:
        raise UserError(f"--node-config data: label {int(own.y.max())} found, there are {order.classes} classes")
    return dataclasses.replace(own, classes=order.classes, mean=tuple(order.mean), std=tuple(order.std))


def answer_hello(experiment: Experiment, message: Message, context: Context) -> Message:
    """Answer which client this is and how much it holds."""
    if folder := state_folder(context.node_config):
        check_state_folder(folder)
    node = prepare_node(experiment, context.node_config, TrainRequest.read(message.content["order"]))
    facts = ClientInfo(client=node.client, examples=node.examples)
    return Message(RecordDict({"facts": facts.record()}), reply_to=message)


def train_client(experiment: Experiment, message: Message, context: Context) -> Message:
    """One client's part of one exchange: local training, the reply up, the state kept."""
    return Message(client_reply(experiment, message.content, context), reply_to=message)


def train_client_masked(experiment: Experiment, message: Message, context: Context) -> Message:
    """The same where the reply is masked before it leaves the node."""
    model = torch.zeros(1)  # names do not depend on it
    names = pack_state(experiment.method.broadcast(experiment.method.init_server(model)))
    return Message(
        close_reply(client_reply(experiment, open_request(message.content, names), context)), reply_to=message
    )


def client_reply(experiment: Experiment, content: RecordDict, context: Context) -> RecordDict:
    """The reply to the server's content, and the client's facts."""
    order = TrainRequest.read(content["order"])
    node = prepare_node(experiment, context.node_config, order)
    method = experiment.method
    initial = method.init_client(node.start)
    kept = ClientState(context.state, state_folder(context.node_config), order.run, node.client, method.exchanges)
    before, lost = kept.begin(order.accepted, pack_state(initial))
    here = {name: tensor.to(node.start.device) for name, tensor in before.items()}
    reply, after = train_locally(node, order, content["message"], unpack_state(initial, here))
    if pack_state(initial):
        kept.store(order.accepted, before, order.turn, pack_state(after))
    facts = ClientInfo(client=node.client, examples=node.examples, lost=int(lost))
    return RecordDict({"reply": record_of(reply), "facts": facts.record()})


def train_locally(node: ClientNode, order: TrainRequest, sent: Any, client: Any) -> tuple[Any, Any]:
    """The reply to what the server sent and the client's next state."""
    experiment, assembly = node.experiment, node.assembly
    method, feed = experiment.method, assembly.feed
    broadcast = record_to_state(sent, method.broadcast(method.init_server(node.start)))
    rate = torch.tensor(experiment.lr * experiment.lr_decay**order.round, dtype=feed.dtype, device=feed.y.device)
    sgd = SGD(rate, experiment.momentum, experiment.weight_decay)
    own = client_batches(feed, order.seed, order.round, node.client, order.exchange)
    _, reply, after = local_update(method, assembly.task, sgd, broadcast, client, own)
    return reply, after
