"""What a client keeps between rounds: its last two states, each with the turn that left it.

A turn is one exchange of one round. The server says which of a client's replies it took; the client goes on from the
state that belongs to that reply. So a reply that was lost or refused, a round that is played again after a crash of
the server, and a node that restarts (with a folder for its states) all leave server and clients in agreement.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import RecordDict
from torch import Tensor

from fedflat.engine.folder import load_tensors, save_tensors
from fedflat.flower.wire import arrays, tensors

Named = dict[str, Tensor]


class Kept:
    """A client's states in the node's context and, where the node names a folder, in a file there."""

    def __init__(self, context: RecordDict, run: str, folder: Path | None, client: int) -> None:
        self.context, self.run = context, run
        self.path = folder / f"client-{client}-{run}.safetensors" if folder else None

    def at(self, turn: int) -> Named | None:
        """The state that `turn` left, None where it is gone."""
        name = f"{self.run}.{turn}"
        if name in self.context.array_records:
            return tensors(self.context.array_records[name])
        named = load_tensors(self.path) if self.path else None
        found = {key.partition("/")[2]: t for key, t in (named or {}).items() if key.partition("/")[0] == str(turn)}
        return found or None

    def store(self, states: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Keep the states of these turns and no others; states without tensors need no place."""
        for name in [name for name in self.context.array_records if name.startswith(f"{self.run}.")]:
            del self.context[name]
        for turn, named in states.items():
            self.context[f"{self.run}.{turn}"] = arrays(named)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(
                self.path, {f"{turn}/{name}": t for turn, named in states.items() for name, t in named.items()}
            )


def begin(kept: Kept, accepted: int, initial: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], bool]:
    """The state to train from, and whether the one that the server counts on is gone."""
    if accepted < 0 or not initial:
        return initial, False
    found = kept.at(accepted)
    return (initial, True) if found is None else (found, False)
