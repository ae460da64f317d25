"""Messages, replies and states as Flower's records: named arrays of 32-bit floats or 64-bit integers."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from fedflat.core.state import pack_state, unpack_state

ALLOWED = (torch.float32, torch.int64)


HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Malformed(ValueError):
    """A record that is not what was asked for; the message says in what."""


def record(state: Any) -> ArrayRecord:
    """The tensors of a (nested) NamedTuple under their dotted names."""
    return arrays(pack_state(state))


def arrays(named: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as a record; Flower cannot carry bfloat16, and no method needs another type."""
    for name, tensor in named.items():
        if tensor.dtype not in ALLOWED:
            raise Malformed(f"{name} has type {tensor.dtype}, allowed are float32 and int64")
    return ArrayRecord({name: Array(np.array(tensor.detach().cpu().numpy())) for name, tensor in named.items()})


def tensors(given: ArrayRecord) -> dict[str, Tensor]:
    """The inverse of `arrays`."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in given.items()}


def state(given: ArrayRecord, like: Any) -> Any:
    """The state with the structure of `like`; raises Malformed unless names, shapes and types are the same."""
    expected = pack_state(like)
    if given.keys() != expected.keys():
        raise Malformed(f"it holds {', '.join(given) or 'nothing'} instead of {', '.join(expected)}")
    named = {}
    for name, array in given.items():
        named[name] = _tensor(name, array, expected[name])
    return unpack_state(like, named)


def _tensor(name: str, array: Array, like: Tensor) -> Tensor:
    """One array, which must look like `like`."""
    wanted = str(like.dtype).removeprefix("torch.")
    return torch.from_numpy(decoded(name, array.data, wanted, tuple(like.shape))).to(like.device)


def decoded(name: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array in the bytes of an .npy file; raises Malformed for any others.

    They come from another machine: nothing is allocated before their header is known to say `dtype` and `shape`.
    """
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        found, columns_first, type_found = HEADERS[version](file)
    except Exception as error:  # numpy raises a dozen kinds, and all of them are the sender's fault
        raise Malformed(f"{name} cannot be read ({type(error).__name__}: {error})") from None
    if (type_found.name, found) != (dtype, shape):
        raise Malformed(f"{name} is {type_found.name} {list(found)} instead of {dtype} {list(shape)}")
    values = data[file.tell() :]
    if len(values) != math.prod(shape) * type_found.itemsize:
        raise Malformed(f"{name} cannot be read ({len(values)} bytes of values)")
    ordered = np.frombuffer(values, type_found).reshape(shape, order="F" if columns_first else "C")
    return ordered.astype(dtype)
