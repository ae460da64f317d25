"""Who took part in which round, who did not and why: in clients.jsonl of the run's folder and in Flower's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from fedflat.engine.rounds import CohortJob
from fedflat.runs.folder import read_metrics, write_atomically


class Journal:
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
