"""A client on its node: its data, its state between rounds, and local training as the server's message asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from fedflat.core.local_training import SGD, local_update
from fedflat.core.state import pack_state, unpack_state
from fedflat.data.dataset import Dataset
from fedflat.data.load import load_dataset
from fedflat.engine.sequential import client_batches
from fedflat.errors import UserError
from fedflat.flower.classes import renumbered
from fedflat.flower.keep import Kept, check_folder, folder_of
from fedflat.flower.order import Facts, Order, kind
from fedflat.flower.secure import closed, opened
from fedflat.flower.wire import record, state
from fedflat.runs.build import RunParts, build_run
from fedflat.runs.experiment import Experiment


class Node(NamedTuple):
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


def prepare(experiment: Experiment, node: Mapping[str, Any], order: Order) -> Node:
    """The node whose configuration names its client number (partition-id) and, if it likes, data of its own (data)."""
    client = node.get("partition-id")
    if not isinstance(client, int) or not 0 <= client < order.population:
        raise UserError(f"--node-config partition-id={client}: must be a client number below {order.population}")
    experiment = dataclasses.replace(experiment, seeds=(order.seed,))
    if "data" not in node:
        return Node(client, experiment, build_run(experiment))
    dataset = _agreed(str(node["data"]), order)
    parts = [np.empty(0, np.int64)] * order.population
    parts[client] = np.arange(len(dataset.y))
    return Node(client, experiment, build_run(experiment, dataset, parts))


def _agreed(source: str, order: Order) -> Dataset:
    """The node's data, labelled and normalised as all others' are; refused where the model could not take them."""
    own = renumbered(load_dataset(source), source, order.names)
    if kind(own) != order.samples:
        raise UserError(f"--node-config data: samples are {kind(own)}, the federation's are {order.samples}")
    if int(own.y.max()) >= order.classes:
        raise UserError(f"--node-config data: label {int(own.y.max())} found, there are {order.classes} classes")
    return dataclasses.replace(own, classes=order.classes, mean=tuple(order.mean), std=tuple(order.std))


def greet(experiment: Experiment, message: Message, context: Context) -> Message:
    """Answer which client this is and how much it holds."""
    if folder := folder_of(context.node_config):
        check_folder(folder)
    node = prepare(experiment, context.node_config, Order.read(message.content["order"]))
    facts = Facts(client=node.client, examples=node.examples)
    return Message(RecordDict({"facts": facts.record()}), reply_to=message)


def train(experiment: Experiment, message: Message, context: Context) -> Message:
    """One client's part of one exchange: local training, the reply up, the state kept."""
    return Message(answer(experiment, message.content, context), reply_to=message)


def train_in_secret(experiment: Experiment, message: Message, context: Context) -> Message:
    """The same where the reply is masked before it leaves the node."""
    model = torch.zeros(1)  # names do not depend on it
    names = pack_state(experiment.method.broadcast(experiment.method.init_server(model)))
    return Message(closed(answer(experiment, opened(message.content, names), context)), reply_to=message)


def answer(experiment: Experiment, content: RecordDict, context: Context) -> RecordDict:
    """The reply to the server's content, and the client's facts."""
    order = Order.read(content["order"])
    node = prepare(experiment, context.node_config, order)
    method = experiment.method
    initial = method.init_client(node.start)
    kept = Kept(context.state, folder_of(context.node_config), order.run, node.client, method.exchanges)
    before, lost = kept.begin(order.accepted, pack_state(initial))
    here = {name: tensor.to(node.start.device) for name, tensor in before.items()}
    reply, after = exchange(node, order, content["message"], unpack_state(initial, here))
    if pack_state(initial):
        kept.store(order.accepted, before, order.turn, pack_state(after))
    facts = Facts(client=node.client, examples=node.examples, lost=int(lost))
    return RecordDict({"reply": record(reply), "facts": facts.record()})


def exchange(node: Node, order: Order, sent: Any, client: Any) -> tuple[Any, Any]:
    """The reply to what the server sent and the client's next state."""
    experiment, assembly = node.experiment, node.assembly
    method, feed = experiment.method, assembly.feed
    broadcast = state(sent, method.broadcast(method.init_server(node.start)))
    rate = torch.tensor(experiment.lr * experiment.lr_decay**order.round, dtype=feed.dtype, device=feed.y.device)
    sgd = SGD(rate, experiment.momentum, experiment.weight_decay)
    own = client_batches(feed, order.seed, order.round, node.client, order.exchange)
    _, reply, after = local_update(method, assembly.task, sgd, broadcast, client, own)
    return reply, after
