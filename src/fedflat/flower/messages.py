"""What travels between server and nodes, as Flower's records of named arrays (32-bit floats, 64-bit integers)."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from numpy.lib import format as npy
from torch import Tensor

from fedflat.core.state import pack_state, unpack_state
from fedflat.data.dataset import Dataset

WIRE_TYPES = (torch.float32, torch.int64)


NPY_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class MalformedRecord(ValueError):
    """A record that is not what was asked for; the message says in what."""


def record_of(state: Any) -> ArrayRecord:
    """The tensors of a (nested) NamedTuple under their dotted names."""
    return tensors_to_record(pack_state(state))


def tensors_to_record(named: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as a record; Flower cannot carry bfloat16, and no method needs another type."""
    for name, tensor in named.items():
        if tensor.dtype not in WIRE_TYPES:
            raise MalformedRecord(f"{name} has type {tensor.dtype}, allowed are float32 and int64")
    return ArrayRecord({name: Array(np.array(tensor.detach().cpu().numpy())) for name, tensor in named.items()})


def record_to_tensors(given: ArrayRecord) -> dict[str, Tensor]:
    """The inverse of `arrays`."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in given.items()}


def record_to_state(given: ArrayRecord, like: Any) -> Any:
    """The state with the structure of `like`; raises Malformed unless names, shapes and types are the same."""
    expected = pack_state(like)
    if given.keys() != expected.keys():
        raise MalformedRecord(f"it holds {', '.join(given) or 'nothing'} instead of {', '.join(expected)}")
    named = {}
    for name, array in given.items():
        named[name] = _tensor(name, array, expected[name])
    return unpack_state(like, named)


def _tensor(name: str, array: Array, like: Tensor) -> Tensor:
    """One array, which must look like `like`."""
    wanted = str(like.dtype).removeprefix("torch.")
    return torch.from_numpy(decode_npy(name, array.data, wanted, tuple(like.shape))).to(like.device)


def decode_npy(name: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array in the bytes of an .npy file; raises Malformed for any others.

    They come from another machine: nothing is allocated before their header is known to say `dtype` and `shape`.
    """
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        found, columns_first, type_found = NPY_HEADERS[version](file)
    except Exception as error:  # numpy raises a dozen kinds, and all of them are the sender's fault
        raise MalformedRecord(f"{name} cannot be read ({type(error).__name__}: {error})") from None
    if (type_found.name, found) != (dtype, shape):
        raise MalformedRecord(f"{name} is {type_found.name} {list(found)} instead of {dtype} {list(shape)}")
    values = data[file.tell() :]
    if len(values) != math.prod(shape) * type_found.itemsize:
        raise MalformedRecord(f"{name} cannot be read ({len(values)} bytes of values)")
    ordered = np.frombuffer(values, type_found).reshape(shape, order="F" if columns_first else "C")
    return ordered.astype(dtype)


def sample_kind(data: Dataset) -> str:
    """What a sample is; pixels from 0 to 255 (uint8) and floats are normalised differently, so it has the type too."""
    return f"{str(data.x.dtype).removeprefix('torch.')} {list(data.shape)}"


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """One client's work in one exchange, and what all must agree on about the data."""

    run: str
    seed: int
    round: int
    exchange: int
    turn: int
    accepted: int
    """Turn of the client's last reply that the server took, -1 for none."""
    population: int
    classes: int
    names: list[str]
    """What the classes are called, in the order of their labels."""
    samples: str
    """Type and shape of a sample."""
    mean: list[float]
    std: list[float]

    def record(self) -> ConfigRecord:
        """As a record."""
        return ConfigRecord({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def read(cls, given: ConfigRecord) -> TrainRequest:
        """The inverse."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class ClientInfo:
    """Who replies, and with how much work behind it."""

    client: int
    examples: int
    lost: int = 0
    """1 where the state that the server counts on is gone and the client began afresh."""

    def record(self) -> MetricRecord:
        """As a record."""
        return MetricRecord({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def read(cls, given: Any) -> ClientInfo:
        """The inverse; raises ValueError for what is no such record."""
        said = {field.name: given.get(field.name) for field in fields(cls)}
        if wrong := [f"{name} = {value!r:.40}" for name, value in said.items() if type(value) is not int or value < 0]:
            raise ValueError(f"it does not say who it is from ({', '.join(wrong)})")
        facts = cls(**said)
        if facts.examples < 1:
            raise ValueError(f"it says it comes from {facts.examples} examples")
        return facts
