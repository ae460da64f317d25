"""States and messages as named tensors: packing, stacking, bytes, checksum, and the store of what clients keep."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def checksum(named: Mapping[str, Tensor], config: str = "") -> int:
    """CRC-32 over the configuration, names and bytes."""
    crc = zlib.crc32(config.encode())
    for name in sorted(named):
        crc = zlib.crc32(named[name].numpy().tobytes(), zlib.crc32(name.encode(), crc))
    return crc


def send_to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`values` as a tensor on `device`; a GPU is not waited for."""
    return move_to_device(torch.as_tensor(values, dtype=dtype), device)


def move_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`; from the host through pinned memory, so that a GPU is not waited for."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pack_state(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Named tensors of a (nested) NamedTuple: Server(params, inner=Client(sigma)) → {params, inner.sigma}."""
    if isinstance(state, Tensor):
        return {prefix: state}
    names = getattr(state, "_fields", range(len(state)))
    parts = (
        pack_state(value, f"{prefix}.{name}" if prefix else str(name)) for name, value in zip(names, state, strict=True)
    )
    return {name: tensor for part in parts for name, tensor in part.items()}


def state_tensors(state: Any) -> list[Tensor]:
    """The tensors of a state, in order."""
    return list(pack_state(state).values())


def unpack_state(like: Any, named: Mapping[str, Tensor], prefix: str = "") -> Any:
    """The state with the structure of `like` and the tensors of `named`; the inverse of `pack`."""
    if isinstance(like, Tensor):
        return named[prefix]
    names = getattr(like, "_fields", range(len(like)))
    values = [
        unpack_state(value, named, f"{prefix}.{name}" if prefix else str(name))
        for name, value in zip(names, like, strict=True)
    ]
    return rebuild_tuple(like, values)


def rebuild_tuple(like: Any, values: Sequence[Any]) -> Any:
    """A tuple of `like`'s type."""
    return type(like)(*values) if hasattr(like, "_fields") else tuple(values)


def tree_map(function: Callable[..., Tensor], state: Any, *others: Any) -> Any:
    """Apply `function` to corresponding tensors of equally built states."""
    if isinstance(state, Tensor):
        return function(state, *others)
    return rebuild_tuple(state, [tree_map(function, *parts) for parts in zip(state, *others, strict=True)])


def stack_states(states: Sequence[Any]) -> Any:
    """One state whose tensors have a leading axis over `states`."""
    return tree_map(lambda *tensors: torch.stack(tensors), *states)


def states_to_rows(states: Any) -> Tensor:
    """Stacked states as a matrix, one row each."""
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in pack_state(states).values()], 1)


def rows_to_states(like: Any, rows: Tensor) -> Any:
    """Stacked states from the rows of a matrix, each state built like `like`; the inverse of `to_rows`."""
    tensors = pack_state(like)
    parts = rows.split([tensor.numel() for tensor in tensors.values()], 1)
    shaped = {
        name: part.reshape(len(rows), *tensor.shape)
        for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }
    return unpack_state(like, shaped)


def count_bytes(state: Any) -> int:
    """Bytes of all tensors of a message or state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pack_state(state).values())


def _longer(table: Tensor, rows: int) -> Tensor:
    """`table` with rows of zeros after its own."""
    new = table.new_zeros(rows, *table.shape[1:])
    new[: len(table)] = table
    return new


class ClientStore:
    """States of all clients of one trial. Only clients that have taken part occupy memory; the others share `initial`.

    Rows of one growing table per tensor, of no more than `most` clients: row 0 is the initial state, `rows` numbers the
    others. The table is where `initial` is, or at `home`: states then travel to the former when they are asked for, and
    back.
    """

    def __init__(self, initial: Any, home: torch.device | None = None, most: int | None = None) -> None:
        tensors = list(pack_state(initial).values())
        self.initial, self.home = initial, home or (tensors[0].device if tensors else torch.device("cpu"))
        self.rows: dict[int, int] = {}
        self._most = most
        self._table = tree_map(lambda tensor: tensor[None].to(self.home, copy=True), initial)

    def gather(self, clients: Sequence[int]) -> Any:
        """The states of `clients`, stacked."""
        return tree_map(
            lambda table, like: move_to_device(table[self._rows(clients, table.device)], like.device),
            self._table,
            self.initial,
        )

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store stacked `states` of `clients`."""
        if not pack_state(self.initial):
            return
        for client in clients:
            self.rows.setdefault(client, len(self.rows) + 1)
        self._grow()
        tree_map(
            lambda table, new: table.index_copy_(0, self._rows(clients, table.device), new.to(table.device)),
            self._table,
            states,
        )

    def _rows(self, clients: Sequence[int], device: torch.device) -> Tensor:
        return send_to_device([self.rows.get(client, 0) for client in clients], device)

    def _grow(self) -> None:
        """Double the tables until every row fits; both the old and the new one of a tensor are held meanwhile."""
        capacity = next(iter(pack_state(self._table).values())).shape[0]
        if capacity > len(self.rows):
            return
        while capacity <= len(self.rows):
            capacity *= 2
        enough = capacity if self._most is None else min(capacity, max(self._most, len(self.rows)) + 1)
        self._table = tree_map(lambda table: _longer(table, enough), self._table)

    def pack(self) -> dict[str, Tensor]:
        """Everything needed to restore the store."""
        used = {f"table.{name}": table[: len(self.rows) + 1] for name, table in pack_state(self._table).items()}
        return {"clients": torch.tensor(list(self.rows), dtype=torch.int64), **used}

    def unpack(self, named: Mapping[str, Tensor]) -> None:
        """Restore what `pack` gave."""
        self.rows = {client: row for row, client in enumerate(named["clients"].tolist(), 1)}
        tables = {name.removeprefix("table."): tensor for name, tensor in named.items() if name != "clients"}
        self._table = unpack_state(
            self._table, {name: tensor.to(self.home, copy=True) for name, tensor in tables.items()}
        )
