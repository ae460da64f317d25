"""What server and nodes send each other, as Flower's records: named arrays, requests to clients, and their answers.

Arrays are 32-bit floats or 64-bit integers. A request goes with the method's message to the client; a ClientInfo comes
with its reply.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from numpy.lib import format as npy
from torch import Tensor

from fedflat.core.state import pack_state, unpack_state
from fedflat.data.arrays import input_tensors
from fedflat.data.dataset import Dataset
from fedflat.errors import UserError

REQUEST_KEY, INFO_KEY = "order", "facts"  # records in a message's content; nodes of older versions know these names
MOST_EXAMPLES = 10**9  # that a client may claim to have
WIRE_TYPES = (torch.float32, torch.int64)
NPY_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class ReportedError(UserError):
    """An error on a node whose text is sent to the server: it names no path, no class and nothing of the samples.

    Of every other error the server learns only that there was one; the node's own log has it.
    """


class MalformedRecord(ValueError):
    """A record does not have the expected arrays; the message says how it differs."""


def state_to_record(state: Any) -> ArrayRecord:
    """Return the tensors of a (nested) NamedTuple under their dotted names."""
    return tensors_to_record(pack_state(state))


def tensors_to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as a record; raise MalformedRecord for types other than WIRE_TYPES.

    Flower cannot send bfloat16, and no method sends another type.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in WIRE_TYPES:
            raise MalformedRecord(f"{name} has type {tensor.dtype}, allowed are float32 and int64")
    return ArrayRecord({name: Array(np.array(tensor.detach().cpu().numpy())) for name, tensor in tensors.items()})


def record_to_tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """Return the tensors of a record; the inverse of `tensors_to_record`."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}


def record_to_state(record: ArrayRecord, like: Any) -> Any:
    """Return the record's arrays as a NamedTuple with the structure and devices of `like`.

    Raises MalformedRecord unless names, shapes and types are those of `like`.
    """
    expected = pack_state(like)
    if record.keys() != expected.keys():
        raise MalformedRecord(f"it holds {', '.join(record) or 'nothing'} instead of {', '.join(expected)}")
    tensors = {}
    for name, array in record.items():
        dtype, shape = str(expected[name].dtype).removeprefix("torch."), tuple(expected[name].shape)
        tensors[name] = torch.from_numpy(decode_npy(name, array.data, dtype, shape)).to(expected[name].device)
    return unpack_state(like, tensors)


def decode_npy(name: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array in the bytes of an .npy file; raise MalformedRecord if they are not one of this type and shape.

    The bytes come from another machine. So the header is checked before any memory is allocated for the values.

    Args:
        name: what errors call the array.
        data: the bytes.
        dtype: the expected type, as numpy writes it ("float32").
        shape: the expected shape.
    """
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        found_shape, fortran_order, found_type = NPY_HEADER_READERS[version](file)
    except Exception as error:  # numpy raises a dozen kinds of exceptions, and the sender is at fault for all of them
        raise MalformedRecord(f"{name} cannot be read ({type(error).__name__}: {error})") from None
    if (found_type.name, found_shape) != (dtype, shape):
        raise MalformedRecord(f"{name} is {found_type.name} {list(found_shape)} instead of {dtype} {list(shape)}")
    values = data[file.tell() :]
    if len(values) != math.prod(shape) * found_type.itemsize:
        raise MalformedRecord(f"{name} cannot be read ({len(values)} bytes of values)")
    array = np.frombuffer(values, found_type).reshape(shape, order="F" if fortran_order else "C")
    return array.astype(dtype)


def sample_kind(data: Dataset) -> str:
    """Return type and shape of a sample, such as "uint8 [1, 28, 28]".

    The type matters because pixels from 0 to 255 (uint8) and floats are normalised differently.
    """
    dtypes = [str(t.dtype).removeprefix("torch.") for t in input_tensors(data.x)]
    return f"{' '.join(dtypes)} {list(data.shape)}"


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What a client needs to know besides the method's message: the exchange, and the properties of all clients' data.

    The field names are also names in the records that are sent.
    """

    run: str
    """Random name of the run, under which nodes store their clients' states."""
    seed: int
    round: int
    """Round, counted from 0."""
    exchange: int
    """Exchange within the round, counted from 0."""
    turn: int
    """Number of this exchange in the whole run: round · exchanges per round + exchange."""
    key: int
    """Random number of this request, which the reply repeats: a reply to an earlier request has another."""
    accepted: int
    """Turn of the client's last reply that the server accepted, -1 for none."""
    steps: int
    """Local steps to take; 0 where the client is not asked to train."""
    lr: float
    """The client's learning rate in the first round, which schedules change."""
    population: int
    """Clients in the whole federation."""
    classes: int
    names: list[str]
    """Names of the classes, in the order of their labels."""
    samples: str
    """Type and shape of a sample, see `sample_kind`."""
    mean: list[float]
    """Mean of each channel, by which all clients normalise."""
    std: list[float]
    """Standard deviation of each channel, by which all clients normalise."""

    def record(self) -> ConfigRecord:
        """Return the request as a record."""
        return ConfigRecord(asdict(self))

    @classmethod
    def read(cls, record: ConfigRecord) -> TrainRequest:
        """Return the request in a record."""
        return cls(**{field.name: record[field.name] for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class ClientInfo:
    """Which client replies, and on how many examples it trains. The field names are also names in the records."""

    client: int
    examples: int
    turn: int = 0
    """Turn of the request that this answers."""
    key: int = 0
    """Key of the request that this answers."""
    lost: int = 0
    """1 if the client did not find the state that belongs to its last accepted reply and began with the initial one."""

    def record(self) -> MetricRecord:
        """Return the information as a record."""
        return MetricRecord(asdict(self))

    @classmethod
    def read(cls, record: Any) -> ClientInfo:
        """Return the information in a record; raise ValueError unless it holds plausible numbers."""
        values = {field.name: record.get(field.name) for field in fields(cls)}
        if wrong := [f"{name} = {v!r:.40}" for name, v in values.items() if type(v) is not int or v < 0]:
            raise ValueError(f"it does not say who it is from ({', '.join(wrong)})")
        info = cls(**values)
        if not 1 <= info.examples <= MOST_EXAMPLES:
            raise ValueError(f"it says it comes from {info.examples} examples, possible are 1 to {MOST_EXAMPLES}")
        return info

    def check_answers(self, request: TrainRequest) -> None:
        """Raise ValueError unless this came with the answer to `request`, and not to an earlier one."""
        if (self.turn, self.key) != (request.turn, request.key):
            raise ValueError(f"it answers another request (turn {self.turn}; asked was turn {request.turn})")

    def check_claims(self, client: int, declared: int) -> None:
        """Raise ValueError unless this is signed by `client` and claims the number of examples that it declared."""
        if self.client != client:
            raise ValueError(f"it is signed by client {self.client}")
        if self.examples != declared:
            raise ValueError(f"it claims {self.examples} examples, its client declared {declared}")
