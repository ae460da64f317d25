"""Secure aggregation: Flower's SecAgg+ around an exchange, so that the server learns the mean of the replies only.

Every exchange takes four messages to each client instead of one: keys, shares of keys, the masked reply, and the shares
that take the masks off the sum. Replies travel as integers: entries between ±RANGE, rounded to RANGE / 2²⁹.
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

from fedflat.flower.messages import ClientInfo, TrainRequest, decode_npy
from fedflat.flower.nodes import polling_pauses

CLIP_RANGE = 128.0


LEVELS, MODULUS = 2**30, 2**48  # Flower rounds to 32 bits and adds up in 64


SHARE = 0.51  # of the clients must stay to the end


class PollingGrid:
    """The one function of a grid that SecAgg+ uses, without its pauses of 3 s and without bad masked replies."""

    def __init__(self, grid: Grid, result: MeanOnlyStrategy) -> None:
        self.grid, self.result = grid, result

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        """The replies that come in time, errors among them."""
        sent = list(messages)
        waiting, end, pause = set(self.grid.push_messages(sent)), time.monotonic() + timeout, polling_pauses()
        replies = list(self.grid.pull_messages(list(waiting)))
        while (waiting := waiting - {r.metadata.reply_to_message_id for r in replies}) and time.monotonic() < end:
            time.sleep(next(pause))
            replies += self.grid.pull_messages(list(waiting))
        masked = sent[0].content[RECORD_KEY_CONFIGS][Protocol.STAGE] == Stage.COLLECT_MASKED_VECTORS
        return [reply for reply in replies if not masked or reply.has_error() or self.result.takes(reply)]


class MeanOnlyStrategy:
    """What SecAgg+ asks of a strategy: whom to send what, and a place for the mean.

    `shapes` are those of a reply's arrays. Nodes in `failures` have no part in the mean.
    """

    def __init__(
        self, sent: ArrayRecord, orders: Mapping[int, TrainRequest], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.sent, self.orders = sent, orders
        self.shapes = {"its weight": (1,)} | {name: shape or (1,) for name, shape in shapes.items()}
        self.mean: list[np.ndarray] = []
        self.facts: dict[int, ClientInfo] = {}
        self.failures: dict[int, str] = dict.fromkeys(orders, "it did not finish secure aggregation")

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        """The method's message and each node's order."""
        parameters = Parameters([array.data for array in self.sent.values()], "numpy.ndarray")
        orders = {node: {"order": json.dumps(asdict(order))} for node, order in self.orders.items()}
        return [(SimpleNamespace(node_id=node), FitIns(parameters, order)) for node, order in orders.items()]

    def takes(self, reply: Message) -> bool:
        """Whether a masked reply is as it should be; the masks of one that is not are taken off as if it had left."""
        try:
            ClientInfo.read(reply.content["fitres.metrics"])
            masked: Any = reply.content[RECORD_KEY_CONFIGS][Protocol.MASKED_PARAMETERS]
            for (name, shape), data in zip(self.shapes.items(), masked, strict=True):
                decode_npy(name, data, "int64", shape)
        except (KeyError, TypeError, ValueError) as error:
            self.failures[reply.metadata.src_node_id] = f"its reply is refused: {error}"
            return False
        return True

    def aggregate_fit(self, round: int, results: list[Any], failures: Any) -> tuple[None, dict[str, Any]]:
        """Every result holds the mean; each node's facts are its own."""
        self.mean = parameters_to_ndarrays(results[0][1].parameters)
        self.facts = {node.node_id: ClientInfo.read(result.metrics) for node, result in results}
        self.failures = {node: reason for node, reason in self.failures.items() if node not in self.facts}
        return None, {}


def secure_mean(
    grid: Grid,
    sent: ArrayRecord,
    orders: Mapping[int, TrainRequest],
    shapes: Mapping[str, tuple[int, ...]],
    round: int,
    timeout: float,
) -> MeanOnlyStrategy:
    """Run the protocol; without a mean where too few nodes came to its end."""
    result = MeanOnlyStrategy(sent, orders, shapes)
    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: round})})
    state[MAIN_PARAMS_RECORD] = ArrayRecord()
    context = LegacyContext(Context(0, 0, {}, state, {}), strategy=result)
    protocol = SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=SHARE,
        max_weight=1.0,
        clipping_range=CLIP_RANGE,
        quantization_range=LEVELS,
        modulus_range=MODULUS,
        timeout=timeout,
    )
    try:
        protocol(PollingGrid(grid, result), context)
    except Exception as error:  # Flower takes keys and shares as they come; no client may end the run with a bad one
        result.failures = dict.fromkeys(orders, f"secure aggregation broke off ({type(error).__name__}: {error})")
    return result


def open_request(content: RecordDict, names: Iterable[str]) -> RecordDict:
    """What a client gets through SecAgg+, as it gets it otherwise."""
    order = TrainRequest(**json.loads(str(content["fitins.config"]["order"])))
    arrays = zip(names, content["fitins.parameters"].values(), strict=True)
    return RecordDict({"message": ArrayRecord(dict(arrays)), "order": order.record()})


def close_reply(content: RecordDict) -> RecordDict:
    """A client's reply as SecAgg+ takes it, all of equal weight. No one could refuse a bad one, so it is not sent."""
    return RecordDict(
        {
            "fitres.parameters": ArrayRecord({name: _carried(name, array) for name, array in content["reply"].items()}),
            "fitres.num_examples": MetricRecord({"num_examples": 1}),
            "fitres.metrics": ConfigRecord(dict(content["facts"])),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )


def _carried(name: str, array: Array) -> Array:
    """In 64 bits, since Flower adds RANGE before it rounds, and with an axis, since it gets scalars wrong."""
    values = np.atleast_1d(array.numpy().astype(np.float64))
    largest = float(np.abs(values).max())
    if not largest <= CLIP_RANGE:
        raise ValueError(f"{name} has an entry of size {largest:.3g}, secure aggregation carries up to {CLIP_RANGE:g}")
    return Array(values)
