"""A run's folder when many ranks train: rank 0 alone touches it.

A checkpoint is the file that one process would write. Saving gathers every rank's clients, loading gives each rank
those at home there, so a run resumes with any number of ranks. States travel through the hosts' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
import torch
from torch import Tensor
from fedflat.engine.distributed import home_rank
from fedflat.engine.processes import ProcessGroup
from fedflat.runs.folder import RunFolder



IDS, CLIENTS = ".clients.clients", ".clients."  # names in `Trial.pack`: a table's row 0 is the initial state


class SharedFolder:
    """What `RunFolder` does, for all ranks together; every rank calls every function."""

    def __init__(self, world: ProcessGroup, opening: Callable[[], RunFolder]) -> None:
        self.world = world
        self._folder = opening() if world.leads else None

    def close(self) -> None:
        """Let others use the folder."""
        if self._folder:
            self._folder.close()

    def log(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append metrics."""
        if self._folder:
            self._folder.log(rows)

    def rewind(self, round: int, evaluations: Iterable[tuple[int, int]] = ()) -> list[dict[str, Any]]:
        """Drop metrics of rounds after the checkpoint's; returns those kept, which `evaluations` (round, seed) need."""
        return self.world.share(lambda: self._folder.rewind(round, evaluations) if self._folder else None)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run complete."""
        if self._folder:
            self._folder.finish(result)

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the checkpoint by one with the clients of all ranks."""
        whole = {name: tensor for name, tensor in tensors.items() if CLIENTS not in name}
        for name in (name for name in tensors if name.endswith(IDS)):
            counts = self.world.table([len(tensors[name])])[:, 0].tolist()
            whole[name] = torch.cat(self._gather(tensors[name], counts))
            for table in _tables(name, tensors):
                whole[table] = torch.cat([tensors[table][:1].cpu(), *self._gather(tensors[table][1:], counts)])
        if self._folder:
            self._folder.save(whole)

    def _gather(self, rows: Tensor, counts: list[int]) -> list[Tensor]:
        """On rank 0 everyone's rows, elsewhere nothing."""
        room = {rank: _room(count, rows) for rank, count in enumerate(counts) if count} if self.world.leads else {}
        self.world.move({0: rows.cpu().contiguous()} if len(rows) else {}, room)
        return [_room(0, rows), *room.values()]

    def load(self) -> dict[str, Tensor] | None:
        """The checkpoint's tensors, of clients only those at home here; None where there is none yet."""
        stored = self._folder.load() if self._folder else None
        outline = self.world.share(lambda: stored and {name: _outline(tensor) for name, tensor in stored.items()})
        if outline is None:
            return None
        tensors = stored or {name: _unstored(*words) for name, words in outline.items()}
        mine = {name: self._spread(t) for name, t in tensors.items() if CLIENTS not in name or name.endswith(IDS)}
        for name in [name for name in mine if name.endswith(IDS)]:
            homes = torch.tensor([home_rank(client, self.world.size) for client in mine[name].tolist()])
            mine |= {table: self._deal(tensors[table], homes) for table in _tables(name, tensors)}
            mine[name] = mine[name][homes == self.world.rank]
        return mine

    def _spread(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor on every rank."""
        return self.world.spread(tensor if self.world.leads else torch.empty_like(tensor, device="cpu"))

    def _deal(self, table: Tensor, homes: Tensor) -> Tensor:
        """The rows of a table whose home is here, after the initial state's."""
        rows = {rank: _with_initial(homes == rank) for rank in range(self.world.size)}
        outgoing = {rank: table[mask] for rank, mask in rows.items()} if self.world.leads else {}
        return self.world.move(outgoing, {0: _room(int(rows[self.world.rank].sum()), table)})[0]


def open_folder(world: ProcessGroup, path: Path, config: str, resume: bool) -> RunFolder | SharedFolder:
    """The folder of a run of one process or of many."""
    if world.size == 1:
        return RunFolder(path, config, resume)
    return SharedFolder(world, lambda: RunFolder(path, config, resume))


def _tables(ids: str, names: Iterable[str]) -> list[str]:
    """The names of the tables that belong to a list of clients."""
    return [name for name in names if name.startswith(ids.removesuffix("clients")) and name != ids]


def _with_initial(rows: Tensor) -> Tensor:
    """A mask over clients as one over the rows of a table."""
    return torch.cat([torch.ones(1, dtype=torch.bool), rows])


def _room(count: int, like: Tensor) -> Tensor:
    """An empty table in the host's memory."""
    return torch.empty(count, *like.shape[1:], dtype=like.dtype)


def _outline(tensor: Tensor) -> tuple[list[int], str]:
    """Shape and type in plain words."""
    return list(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _unstored(shape: list[int], dtype: str) -> Tensor:
    """A tensor without content, for a rank that only needs its outline."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
