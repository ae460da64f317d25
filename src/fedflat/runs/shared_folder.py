"""The folder of a run that several processes train. Only rank 0 reads and writes it.

A checkpoint is the file that one process would write, but for the order of the clients: here they are sorted by number,
whereas one process has them in the order in which they first took part. To save it, rank 0 gathers the clients' states
of all ranks; to load it, rank 0 sends each rank the states of the clients that it owns. So a run can be resumed with
any number of ranks. States are sent from and to the memory of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedflat.engine.distributed import owner_rank
from fedflat.engine.processes import ProcessGroup
from fedflat.runs.config import MAY_GROW
from fedflat.runs.folder import RunFolder

CLIENTS = ".clients."  # part of the names, in `Trial.pack`, of tables of clients' states; row 0 is the initial state
CLIENT_NUMBERS = ".clients.clients"  # end of the names of the lists of clients that the other rows belong to


class SharedFolder:
    """A RunFolder that is used by all ranks: every rank calls every method.

    Args:
        processes: the ranks.
        open_run_folder: opens the folder; called on rank 0 only.
    """

    def __init__(self, processes: ProcessGroup, open_run_folder: Callable[[], RunFolder]) -> None:
        self.processes = processes
        self._folder = open_run_folder() if processes.leads else None

    @property
    def path(self) -> Path | None:
        """The folder on rank 0, None on the others."""
        return self._folder.path if self._folder else None

    def close(self) -> None:
        """Release the lock."""
        if self._folder:
            self._folder.close()

    def log(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to metrics.jsonl."""
        if self._folder:
            self._folder.log(rows)

    def rewind(
        self, round: int, evaluations: Iterable[tuple[int, int]] = (), metric: str = "loss"
    ) -> list[dict[str, Any]]:
        """Remove the metrics of rounds after `round` and return the rest, as RunFolder.rewind does."""
        return self.processes.broadcast_value(
            lambda: self._folder.rewind(round, evaluations, metric) if self._folder else None
        )

    def added_seeds(self) -> tuple[int, list[int]]:
        """Return the checkpoint's round and the seeds that it lacks, as RunFolder.added_seeds does."""
        return self.processes.broadcast_value(lambda: self._folder.added_seeds() if self._folder else None)

    def add_seeds(self, other: Path) -> None:
        """Add the seeds of another run, as RunFolder.add_seeds does; the other ranks wait."""
        self.processes.broadcast_value(lambda: self._folder.add_seeds(other) if self._folder else None)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json, which marks the run as complete."""
        if self._folder:
            self._folder.finish(result)

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the checkpoint by one with the clients of all ranks, in the order of their numbers."""
        complete = {name: tensor for name, tensor in tensors.items() if CLIENTS not in name}
        for name in (name for name in tensors if name.endswith(CLIENT_NUMBERS)):
            counts = self.processes.gather_numbers([len(tensors[name])])[:, 0].tolist()
            numbers = torch.cat(self._gather(tensors[name], counts))
            order = numbers.argsort()
            complete[name], rows = numbers[order], torch.cat([torch.zeros(1, dtype=torch.int64), order + 1])
            for table in _tables(name, tensors):
                states = torch.cat([tensors[table][:1].cpu(), *self._gather(tensors[table][1:], counts)])
                complete[table] = states[rows]
        if self._folder:
            self._folder.save(complete)

    def _gather(self, rows: Tensor, counts: list[int]) -> list[Tensor]:
        """Return the rows of all ranks on rank 0, no rows on other ranks; `counts` are the numbers of rows per rank."""
        senders = [rank for rank, count in enumerate(counts) if count] if self.processes.leads else []
        received = {rank: _empty_rows(counts[rank], rows) for rank in senders}
        self.processes.send_and_receive({0: rows.cpu().contiguous()} if len(rows) else {}, received)
        return [_empty_rows(0, rows), *received.values()]

    def load(self) -> dict[str, Tensor] | None:
        """Return the checkpoint's tensors, with only the clients that this rank owns; None if there is none yet."""
        stored = self._folder.load() if self._folder else None
        layout = self.processes.broadcast_value(
            lambda: stored and {name: _shape_and_dtype(tensor) for name, tensor in stored.items()}
        )
        if layout is None:
            return None
        tensors = stored or {name: _placeholder(*entry) for name, entry in layout.items()}
        own = {
            name: self._broadcast(tensor)
            for name, tensor in tensors.items()
            if CLIENTS not in name or name.endswith(CLIENT_NUMBERS)
        }
        for name in [name for name in own if name.endswith(CLIENT_NUMBERS)]:
            owners = torch.tensor([owner_rank(client, self.processes.size) for client in own[name].tolist()])
            own |= {table: self._scatter(tensors[table], owners) for table in _tables(name, tensors)}
            own[name] = own[name][owners == self.processes.rank]
        return own

    def _broadcast(self, tensor: Tensor) -> Tensor:
        """Return rank 0's tensor on every rank."""
        return self.processes.broadcast(tensor if self.processes.leads else torch.empty_like(tensor, device="cpu"))

    def _scatter(self, table: Tensor, owners: Tensor) -> Tensor:
        """Return the initial state and the rows of a table that this rank owns."""
        masks = {rank: _with_initial(owners == rank) for rank in range(self.processes.size)}
        outgoing = {rank: table[mask] for rank, mask in masks.items()} if self.processes.leads else {}
        own = _empty_rows(int(masks[self.processes.rank].sum()), table)
        return self.processes.send_and_receive(outgoing, {0: own})[0]


def open_folder(
    processes: ProcessGroup, path: Path, config: str, resume: bool, data: str = ""
) -> RunFolder | SharedFolder:
    """Open the folder of a run that one process or several train, and that may get more rounds and seeds.

    The arguments are those of RunFolder.
    """
    if processes.size == 1:
        return RunFolder(path, config, resume, MAY_GROW, data)
    return SharedFolder(processes, lambda: RunFolder(path, config, resume, MAY_GROW, data))


def _tables(client_numbers: str, names: Iterable[str]) -> list[str]:
    """The names of the tables whose rows belong to a list of clients."""
    prefix = client_numbers.removesuffix("clients")
    return [name for name in names if name.startswith(prefix) and name != client_numbers]


def _with_initial(clients: Tensor) -> Tensor:
    """A mask over the rows of a table, from one over clients: row 0, the initial state, is always chosen."""
    return torch.cat([torch.ones(1, dtype=torch.bool), clients])


def _empty_rows(count: int, like: Tensor) -> Tensor:
    """Rows in the memory of the CPU, to be received into."""
    return torch.empty(count, *like.shape[1:], dtype=like.dtype)


def _shape_and_dtype(tensor: Tensor) -> tuple[list[int], str]:
    """Shape and type as values that can be broadcast as JSON."""
    return list(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _placeholder(shape: list[int], dtype: str) -> Tensor:
    """A tensor without memory, for a rank that does not read the checkpoint."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
