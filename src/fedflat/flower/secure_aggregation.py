"""Secure aggregation with Flower's SecAgg+: the server learns only the mean of the replies.

Every exchange takes four messages to each client instead of one: keys, shares of keys, the masked reply, and the shares
that remove the masks from the sum. Replies travel as integers: entries between ±CLIP_RANGE, in steps of
2 · CLIP_RANGE / QUANTIZATION_LEVELS = CLIP_RANGE / 2²⁹.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Stage
from flwr.common.secure_aggregation.secaggplus_constants import Key as Protocol
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from fedflat.flower.messages import INFO_KEY, REQUEST_KEY, ClientInfo, ReportedError, TrainRequest, decode_npy
from fedflat.flower.nodes import polling_pauses

CLIP_RANGE = 128.0
QUANTIZATION_LEVELS, MODULUS = 2**30, 2**48  # Flower rounds to 32 bits and sums in 64
QUANTIZATION_STEP = 2 * CLIP_RANGE / QUANTIZATION_LEVELS  # between two values that can be sent
RECONSTRUCTION_SHARE = 0.51  # share of the clients that must stay to the end of an exchange


class PollingGrid:
    """The one function of a grid that SecAgg+ uses: without Flower's pauses of 3 s, and without invalid masked replies.

    Args:
        grid: Flower's grid, which sends the messages.
        strategy: validates the masked replies.
    """

    def __init__(self, grid: Grid, strategy: MeanOnlyStrategy) -> None:
        self.grid, self.strategy = grid, strategy

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        """Send messages and return the replies, including errors, that arrive within `timeout` seconds."""
        sent = list(messages)
        waiting, end, pauses = set(self.grid.push_messages(sent)), time.monotonic() + timeout, polling_pauses()
        replies = list(self.grid.pull_messages(list(waiting)))
        while (waiting := waiting - {r.metadata.reply_to_message_id for r in replies}) and time.monotonic() < end:
            time.sleep(next(pauses))
            replies += self.grid.pull_messages(list(waiting))
        masked = sent[0].content[RECORD_KEY_CONFIGS][Protocol.STAGE] == Stage.COLLECT_MASKED_VECTORS
        return [reply for reply in replies if not masked or reply.has_error() or self.strategy.accepts(reply)]


class MeanOnlyStrategy:
    """What SecAgg+ needs of a Flower strategy: it gives the messages to send and receives the mean.

    After the protocol `mean` holds the arrays of the mean (none if too few nodes finished), `infos` the ClientInfo of
    each node whose reply is in it, and `failures` the reason for each other node.

    Args:
        message: what the method broadcasts to clients.
        requests: the request to each node.
        declared: the client of each node, and the number of examples that it declared.
        shapes: shapes of the reply's arrays, by name.
    """

    def __init__(
        self,
        message: ArrayRecord,
        requests: Mapping[int, TrainRequest],
        declared: Mapping[int, tuple[int, int]],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.message, self.requests, self.declared = message, requests, declared
        self.shapes = {"its weight": (1,)} | {name: shape or (1,) for name, shape in shapes.items()}
        self.mean: list[np.ndarray] = []
        self.infos: dict[int, ClientInfo] = {}
        self.failures: dict[int, str] = dict.fromkeys(requests, "it did not finish secure aggregation")

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        """Return the method's message with the request to each node."""
        parameters = Parameters([array.data for array in self.message.values()], "numpy.ndarray")
        configs = {node: {REQUEST_KEY: json.dumps(asdict(request))} for node, request in self.requests.items()}
        return [(SimpleNamespace(node_id=node), FitIns(parameters, config)) for node, config in configs.items()]

    def accepts(self, reply: Message) -> bool:
        """Return whether a masked reply has the right form. If not, SecAgg+ treats its client as one that left."""
        try:
            info = ClientInfo.read(reply.content["fitres.metrics"])
            info.check_answers(self.requests[reply.metadata.src_node_id])
            info.check_claims(*self.declared[reply.metadata.src_node_id])
            masked: Any = reply.content[RECORD_KEY_CONFIGS][Protocol.MASKED_PARAMETERS]
            for (name, shape), data in zip(self.shapes.items(), masked, strict=True):
                decode_npy(name, data, "int64", shape)
        except (KeyError, TypeError, ValueError) as error:
            self.failures[reply.metadata.src_node_id] = f"its reply is refused: {error}"
            return False
        return True

    def aggregate_fit(self, round: int, results: list[Any], failures: Any) -> tuple[None, dict[str, Any]]:
        """Store the mean, which SecAgg+ writes into every result, and each node's ClientInfo."""
        self.mean = parameters_to_ndarrays(results[0][1].parameters)
        self.infos = {node.node_id: ClientInfo.read(result.metrics) for node, result in results}
        self.failures = {node: reason for node, reason in self.failures.items() if node not in self.infos}
        return None, {}


