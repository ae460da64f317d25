"""Which replies the server takes. One bad reply must neither stop a round nor reach the mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedflat.core.state import pack_state
from fedflat.core.vectors import norm
from fedflat.flower.order import Facts
from fedflat.flower.wire import state


class Good(NamedTuple):
    """A reply that is taken."""

    reply: Any
    facts: Facts


def judge(content: RecordDict, client: int, like: Any, model: Tensor, max_ratio: float) -> Good:
    """The reply in `content`; raises ValueError that says why it is refused.

    Names, shapes and types must be those of `like`, all values finite, and no tensor longer than max_ratio times the
    model (or than max_ratio, where the model is shorter than 1).
    """
    if "reply" not in content.array_records or "facts" not in content.metric_records:
        raise ValueError(f"it holds {', '.join(content) or 'nothing'} instead of reply, facts")
    facts = Facts.read(content["facts"])
    if facts.client != client:
        raise ValueError(f"it is signed by client {facts.client}")
    reply = state(content["reply"], like)
    limit = max_ratio * max(1.0, float(norm(model)))
    for name, tensor in pack_state(reply).items():
        _check(name, tensor, limit)
    return Good(reply, facts)


def _check(name: str, tensor: Tensor, limit: float) -> None:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(f"{name} has {bad} of {tensor.numel()} values that are not finite")
    length = float(norm(tensor.reshape(-1).double()))
    if length > limit:
        raise ValueError(f"{name} has length {length:.3g}, more than the {limit:.3g} allowed")
