"""What a client keeps between rounds: its latest states, each under the turn that left it.

A turn is one exchange of one round. The server says which of a client's replies it took last; the client goes on from
the state that belongs to that reply. So a reply that was lost or refused, a round that is played again after a crash
of the server, and a node that restarts (with a folder for its states) all leave server and clients in agreement.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from torch import Tensor

from fedflat.errors import UserError
from fedflat.flower.wire import arrays, tensors
from fedflat.runs.folder import load_tensors, save_tensors

Named = dict[str, Tensor]


def folder_of(node: Mapping[str, Any]) -> Path | None:
    """The folder for states that a node's configuration names, if any."""
    return Path(str(node["state"])) if node.get("state") else None


def check_folder(folder: Path) -> None:
    """Make the folder and refuse one to which nothing can be written, before anyone trains in vain."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"--node-config state={folder}: must be a folder that can be written ({reason})") from None


class Kept:
    """A client's states in the node's context and, where the node names a folder, in a file there.

    Another node may have stood for the client meanwhile and left newer states in a folder that they share.
    A server that dies goes back by one round, so what a round's turns began with is kept: `turns` states and one more.
    """

    def __init__(self, context: RecordDict, folder: Path | None, run: str, client: int, turns: int) -> None:
        self.context, self.prefix, self.turns = context, f"{run}.", turns
        self.path = folder / f"client-{client}-{run}.safetensors" if folder else None
        names = [name for name in context.array_records if name.startswith(self.prefix)]
        remembered = {int(name.removeprefix(self.prefix)): tensors(context.array_records[name]) for name in names}
        self.states = remembered | self._read()

    def begin(self, accepted: int, initial: Named) -> tuple[Named, bool]:
        """The state to train from, and whether the one that the server counts on is gone."""
        if accepted < 0 or not initial:
            return initial, False
        found = self.states.get(accepted)
        return (initial, True) if found is None else (found, False)

    def store(self, accepted: int, before: Named, turn: int, after: Named) -> None:
        """Keep what this turn left and what it began with; states that the server did not take are dropped."""
        states = {t: named for t, named in self.states.items() if t < accepted} | {accepted: before, turn: after}
        self.states = {t: states[t] for t in sorted(states)[-self.turns - 1 :]}
        for name in [name for name in self.context.array_records if name.startswith(self.prefix)]:
            del self.context[name]
        for t, named in self.states.items():
            self.context[f"{self.prefix}{t}"] = arrays(named)
        self._write()

    def _read(self) -> dict[int, Named]:
        """The states in the file, none where it is missing or damaged."""
        states: dict[int, Named] = {}
        for key, tensor in ((load_tensors(self.path) if self.path else None) or {}).items():
            turn, _, name = key.partition("/")
            states.setdefault(int(turn), {})[name] = tensor
        return states

    def _write(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            each = ((f"{turn}/{name}", t) for turn, named in self.states.items() for name, t in named.items())
            save_tensors(self.path, dict(each))