def secure_mean(
    grid: Grid,
    message: ArrayRecord,
    requests: Mapping[int, TrainRequest],
    declared: Mapping[int, tuple[int, int]],
    shapes: Mapping[str, tuple[int, ...]],
    round: int,
    timeout: float,
) -> MeanOnlyStrategy:
    """Run SecAgg+ with the nodes of `requests` and return the strategy, which holds the mean and the failures.

    Args:
        grid: Flower's grid.
        message: what the method broadcasts to clients.
        requests: the request to each node.
        declared: the client of each node, and the number of examples that it declared.
        shapes: shapes of the reply's arrays, by name.
        round: number of the round, counted from 1.
        timeout: seconds for each of the protocol's four messages.
    """
    strategy = MeanOnlyStrategy(message, requests, declared, shapes)
    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: round})})
    state[MAIN_PARAMS_RECORD] = ArrayRecord()
    context = LegacyContext(Context(0, 0, {}, state, {}), strategy=strategy)
    protocol = SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=RECONSTRUCTION_SHARE,
        max_weight=1.0,
        clipping_range=CLIP_RANGE,
        quantization_range=QUANTIZATION_LEVELS,
        modulus_range=MODULUS,
        timeout=timeout,
    )
    try:
        protocol(PollingGrid(grid, strategy), context)
    except Exception as error:  # Flower does not check keys and shares; a client with bad ones must not end the run
        strategy.failures = dict.fromkeys(requests, f"secure aggregation broke off ({type(error).__name__}: {error})")
    return strategy


def content_from_fitins(content: RecordDict, names: Iterable[str]) -> RecordDict:
    """Return a message that came through SecAgg+ in the form of other messages.

    Args:
        content: the message's records.
        names: names of the message's tensors, which SecAgg+ does not send.
    """
    request = TrainRequest(**json.loads(str(content["fitins.config"][REQUEST_KEY])))
    arrays = zip(names, content["fitins.parameters"].values(), strict=True)
    return RecordDict({"message": ArrayRecord(dict(arrays)), REQUEST_KEY: request.record()})


def content_to_fitres(content: RecordDict) -> RecordDict:
    """Return a client's reply in the form that SecAgg+ masks; all clients have the same weight.

    Raises ReportedError if an entry is not finite or does not fit: the server could not check it.
    """
    arrays = {name: _to_float64(name, array) for name, array in content["reply"].items()}
    return RecordDict(
        {
            "fitres.parameters": ArrayRecord(arrays),
            "fitres.num_examples": MetricRecord({"num_examples": 1}),
            "fitres.metrics": ConfigRecord(dict(content[INFO_KEY])),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )


def _to_float64(name: str, array: Array) -> Array:
    """Return the array in 64 bits, since Flower adds CLIP_RANGE before it rounds, and with an axis, since Flower gets
    scalars wrong."""
    values = np.atleast_1d(array.numpy().astype(np.float64))
    if not np.abs(values).max() <= CLIP_RANGE:  # also true for NaN
        raise ReportedError(None, name, f"has an entry beyond ±{CLIP_RANGE:g}, which secure aggregation cannot carry")
    return Array(values)
