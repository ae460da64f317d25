"""Validation of replies: what the server checks before a reply may count.

A reply must answer this request (its key), be signed by the client that was asked and claim the number of examples that
the client declared. It must have the names, shapes and types of the method's replies, and values that are finite and
within bounds. Bookkeeping must be what the server computes itself for a client that was asked for so many steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedflat.core.state import pack_state, stack_states
from fedflat.core.vectors import norm
from fedflat.engine.aggregation import reply_norms
from fedflat.flower.messages import INFO_KEY, ClientInfo, TrainRequest, record_to_state
from fedflat.flower.secure_aggregation import QUANTIZATION_STEP

ROUNDING = 1e-4  # share by which a clipped reply may be too long, or bookkeeping differ: numbers travel in float32


class ReplyLimits(NamedTuple):
    """What replies of a method look like, and how large they may be.

    Args:
        like: a reply of the method; names, shapes and types must be the same.
        max_ratio: no tensor may have a norm above max_ratio · max(1, ‖model‖).
        longest: the bound on a reply's norm that clients of a private method keep, infinite for others.
        bookkeeping: names of tensors that are not part of that norm.
    """

    like: Any
    max_ratio: float
    longest: float
    bookkeeping: tuple[str, ...]


class CheckedReply(NamedTuple):
    """A client's reply after validation.

    Args:
        reply: the method's reply, None if it is refused.
        info: the ClientInfo that came with it, None if there is none.
        norm: the norm of the reply without bookkeeping, None if it is not known.
        problem: why it is refused, "" if it counts.
    """

    reply: Any
    info: ClientInfo | None
    norm: float | None
    problem: str = ""


def validate_reply(
    content: RecordDict,
    client: int,
    declared: int,
    request: TrainRequest,
    model: Tensor,
    limits: ReplyLimits,
    bookkeeping: Mapping[str, Tensor],
) -> CheckedReply:
    """Return the reply in `content`, or why it is refused.

    Args:
        content: what the node sent.
        client: the client that was asked.
        declared: the number of examples that it declared at its first answer.
        request: what it was asked.
        model: the parameters [P] that were sent.
        limits: what a reply may be.
        bookkeeping: the tensors of an honest reply that follow from the request alone, by name.
    """
    info = length = None
    try:
        if "reply" not in content.array_records or INFO_KEY not in content.metric_records:
            raise ValueError(f"it holds {', '.join(content) or 'nothing'} instead of reply, {INFO_KEY}")
        info = ClientInfo.read(content[INFO_KEY])
        reply = record_to_state(content["reply"], limits.like)
        length = float(reply_norms(stack_states([reply]), limits.bookkeeping)[0])
        info.check_answers(request)
        info.check_claims(client, declared)
        for name, tensor in pack_state(reply).items():
            if name in bookkeeping:
                _check_bookkeeping(name, float(tensor), float(bookkeeping[name]), request.steps)
            else:
                _check_tensor(name, tensor, limits.max_ratio * max(1.0, float(norm(model))))
        if length > limits.longest * (1 + ROUNDING):
            raise ValueError(f"it has norm {length:.3g}, dpfedavg's clients send at most {limits.longest:g}")
    except ValueError as error:
        return CheckedReply(None, info, length, str(error))
    return CheckedReply(reply, info, length)


def mean_problem(mean: Any, model: Tensor, limits: ReplyLimits) -> str:
    """Return why this is not the mean of valid replies, "" if it can be: a mean is no longer than the longest of them.

    Under secure aggregation this is all that the server can check.

    Args:
        mean: what takes the place of the replies.
        model: the parameters [P] that were sent.
        limits: what a reply may be.
    """
    length = float(reply_norms(stack_states([mean]), limits.bookkeeping)[0])
    try:
        for name, tensor in pack_state(mean).items():
            if tensor.numel() > 1:
                _check_tensor(name, tensor, limits.max_ratio * max(1.0, float(norm(model))))
        if length > limits.longest * (1 + ROUNDING) + 2 * QUANTIZATION_STEP * math.sqrt(len(model)):
            raise ValueError(f"it has norm {length:.3g}, that of dpfedavg's replies is at most {limits.longest:g}")
    except ValueError as error:
        return str(error)
    return ""


def _check_bookkeeping(name: str, claimed: float, expected: float, steps: int) -> None:
    if not math.isclose(claimed, expected, rel_tol=ROUNDING):
        raise ValueError(f"{name} is {claimed:g}, a client that was asked for {steps} steps sends {expected:g}")


def _check_tensor(name: str, tensor: Tensor, limit: float) -> None:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(f"{name} has {bad} of {tensor.numel()} values that are not finite")
    if name.endswith("running_var") and bool((tensor < 0).any()):
        raise ValueError(f"{name} has values below 0, which no variance has")
    length = float(norm(tensor.reshape(-1).double()))
    if length > limit:
        raise ValueError(f"{name} has length {length:.3g}, more than the {limit:.3g} allowed")
