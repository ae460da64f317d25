"""A client on its node: its data, its state between rounds, and local training on request of the server.

A turn is one exchange of one round, numbered through the whole run. With every request the server says which reply of
the client it accepted last, by turn. The client continues from the state that it had after that reply. So server and
client stay in agreement if a reply is lost or refused, if the server repeats a round after a crash, and if a node
restarts (when it has a folder for its states).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import Tensor

from fedflat.core.local_training import initial_client_state, local_update
from fedflat.core.state import pack_state, stack_states, tree_map, unpack_state
from fedflat.engine.sequential import client_batches
from fedflat.flower.messages import (
    INFO_KEY,
    REQUEST_KEY,
    ClientInfo,
    ReportedError,
    TrainRequest,
    record_to_state,
    record_to_tensors,
    state_to_record,
    tensors_to_record,
)
from fedflat.flower.node_data import NodeConfig, check_state_folder, client_samples, state_folder
from fedflat.flower.secure_aggregation import content_from_fitins, content_to_fitres
from fedflat.methods.running_averages import add_statistics, is_remembered
from fedflat.runs.build import BuiltRun, build_attack, build_run
from fedflat.runs.checkpoint import load_tensors, save_tensors
from fedflat.runs.experiment import Experiment
from fedflat.runs.threads import choose_threads

NamedTensors = dict[str, Tensor]


class ClientState:
    """The latest states of a client, in the node's context and, if the node has a folder for states, in a file.

    The file wins: another node may have trained this client meanwhile and stored newer states in a shared folder.
    A server that crashes goes back by one round. So the state before each exchange of the latest round is kept, and the
    state after it.

    Args:
        context: the node's records, which Flower keeps while the node runs.
        folder: where the file is, None for no file.
        run: name of the run.
        client: number of the client.
        exchanges: exchanges per round.
    """

    def __init__(self, context: RecordDict, folder: Path | None, run: str, client: int, exchanges: int) -> None:
        self.context, self.prefix, self.exchanges = context, f"{run}.", exchanges
        self.path = folder / f"client-{client}-{run}.safetensors" if folder else None
        in_context = {
            int(name.removeprefix(self.prefix)): record_to_tensors(context.array_records[name])
            for name in self._record_names()
        }
        self.states = in_context | self._read_file()  # turn → the state after it

    def load(self, accepted: int, initial: NamedTensors) -> tuple[NamedTensors, bool]:
        """Return the state to train from, and whether the state after turn `accepted` is missing.

        Args:
            accepted: turn of the last reply that the server accepted, -1 for none.
            initial: the state of a client that never took part; empty if the method's clients keep nothing.
        """
        if accepted < 0 or not initial:
            return initial, False
        state = self.states.get(accepted)
        return (initial, True) if state is None else (state, False)

    def store(self, accepted: int, before: NamedTensors, turn: int, after: NamedTensors) -> None:
        """Store the states before and after a turn; drop those whose replies the server did not accept.

        Args:
            accepted: turn of the last reply that the server accepted.
            before: the state that training began with.
            turn: the turn of this training.
            after: the state that training left.
        """
        states = {t: state for t, state in self.states.items() if t < accepted} | {accepted: before, turn: after}
        self.states = {t: states[t] for t in sorted(states)[-self.exchanges - 1 :]}
        for name in self._record_names():
            del self.context[name]
        for t, state in self.states.items():
            self.context[f"{self.prefix}{t}"] = tensors_to_record(state)
        self._write_file()

    def _record_names(self) -> list[str]:
        return [name for name in self.context.array_records if name.startswith(self.prefix)]

    def _read_file(self) -> dict[int, NamedTensors]:
        """Return the states in the file, {} if it is missing or damaged."""
        states: dict[int, NamedTensors] = {}
        for key, tensor in ((load_tensors(self.path) if self.path else None) or {}).items():
            turn, _, name = key.partition("/")
            states.setdefault(int(turn), {})[name] = tensor
        return states

    def _write_file(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tensors = {f"{turn}/{name}": t for turn, state in self.states.items() for name, t in state.items()}
            save_tensors(self.path, tensors)


class ClientNode(NamedTuple):
    """The client of a node, and what it trains with."""

    client: int
    experiment: Experiment
    built: BuiltRun

    @property
    def initial_model(self) -> Tensor:
        """Return the parameters [P] that training began with."""
        return self.built.initial_params[0]

    @property
    def examples(self) -> int:
        """Return the number of the client's samples."""
        return len(self.built.client_rows[self.client])


