"""Messages, replies and states as Flower's records: named arrays of 32-bit floats or 64-bit integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedflat.engine.state import pack, unpack

ALLOWED = (torch.float32, torch.int64)


class Malformed(ValueError):
    """A record that is not what was asked for; the message says in what."""


def record(state: Any) -> ArrayRecord:
    """The tensors of a (nested) NamedTuple under their dotted names."""
    return arrays(pack(state))


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
    expected = pack(like)
    if given.keys() != expected.keys():
        raise Malformed(f"it holds {', '.join(given) or 'nothing'} instead of {', '.join(expected)}")
    named = {}
    for name, array in given.items():
        named[name] = _tensor(name, array, expected[name])
    return unpack(like, named)


def _tensor(name: str, array: Array, like: Tensor) -> Tensor:
    """One array, which must look like `like`."""
    try:
        values = array.numpy()
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise Malformed(f"{name} cannot be read ({error})") from None
    found, wanted = (values.dtype.name, values.shape), (str(like.dtype).removeprefix("torch."), tuple(like.shape))
    if found != wanted:
        raise Malformed(f"{name} is {found[0]} {list(found[1])} instead of {wanted[0]} {list(wanted[1])}")
    return torch.from_numpy(np.array(values)).to(like.device)
