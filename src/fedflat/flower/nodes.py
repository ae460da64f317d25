"""The nodes of a federation: which client each of them is, messages to them, and a log of who took part."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedflat.engine.rounds import CohortJob
from fedflat.flower.messages import ClientInfo
from fedflat.runs.folder import read_metrics, write_atomically

FIRST_PAUSE, LONGEST_PAUSE = (
    0.2,
    1.0,
)  # seconds between looks for replies, at first and in the end; Flower's own loop takes 3


APP_ERROR_CODES = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # asking again is no use


SECONDS_BETWEEN_CHECKS = 2.0  # seconds between two looks for nodes that restarted


class NodeReplies(NamedTuple):
    """Contents of the replies, and why there are no others; by node."""

    replies: dict[int, RecordDict]
    failures: dict[int, str]


class Exchange:
    """Sends each node its content and collects the replies."""

    def __init__(self, grid: Grid, contents: Mapping[int, RecordDict], kind: str, group: str, timeout: float) -> None:
        self.grid, self.contents, self.kind, self.group, self.timeout = grid, contents, kind, group, timeout
        self.answers = NodeReplies({}, {})
        self.answered: set[int] = set()  # nodes whose app replied, be it with an error
        self._waiting: dict[str, int] = {}  # message → node
        self._since: dict[int, str] = {}  # node → when it was activated as it was sent its message

    def run(self) -> NodeReplies:
        """Wait until every node has answered or failed, or the time is over."""
        self._push(list(self.contents), online_nodes(self.grid))
        end, looked, pause = time.monotonic() + self.timeout, time.monotonic(), polling_pauses()
        self._pull()
        while self._waiting and time.monotonic() < end:
            if time.monotonic() - looked > SECONDS_BETWEEN_CHECKS:
                self._again()
                looked = time.monotonic()
            time.sleep(next(pause))
            self._pull()
        late = dict.fromkeys(self._waiting.values(), f"no reply within {self.timeout:g} s")
        return NodeReplies(self.answers.replies, self.answers.failures | late)

    def _push(self, nodes: list[int], now: Mapping[int, str]) -> None:
        for node in nodes:
            message = Message(self.contents[node], node, self.kind, ttl=self.timeout, group_id=self.group)
            (number,) = list(self.grid.push_messages([message])) or [None]
            if number:
                self._waiting[number], self._since[node] = node, now.get(node, "")
            else:
                self.answers.failures[node] = "the message could not be sent"

    def _pull(self) -> None:
        for reply in self.grid.pull_messages(list(self._waiting)) if self._waiting else []:
            node = self._waiting.get(reply.metadata.reply_to_message_id)
            if node is None:
                continue
            if not reply.has_error() or reply.error.code in APP_ERROR_CODES:
                self.answered.add(node)
            if reply.has_error():
                self.answers.failures[node] = reply.error.reason or f"error {reply.error.code}"
            else:
                self.answers.replies[node] = reply.content
            self._waiting = {number: other for number, other in self._waiting.items() if other != node}

    def _again(self) -> None:
        """A node that was started again has forgotten its message; it is sent once more."""
        now, since = online_nodes(self.grid), self._since
        self._push([node for node in {*self._waiting.values()} if now.get(node, since[node]) != since[node]], now)


def polling_pauses() -> Iterator[float]:
    """Short ones, then longer ones: who has waited for a minute can wait for another second."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(LONGEST_PAUSE, 1.1 * pause)


def online_nodes(grid: Grid) -> dict[int, str]:
    """The nodes that are connected and when each was last activated."""
    return {node.node_id: node.last_activated_at for node in grid.get_nodes()}


class ClientLog:
    """Notes about clients. `run` is the name under which nodes keep this run's states."""

    def __init__(self, path: Path, run: str) -> None:
        """Goes on with the notes of an interrupted run, without a line that a crash tore."""
        self.path, self.run = path, run
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in read_metrics(path)))
        self.log = logging.getLogger("flwr")

    def say(self, text: str) -> None:
        """A line for those who watch."""
        self.log.info("%s", text)

    def replace(self, client: int, old: int, new: int) -> None:
        """Two nodes claim to be one client: a node that moved, a mistake, or a theft."""
        note = f"node {new} takes the place of node {old}, which is still connected"
        self._append({"client": client, "note": note})
        self.log.warning("client %s: %s", client, note)

    def turn_away(self, node: int, reason: str) -> None:
        """A node that did not say which client it is, or cannot be one."""
        self._append({"node": node, "note": f"takes no part: {reason}"})
        self.log.warning("node %s: takes no part: %s", node, reason)

    def write(self, job: CohortJob, client: int, name: str, accepted: bool, note: str) -> None:
        """What became of one client's part in an exchange."""
        row = {"round": job.round + 1, "exchange": job.exchange, "client": client, "accepted": accepted, "note": note}
        self._append(row)
        if note:
            self.log.warning("round %s, %s: %s", job.round + 1, name, note)

    def cohorts(self) -> list[list[int]]:
        """Who was asked, round by round; a round that was played again counts again."""
        return [[row["client"]] for row in read_metrics(self.path) if row.get("exchange") == 0]

    def _append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


