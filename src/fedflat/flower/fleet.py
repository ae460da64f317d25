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
        now = online(self.grid)
        self.nodes = {client: node for client, node in self.nodes.items() if self._known.get(node) == now.get(node)}
        spare = [node for node, client in self._claims.items() if client not in self.nodes]
        new = [node for node, since in now.items() if self._known.get(node) != since or node in spare]
        errand = Errand(self.grid, dict.fromkeys(new, hello), MessageType.QUERY, "hello", min(HELLO, self.timeout))
        found = errand.run()
        self._known = {node: since for node, since in now.items() if node not in new or node in errand.answered}
        self._claims = {node: client for node, client in self._claims.items() if node in now and node not in new}
        for node, content in found.replies.items():
            self._admit(node, content)
        for node, reason in found.failures.items():
            self.journal.turn_away(node, reason)

    def _facts(self, content: RecordDict) -> Facts:
        """What a node says of itself; raises ValueError or KeyError where that is nonsense."""
        facts = Facts.read(content["facts"])
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

    def send(self, contents: Mapping[int, RecordDict], group: str) -> Answers:
        """Let these clients train; the answers are by client."""
        client_at = {self.nodes[client]: client for client in contents}
        by_node = {self.nodes[client]: content for client, content in contents.items()}
        answers = Errand(self.grid, by_node, OPEN, group, self.timeout).run()
        return Answers(*({client_at[node]: value for node, value in part.items()} for part in answers))
