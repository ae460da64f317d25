"""Messages to nodes and their replies, without waiting for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

FIRST, LAST = 0.2, 1.0  # seconds between looks for replies, at first and in the end; Flower's own loop takes 3


OF_THE_APP = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # asking again is no use


WATCH = 2.0  # seconds between two looks for nodes that restarted


class Answers(NamedTuple):
    """Contents of the replies, and why there are no others; by node."""

    replies: dict[int, RecordDict]
    failures: dict[int, str]


class Errand:
    """Sends each node its content and collects the replies."""

    def __init__(self, grid: Grid, contents: Mapping[int, RecordDict], kind: str, group: str, timeout: float) -> None:
        self.grid, self.contents, self.kind, self.group, self.timeout = grid, contents, kind, group, timeout
        self.answers = Answers({}, {})
        self.answered: set[int] = set()  # nodes whose app replied, be it with an error
        self._waiting: dict[str, int] = {}  # message → node
        self._since: dict[int, str] = {}  # node → when it was activated as it was sent its message

    def run(self) -> Answers:
        """Wait until every node has answered or failed, or the time is over."""
        self._push(list(self.contents), online(self.grid))
        end, looked, pause = time.monotonic() + self.timeout, time.monotonic(), pauses()
        self._pull()
        while self._waiting and time.monotonic() < end:
            if time.monotonic() - looked > WATCH:
                self._again()
                looked = time.monotonic()
            time.sleep(next(pause))
            self._pull()
        late = dict.fromkeys(self._waiting.values(), f"no reply within {self.timeout:g} s")
        return Answers(self.answers.replies, self.answers.failures | late)

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
            if not reply.has_error() or reply.error.code in OF_THE_APP:
                self.answered.add(node)
            if reply.has_error():
                self.answers.failures[node] = reply.error.reason or f"error {reply.error.code}"
            else:
                self.answers.replies[node] = reply.content
            self._waiting = {number: other for number, other in self._waiting.items() if other != node}

    def _again(self) -> None:
        """A node that was started again has forgotten its message; it is sent once more."""
        now, since = online(self.grid), self._since
        self._push([node for node in {*self._waiting.values()} if now.get(node, since[node]) != since[node]], now)


def pauses() -> Iterator[float]:
    """Short ones, then longer ones: who has waited for a minute can wait for another second."""
    pause = FIRST
    while True:
        yield pause
        pause = min(LAST, 1.1 * pause)


def online(grid: Grid) -> dict[int, str]:
    """The nodes that are connected and when each was last activated."""
    return {node.node_id: node.last_activated_at for node in grid.get_nodes()}