HELLO = 120.0  # seconds a node has to say who it is


OPEN = f"{MessageType.TRAIN}.open"  # plain "train" is SecAgg+'s


PAUSE = 1.0  # seconds between two looks for more nodes


class Nodes:
    """Who is there. `counts[k]` is how many samples client k holds, 0 until it has said so."""

    def __init__(self, grid: Grid, counts: list[int], timeout: float, journal: ClientLog) -> None:
        self.grid, self.counts, self.timeout, self.journal = grid, counts, timeout, journal
        self.nodes: dict[int, int] = {}  # client → node
        self._known: dict[int, str] = {}  # node that has answered → when it was last activated
        self._claims: dict[int, int] = {}  # node → the client it says it is, also where a newer one counts

    def name(self, client: int) -> str:
        """A client and its node, for messages."""
        return f"client {client} (node {self.nodes.get(client, 'gone')})"

    def gather(self, enough: int, hello: RecordDict) -> None:
        """Wait until `enough` clients are connected, but not longer than the timeout."""
        end = time.monotonic() + self.timeout
        self.look(hello)
        if len(self.nodes) < enough:
            self.journal.say(f"{len(self.nodes)} of {enough} clients connected, waiting")
        while len(self.nodes) < enough and time.monotonic() < end:
            time.sleep(PAUSE)
            self.look(hello)

    def look(self, hello: RecordDict) -> None:
        """Forget who left or was started again; ask who has not answered since then, or claims a client without a node.

        A node that answered that it cannot take part is not asked again.
        """
        now = online_nodes(self.grid)
        self.nodes = {client: node for client, node in self.nodes.items() if self._known.get(node) == now.get(node)}
        spare = [node for node, client in self._claims.items() if client not in self.nodes]
        new = [node for node, since in now.items() if self._known.get(node) != since or node in spare]
        errand = Exchange(self.grid, dict.fromkeys(new, hello), MessageType.QUERY, "hello", min(HELLO, self.timeout))
        found = errand.run()
        self._known = {node: since for node, since in now.items() if node not in new or node in errand.answered}
        self._claims = {node: client for node, client in self._claims.items() if node in now and node not in new}
        for node, content in found.replies.items():
            self._admit(node, content)
        for node, reason in found.failures.items():
            self.journal.turn_away(node, reason)

    def _facts(self, content: RecordDict) -> ClientInfo:
        """What a node says of itself; raises ValueError or KeyError where that is nonsense."""
        facts = ClientInfo.read(content["facts"])
        if facts.client >= len(self.counts):
            raise ValueError(f"it says it is client {facts.client}, there are {len(self.counts)}")
        return facts

    def _admit(self, node: int, content: RecordDict) -> None:
        """Take a node's word for which client it is; of two nodes of one client the one activated last counts."""
        try:
            facts = self._facts(content)
        except (KeyError, ValueError) as error:
            self.journal.turn_away(node, str(error))
            return
        self._claims[node] = client = facts.client
        older, newer = sorted((self.nodes.get(client, node), node), key=self._known.__getitem__)
        if older != newer:
            self.journal.replace(client, older, newer)
        if newer == node:
            self.nodes[client], self.counts[client] = node, facts.examples
            self.journal.say(f"{self.name(client)}: connected, {facts.examples} examples")

    def send(self, contents: Mapping[int, RecordDict], group: str) -> NodeReplies:
        """Let these clients train; the answers are by client."""
        client_at = {self.nodes[client]: client for client in contents}
        by_node = {self.nodes[client]: content for client, content in contents.items()}
        answers = Exchange(self.grid, by_node, OPEN, group, self.timeout).run()
        return NodeReplies(*({client_at[node]: value for node, value in part.items()} for part in answers))
