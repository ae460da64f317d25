"""What travels, counted on real messages rather than asserted."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.engine.state import nbytes
from fedflat.local import SGD, finish, start
from fedflat.method import Method


class Traffic(NamedTuple):
    """Bytes per client and round, and what a client keeps between rounds."""

    down: int
    up: int
    kept: int


def messages(method: Method, params: Tensor) -> tuple[Any, Any, Any]:
    """A message, a reply to it and a client's state, as the method makes them for this model."""
    client = method.init_client(params)
    message = method.broadcast(method.init_server(params))
    one = torch.ones((), dtype=params.dtype, device=params.device)
    reply, kept = finish(method, SGD(one, 0.0, 0.0), start(message, client), message, one)
    return message, reply, kept


def traffic(method: Method, params: Tensor) -> Traffic:
    """Bytes of everything that a client receives, sends and keeps."""
    message, reply, kept = messages(method, params)
    return Traffic(method.exchanges * nbytes(message), method.exchanges * nbytes(reply), nbytes(kept))
