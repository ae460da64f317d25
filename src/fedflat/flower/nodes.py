"""The nodes of a federation: which client each of them is, messages to them, and a log of which clients took part."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedflat.engine.rounds import CohortJob
from fedflat.errors import UserError
from fedflat.flower.messages import INFO_KEY, ClientInfo
from fedflat.runs.folder import write_atomically
from fedflat.runs.metrics import read_json_lines

SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 1.0  # seconds between two polls for replies; Flower's own loop waits 3
RESTART_CHECK_SECONDS = 2.0  # between two checks whether a node has restarted since it was sent its message
NODE_CHECK_SECONDS = 1.0  # between two checks for new nodes
QUERY_TIMEOUT_SECONDS = 120.0  # within which a node must say which client it is
TRAIN_WITHOUT_MASKS = f"{MessageType.TRAIN}.open"  # the message type "train" alone belongs to SecAgg+
APP_ERROR_CODES = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # do not ask again


LONGEST_NOTE = 500  # characters of what a node says that the log repeats


def one_line(text: str) -> str:
    """Return a text that a node may have written as one line of printable characters, so that it forges no log."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST_NOTE])


class NodeReplies(NamedTuple):
    """Contents of the replies, and for each other node or client the reason why it has none."""

    replies: dict[int, RecordDict]
    failures: dict[int, str]


class Exchange:
    """Sends each node a message and collects the replies.

    Args:
        grid: Flower's grid.
        contents: the content for each node.
        kind: Flower's message type.
        group: Flower's group id, by which the messages can be told apart in its log.
        timeout: seconds to wait for replies.
    """

    def __init__(self, grid: Grid, contents: Mapping[int, RecordDict], kind: str, group: str, timeout: float) -> None:
        self.grid, self.contents, self.kind, self.group, self.timeout = grid, contents, kind, group, timeout
        self.result = NodeReplies({}, {})
        self.answered: set[int] = set()  # nodes whose app replied, even if with an error
        self._waiting: dict[str, int] = {}  # message id → node
        self._activated: dict[int, str] = {}  # node → its activation time when it was sent its message

    def run(self) -> NodeReplies:
        """Wait until every node has replied or failed, or until the timeout, and return the replies by node."""
        self._push(list(self.contents), online_nodes(self.grid))
        end, checked, pauses = time.monotonic() + self.timeout, time.monotonic(), polling_pauses()
        self._pull()
        while self._waiting and time.monotonic() < end:
            if time.monotonic() - checked > RESTART_CHECK_SECONDS:
                self._resend_after_restart()
                checked = time.monotonic()
            time.sleep(next(pauses))
            self._pull()
        late = dict.fromkeys(self._waiting.values(), f"no reply within {self.timeout:g} s")
        return NodeReplies(self.result.replies, self.result.failures | late)

    def _push(self, nodes: list[int], online: Mapping[int, str]) -> None:
        for node in nodes:
            message = Message(self.contents[node], node, self.kind, ttl=self.timeout, group_id=self.group)
            (message_id,) = list(self.grid.push_messages([message])) or [None]
            if message_id:
                self._waiting[message_id], self._activated[node] = node, online.get(node, "")
            else:
                self.result.failures[node] = "the message could not be sent"

    def _pull(self) -> None:
        for reply in self.grid.pull_messages(list(self._waiting)) if self._waiting else []:
            node = self._waiting.get(reply.metadata.reply_to_message_id)
            if node is None:
                continue
            if not reply.has_error() or reply.error.code in APP_ERROR_CODES:
                self.answered.add(node)
            if reply.has_error():
                self.result.failures[node] = reply.error.reason or f"error {reply.error.code}"
            else:
                self.result.replies[node] = reply.content
            self._waiting = {message_id: other for message_id, other in self._waiting.items() if other != node}

    def _resend_after_restart(self) -> None:
        """Send the message again to nodes that have restarted: a restarted node has lost its message."""
        online, activated = online_nodes(self.grid), self._activated
        waiting = {*self._waiting.values()}
        self._push([node for node in waiting if online.get(node, activated[node]) != activated[node]], online)


def polling_pauses() -> Iterator[float]:
    """Yield the seconds to wait before each poll, growing from SHORTEST_PAUSE to LONGEST_PAUSE."""
    pause = SHORTEST_PAUSE
    while True:
        yield pause
        pause = min(LONGEST_PAUSE, 1.1 * pause)


