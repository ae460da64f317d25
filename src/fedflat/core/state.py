"""Operations on states and messages: name, stack and count their tensors; and the store of all clients' states.

A state is a tensor, or a NamedTuple or tuple of states; () is the empty state. Messages and replies are built alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def checksum(named: Mapping[str, Tensor], config: str = "") -> int:
    """Return the CRC-32 of a text and of the names and bytes of tensors.

    Args:
        named: tensors on the CPU by name; their order does not matter.
        config: text that the checksum covers too, such as a run's configuration.
    """
    crc = zlib.crc32(config.encode())
    for name in sorted(named):
        tensor = named[name].view(torch.int16) if named[name].dtype == torch.bfloat16 else named[name]  # numpy has none
        crc = zlib.crc32(tensor.numpy().tobytes(), zlib.crc32(name.encode(), crc))
    return crc


def send_to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return `values` as a tensor on `device`, without waiting for a GPU.

    Args:
        values: what torch.as_tensor takes: numbers, lists, arrays, tensors.
        device: where the tensor is wanted.
        dtype: its type; torch's choice unless given.
    """
    return move_to_device(torch.as_tensor(values, dtype=dtype), device)


def move_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor` on `device`. Copies to a GPU go through pinned memory, so that the program does not wait.

    Args:
        tensor: a tensor on the CPU or on `device`.
        device: where it is wanted.
    """
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pack_state(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a state by name: Server(params, inner=Client(sigma)) → {"params": …, "inner.sigma": …}.

    Args:
        state: the state; members of a plain tuple are named by their position.
        prefix: the name of the state itself, put before the others with a dot.
    """
    if isinstance(state, Tensor):
        return {prefix: state}
    names = getattr(state, "_fields", range(len(state)))
    parts = (
        pack_state(value, f"{prefix}.{name}" if prefix else str(name)) for name, value in zip(names, state, strict=True)
    )
    return {name: tensor for part in parts for name, tensor in part.items()}


def state_tensors(state: Any) -> list[Tensor]:
    """Return the tensors of a state, in order."""
    return list(pack_state(state).values())


def bookkeeping_names(reply: Any, bookkeeping: Collection[str]) -> list[str]:
    """Return the full names of the tensors of a reply that a method declares as bookkeeping.

    Args:
        reply: a reply, or stacked ones; that of a wrapper may have them inside, as `inner.steps`.
        bookkeeping: what `Method.bookkeeping` declares.
    """
    return [name for name in pack_state(reply) if name.rpartition(".")[2] in bookkeeping]


def unpack_state(like: Any, named: Mapping[str, Tensor], prefix: str = "") -> Any:
    """Return a state from named tensors: the inverse of `pack_state`.

    Args:
        like: a state with the structure that is wanted.
        named: its tensors by name, as `pack_state` names them.
        prefix: as in `pack_state`.
    """
    if isinstance(like, Tensor):
        return named[prefix]
    names = getattr(like, "_fields", range(len(like)))
    values = [
        unpack_state(value, named, f"{prefix}.{name}" if prefix else str(name))
        for name, value in zip(names, like, strict=True)
    ]
    return _tuple_like(like, values)


def _tuple_like(like: Any, values: Sequence[Any]) -> Any:
    """Return a tuple of these values of the type of `like`."""
    return type(like)(*values) if hasattr(like, "_fields") else tuple(values)


def tree_map(function: Callable[..., Tensor], state: Any, *others: Any) -> Any:
    """Return the state whose tensors are function(tensor, tensors of `others` at the same place).

    Args:
        function: takes as many tensors as there are states.
        state: the first state.
        others: more states of the same structure.
    """
    if isinstance(state, Tensor):
        return function(state, *others)
    return _tuple_like(state, [tree_map(function, *parts) for parts in zip(state, *others, strict=True)])


def stack_states(states: Sequence[Any]) -> Any:
    """Return one state whose tensors have a leading axis over `states`: [P] becomes [len(states), P].

    Args:
        states: at least one; all have the same structure and shapes.
    """
    return tree_map(lambda *tensors: torch.stack(tensors), *states)


def states_to_rows(states: Any) -> Tensor:
    """Return stacked states as a matrix with one row for each state.

    Args:
        states: what `stack_states` returns.
    """
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in pack_state(states).values()], 1)


def rows_to_states(like: Any, rows: Tensor) -> Any:
    """Return stacked states from the rows of a matrix: the inverse of `states_to_rows`.

    Args:
        like: one state (not stacked) with the structure and shapes that are wanted.
        rows: [states, numbers of one state].
    """
    tensors = pack_state(like)
    parts = rows.split([tensor.numel() for tensor in tensors.values()], 1)
    shaped = {
        name: part.reshape(len(rows), *tensor.shape)
        for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }
    return unpack_state(like, shaped)


def count_bytes(state: Any) -> int:
    """Return the bytes of all tensors of a message or state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pack_state(state).values())


def _extend(table: Tensor, rows: int) -> Tensor:
    """Return `table` with rows of zeros after its own, `rows` in all."""
    new = table.new_zeros(rows, *table.shape[1:])
    new[: len(table)] = table
    return new


class ClientStore:
    """The states of all clients of one trial. Only clients that have taken part occupy memory.

    There is one table for each tensor of a state. Its row 0 is the initial state, which all clients share that have not
    taken part; `rows` gives the row of every other client. Tables grow by doubling.

    Args:
        initial: the state of a client that has not taken part.
        device: where the tables are kept, by default where `initial` is. With another device (the CPU, for clients
            trained on a GPU), states are copied to that of `initial` when gathered, and back when scattered.
        max_clients: the number of all clients, beyond which tables need not grow.
    """

    def __init__(self, initial: Any, device: torch.device | None = None, max_clients: int | None = None) -> None:
        tensors = state_tensors(initial)
        self.initial, self.device = initial, device or (tensors[0].device if tensors else torch.device("cpu"))
        self.rows: dict[int, int] = {}
        self._max_clients = max_clients
        self._table = tree_map(lambda tensor: tensor[None].to(self.device, copy=True), initial)

    def gather(self, clients: Sequence[int]) -> Any:
        """Return the states of `clients`, stacked, on the device of the initial state."""
        return tree_map(
            lambda table, like: move_to_device(table[self._rows(clients, table.device)], like.device),
            self._table,
            self.initial,
        )

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store the states of `clients`, which come stacked as `gather` returns them."""
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
        """Double the tables until every row fits. Meanwhile a tensor's old and new table are both in memory."""
        capacity = len(state_tensors(self._table)[0])
        if capacity > len(self.rows):
            return
        while capacity <= len(self.rows):
            capacity *= 2
        limit = capacity if self._max_clients is None else max(self._max_clients, len(self.rows)) + 1
        rows = min(capacity, limit)
        self._table = tree_map(lambda table: _extend(table, rows), self._table)

    def pack(self) -> dict[str, Tensor]:
        """Return the store as named tensors, of which `unpack` restores it: client numbers and used rows."""
        used = {f"table.{name}": table[: len(self.rows) + 1] for name, table in pack_state(self._table).items()}
        return {"clients": torch.tensor(list(self.rows), dtype=torch.int64), **used}

    def unpack(self, named: Mapping[str, Tensor]) -> None:
        """Replace all states by those that `pack` returned.

        Args:
            named: what `pack` returned, on any device.
        """
        self.rows = {client: row for row, client in enumerate(named["clients"].tolist(), 1)}
        tables = {name.removeprefix("table."): tensor for name, tensor in named.items() if name != "clients"}
        self._table = unpack_state(
            self._table, {name: tensor.to(self.device, copy=True) for name, tensor in tables.items()}
        )
