"""The nodes that are connected and which client each of them is."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid

from fedflat.flower.errand import Answers, Errand, online
from fedflat.flower.journal import Journal
from fedflat.flower.order import Facts

HELLO = 120.0  # seconds a node has to say who it is
OPEN = f"{MessageType.TRAIN}.open"  # plain "train" is SecAgg+'s
PAUSE = 1.0  # seconds between two looks for more nodes


class Fleet:
    """Who is there. `counts[k]` is how many samples client k holds, 0 until it has said so."""

    def __init__(self, grid: Grid, counts: list[int], timeout: float, journal: Journal) -> None:
        self.grid, self.counts, self.timeout, self.journal = grid, counts, timeout, journal
        self.nodes: dict[int, int] = {}  # client → node
        self._known: dict[int, str] = {}  # node that has said who it is → when it was last activated

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
        """Ask nodes that are new, were started again or have not answered, which client they are; forget who left."""
        now = online(self.grid)
        self.nodes = {client: node for client, node in self.nodes.items() if node in now}
        new = [node for node, since in now.items() if self._known.get(node) != since]
        errand = Errand(self.grid, dict.fromkeys(new, hello), MessageType.QUERY, "hello", min(HELLO, self.timeout))
        found = errand.run()
        self._known = {node: since for node, since in now.items() if node not in new or node in errand.answered}
        for node, content in found.replies.items():
            self._admit(node, content)
        for node, reason in found.failures.items():
            self.journal.say(f"node {node}: takes no part: {reason}")

    def _admit(self, node: int, content: RecordDict) -> None:
        """Take a node's word for which client it is; the newest node of a client counts."""
        try:
            facts = Facts.read(content["facts"])
            self.counts[facts.client] = facts.examples
        except (KeyError, ValueError, IndexError) as error:
            self.journal.say(f"node {node}: takes no part: {error}")
            return
        if self.nodes.get(facts.client, node) != node:
            self.journal.replace(facts.client, self.nodes[facts.client], node)
        self.nodes[facts.client] = node
        self.journal.say(f"{self.name(facts.client)}: connected, {facts.examples} examples")

    def send(self, contents: Mapping[int, RecordDict], group: str) -> Answers:
        """Let these clients train; the answers are by client."""
        client_at = {self.nodes[client]: client for client in contents}
        by_node = {self.nodes[client]: content for client, content in contents.items()}
        answers = Errand(self.grid, by_node, OPEN, group, self.timeout).run()
        return Answers(*({client_at[node]: value for node, value in part.items()} for part in answers))