def online_nodes(grid: Grid) -> dict[int, str]:
    """Return the connected nodes and the time at which each was last activated."""
    return {node.node_id: node.last_activated_at for node in grid.get_nodes()}


def read_declared(path: Path) -> dict[int, int]:
    """Return the numbers of examples in examples.json, {} without the file; raise UserError if it cannot be read."""
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {int(client): int(examples) for client, examples in stored.items()}
    except (ValueError, TypeError, AttributeError):
        problem = 'must be numbers of examples by client, as {"0": 479, "1": 512}; restore it, or remove it'
        raise UserError(None, path, f"{problem}, and clients declare anew") from None


class ClientLog:
    """The log of which clients took part, which did not and why: clients.jsonl and Flower's log.

    `declared` are the numbers of examples that clients declared when they first answered, also in examples.json.

    Args:
        path: the file clients.jsonl. A run that continues appends to it; an incomplete last line is removed.
        run: the name under which nodes store this run's states.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in read_json_lines(path)))
        self.logger = logging.getLogger("flwr")
        self._examples_path = path.with_name("examples.json")
        self.declared = read_declared(self._examples_path)

    def info(self, text: str) -> None:
        """Write a line to Flower's log only."""
        self.logger.info("%s", text)

    def warn(self, text: str) -> None:
        """Write a warning to Flower's log only."""
        self.logger.warning("%s", text)

    def examples_declared(self, client: int, examples: int) -> None:
        """Store the number of examples that a client declares for the first time; it holds for the whole run."""
        self.declared[client] = examples
        write_atomically(self._examples_path, json.dumps(self.declared) + "\n")

    def node_replaced(self, client: int, old: int, new: int) -> None:
        """Log that two connected nodes claim the same client: it moved, or one of them is wrong or an attacker."""
        note = f"node {new} takes the place of node {old}, which is still connected"
        self._append({"client": client, "note": note})
        self.logger.warning("client %s: %s", client, note)

    def node_rejected(self, node: int, reason: str) -> None:
        """Log that a node did not say which client it is, or cannot be one."""
        reason = one_line(reason)
        self._append({"node": node, "note": f"takes no part: {reason}"})
        self.logger.warning("node %s: takes no part: %s", node, reason)

    def client_asked(
        self,
        job: CohortJob,
        client: int,
        name: str,
        accepted: bool,
        examples: int | None,
        norm: float | None,
        note: str,
    ) -> None:
        """Log the outcome of a request to a client.

        Args:
            job: the exchange.
            client: number of the client.
            name: the client and its node, for Flower's log.
            accepted: whether its reply counts.
            examples: the number of examples that the reply claims, None if it claims none.
            norm: the norm of the reply, None if it is not known.
            note: why not, or what else is to be known; "" for nothing.
        """
        row = {"round": job.round + 1, "exchange": job.exchange, "client": client, "accepted": accepted}
        finite, note = norm if norm is not None and math.isfinite(norm) else None, one_line(note)
        self._append({**row, "examples": examples, "norm": finite, "note": note})
        if note:
            self.logger.warning("round %s, %s: %s", job.round + 1, name, note)

    def reply_clipped(self, job: CohortJob, client: int, factor: float) -> None:
        """Log that a reply counts only after it was scaled down by `factor`."""
        self._append({"round": job.round + 1, "client": client, "note": f"its reply is clipped, times {factor:.3g}"})

    def asked_clients(self) -> list[list[int]]:
        """Return [client] for each time that a client was asked in a round; requests of repeated rounds count again."""
        return [[row["client"]] for row in read_json_lines(self.path) if row.get("exchange") == 0]

    def _append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class Nodes:
    """The connected nodes, by client.

    Args:
        grid: Flower's grid.
        examples: the number of samples that each client declared, 0 until it is known; updated here.
        timeout: seconds to wait for nodes and for replies.
        log: where nodes that connect, are replaced or rejected are logged.
    """

    def __init__(self, grid: Grid, examples: list[int], timeout: float, log: ClientLog) -> None:
        self.grid, self.examples, self.timeout, self.log = grid, examples, timeout, log
        for client, number in log.declared.items():
            self.examples[client] = number
        self.node_of: dict[int, int] = {}  # client → node
        self._answered: dict[int, str] = {}  # node that has answered the query → its activation time then
        self._claims: dict[int, int] = {}  # node → the client that it claims to be, even if a newer node counts
        self._heavy: set[int] = set()  # clients of which was warned that they outweigh all others

    def name(self, client: int) -> str:
        """Return a client and its node, for messages."""
        return f"client {client} (node {self.node_of.get(client, 'gone')})"

    def wait_for(self, count: int, query: RecordDict) -> None:
        """Wait until `count` clients are connected, but no longer than the timeout.

        Args:
            count: number of clients.
            query: content of the message that asks new nodes which client they are.
        """
        end = time.monotonic() + self.timeout
        self.update(query)
        if len(self.node_of) < count:
            self.log.info(f"{len(self.node_of)} of {count} clients connected, waiting")
        while len(self.node_of) < count and time.monotonic() < end:
            time.sleep(NODE_CHECK_SECONDS)
            self.update(query)

    def update(self, query: RecordDict) -> None:
        """Forget nodes that left or restarted, and ask nodes which client they are.

        Asked are nodes that have not answered since they were activated, and nodes that claim a client that now has no
        node. A node that answered that it cannot take part is not asked again.
        """
        online = online_nodes(self.grid)
        self.node_of = {
            client: node for client, node in self.node_of.items() if self._answered.get(node) == online.get(node)
        }
        without_node = [node for node, client in self._claims.items() if client not in self.node_of]
        asked = [node for node, since in online.items() if self._answered.get(node) != since or node in without_node]
        timeout = min(QUERY_TIMEOUT_SECONDS, self.timeout)
        exchange = Exchange(self.grid, dict.fromkeys(asked, query), MessageType.QUERY, "hello", timeout)
        replies, failures = exchange.run()
        self._answered = {n: since for n, since in online.items() if n not in asked or n in exchange.answered}
        self._claims = {n: client for n, client in self._claims.items() if n in online and n not in asked}
        for node, content in replies.items():
            self._register(node, content)
        for node, reason in failures.items():
            self.log.node_rejected(node, reason)
        self._warn_of_heavy_client()

    def _register(self, node: int, content: RecordDict) -> None:
        """Assign a node to the client that it claims to be; of two nodes the one activated last counts."""
        try:
            info = self._read_info(content)
        except (KeyError, ValueError) as error:
            self.log.node_rejected(node, str(error))
            return
        self._claims[node] = client = info.client
        older, newer = sorted((self.node_of.get(client, node), node), key=self._answered.__getitem__)
        if older != newer:
            self.log.node_replaced(client, older, newer)
        if newer == node:
            self.node_of[client] = node
            if not self.examples[client]:
                self.examples[client] = info.examples
                self.log.examples_declared(client, info.examples)
            self.log.info(f"{self.name(client)}: connected, {info.examples} examples")

    def _warn_of_heavy_client(self) -> None:
        """Warn once of a client that would outweigh all others together, whichever of them declared first."""
        most = max(self.examples)
        others, client = sum(self.examples) - most, self.examples.index(most)
        if most <= others or client in self._heavy or sum(map(bool, self.examples)) < 3:
            return
        self._heavy.add(client)
        self.log.warn(f"{self.name(client)}: declares {most} examples, all others together {others}")

    def _read_info(self, content: RecordDict) -> ClientInfo:
        """Return a node's answer; raise ValueError or KeyError if it is not plausible."""
        info = ClientInfo.read(content[INFO_KEY])
        if info.client >= len(self.examples):
            raise ValueError(f"it says it is client {info.client}, there are {len(self.examples)}")
        declared = self.examples[info.client]
        if declared and info.examples != declared:
            problem = f"it says it has {info.examples} examples, client {info.client} declared {declared} before"
            raise ValueError(f"{problem}; if its data have changed, remove its entry from examples.json")
        return info

    def train(self, contents: Mapping[int, RecordDict], group: str) -> NodeReplies:
        """Ask clients to train and return their replies by client.

        Args:
            contents: the message to each client.
            group: Flower's group id of the messages.
        """
        client_at = {self.node_of[client]: client for client in contents}
        by_node = {self.node_of[client]: content for client, content in contents.items()}
        replies = Exchange(self.grid, by_node, TRAIN_WITHOUT_MASKS, group, self.timeout).run()
        return NodeReplies(*({client_at[node]: value for node, value in part.items()} for part in replies))