def prepare_node(experiment: Experiment, node_config: NodeConfig, request: TrainRequest) -> ClientNode:
    """Return the client of a node with its data; raise ReportedError if the node's configuration cannot be used.

    Args:
        experiment: what the federation trains.
        node_config: the client's number (partition-id) and, optionally, where its own data are (data). Without them the
            client has its part of the experiment's partition.
        request: what all clients must agree on.
    """
    client = node_config.get("partition-id")
    if not isinstance(client, int) or not 0 <= client < request.population:
        problem = f"must be a client number below {request.population}"
        raise ReportedError(None, f"node-config partition-id={client}", problem)
    dataset = client_samples(experiment, node_config, request, client)
    experiment = _as_requested(experiment, request)
    parts = [np.empty(0, np.int64)] * request.population
    parts[client] = np.arange(len(dataset.y))
    return ClientNode(client, experiment, build_run(experiment, dataset, parts))


def _as_requested(experiment: Experiment, request: TrainRequest) -> Experiment:
    """Return the experiment with the seed, steps and lr of a request, without files that only the server has."""
    experiment = dataclasses.replace(experiment, seeds=(request.seed,), availability="", client_settings="")
    if not request.steps:
        return experiment
    return dataclasses.replace(experiment, local_steps=request.steps, local_epochs=None, stragglers=0.0, lr=request.lr)


def answer_query(experiment: Experiment, message: Message, context: Context) -> Message:
    """Reply which client this node is and how many samples it has."""
    if folder := state_folder(context.node_config):
        check_state_folder(folder)
    request = TrainRequest.read(message.content[REQUEST_KEY])
    node = prepare_node(experiment, context.node_config, request)
    info = ClientInfo(client=node.client, examples=node.examples, turn=request.turn, key=request.key)
    return Message(RecordDict({INFO_KEY: info.record()}), reply_to=message)


def train_client(experiment: Experiment, message: Message, context: Context) -> Message:
    """Train in one exchange and reply; the client's new state is stored on the node."""
    return Message(client_reply(experiment, message.content, context), reply_to=message)


def train_client_masked(experiment: Experiment, message: Message, context: Context) -> Message:
    """Do the same as `train_client` under secure aggregation: Flower masks the reply before it leaves the node."""
    any_model = torch.zeros(1)  # the names of a message's tensors do not depend on the model
    method = add_statistics(experiment.method, experiment.norm_stats)
    names = pack_state(method.broadcast(method.init_server(any_model)))
    content = client_reply(experiment, content_from_fitins(message.content, names), context)
    return Message(content_to_fitres(content), reply_to=message)


def client_reply(experiment: Experiment, content: RecordDict, context: Context) -> RecordDict:
    """Train as the request in `content` asks, and return the method's reply and the ClientInfo as records."""
    request = TrainRequest.read(content[REQUEST_KEY])
    node = prepare_node(experiment, context.node_config, request)
    torch.set_num_threads(choose_threads(node.experiment, node.built))
    method = node.built.method
    optimiser = experiment.optimiser_at(request.round, node.initial_model)
    initial = initial_client_state(method, optimiser, node.initial_model)
    folder = state_folder(context.node_config)
    client_state = ClientState(context.state, folder, request.run, node.client, method.exchanges)
    remembers = is_remembered(initial)
    before, lost = (
        client_state.load(request.accepted, pack_state(initial)) if remembers else (pack_state(initial), False)
    )
    on_device = {name: tensor.to(node.initial_model.device) for name, tensor in before.items()}
    reply, after = train_locally(node, request, content["message"], unpack_state(initial, on_device))
    if remembers:
        client_state.store(request.accepted, before, request.turn, pack_state(after))
    asked = {"turn": request.turn, "key": request.key}
    info = ClientInfo(client=node.client, examples=node.examples, lost=int(lost), **asked)
    return RecordDict({"reply": state_to_record(reply), INFO_KEY: info.record()})


def train_locally(node: ClientNode, request: TrainRequest, message: ArrayRecord, state: Any) -> tuple[Any, Any]:
    """Return the client's reply to the method's message, and its next state.

    Args:
        node: the client and its data.
        request: which round and exchange.
        message: what the method broadcasts to clients.
        state: the client's state before training.
    """
    experiment, built = node.experiment, node.built
    method, data = built.method, built.client_data
    broadcast = record_to_state(message, method.broadcast(method.init_server(node.initial_model)))
    optimiser = experiment.optimiser_at(request.round, node.initial_model)
    batches = client_batches(data, request.seed, request.round, node.client, request.exchange)
    _, reply, after = local_update(method, built.task, optimiser, broadcast, state, batches)
    if attack := build_attack(experiment, request.population):
        place = (request.seed, request.round, request.exchange, [node.client])
        reply = tree_map(lambda t: t[0], attack.apply(stack_states([reply]), *place))
    return reply, after
