"""Replies that are lost, late or invalid: the log says why, and the round is as if that client had not been asked."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate

import fedflat as ff
from fedflat.engine.participation import choose_cohort

ROUND = 1  # the one in which something goes wrong, from 0
CLIENT = choose_cohort(0, ROUND, EXPERIMENT.clients, EXPERIMENT.cohort)[1]
STATEFUL = dataclasses.replace(EXPERIMENT, method=ff.SCAFFOLD(), rounds=4)


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]


def refused(out: Path) -> list[tuple[int, int, str]]:
    return [(row["round"], row["client"], row["note"]) for row in rows(out) if not row["accepted"]]


def in_one_round(wrong: Callable[[Message], Any]) -> Callable[[int, Message], Any]:
    """Let client CLIENT reply wrongly in round ROUND."""

    def change(client: int, reply: Message) -> Any:
        return wrong(reply) if client == CLIENT and reply.metadata.group_id == str(ROUND + 1) else reply

    return change


def values(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], Message]:
    def wrong(reply: Message) -> Message:
        record = reply.content["reply"]
        record["delta"] = Array(change(record["delta"].numpy()))
        return reply

    return wrong


def raises(reply: Message) -> None:
    raise ZeroDivisionError("no samples today")


def renamed(reply: Message) -> Message:
    reply.content["reply"] = ArrayRecord({"gradient": reply.content["reply"]["delta"]})
    return reply


def signed_by_another(reply: Message) -> Message:
    reply.content["facts"]["client"] = CLIENT + 1
    return reply


def from_examples(examples: float) -> Callable[[Message], Message]:
    def wrong(reply: Message) -> Message:
        reply.content["facts"]["examples"] = examples
        return reply

    return wrong


def without_reply(reply: Message) -> Message:
    del reply.content["reply"]
    return reply


def unreadable(reply: Message) -> Message:
    whole = reply.content["reply"]["delta"]
    reply.content["reply"]["delta"] = Array(whole.dtype, whole.shape, whole.stype, whole.data[:50])
    return reply


def with_bytes(data: bytes) -> Callable[[Message], Message]:
    """Return a change to a reply whose array claims the right type and shape but has other bytes."""

    def wrong(reply: Message) -> Message:
        array = reply.content["reply"]["delta"]
        reply.content["reply"]["delta"] = Array(array.dtype, array.shape, array.stype, data)
        return reply

    return wrong


def several_arrays() -> bytes:
    file = io.BytesIO()
    np.savez(file, delta=np.zeros(4810, np.float32))
    return file.getvalue()


def header(**changes: Any) -> bytes:
    """Return the header of an .npy file, without values."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file,
        {"descr": "<f4", "fortran_order": False, "shape": (4810,), **changes},  # type: ignore[arg-type]
    )
    return file.getvalue()


WRONG = {
    "nan": (values(lambda v: np.where(np.arange(v.size) == 3, np.nan, v).astype(v.dtype)), "1 of 4810 values"),
    "infinite": (values(lambda v: np.where(v > 0, np.float32(np.inf), v)), "are not finite"),
    "shape": (values(lambda v: v[:-1]), "delta is float32 [4809] instead of float32 [4810]"),
    "axes": (values(lambda v: v[None]), "delta is float32 [1, 4810] instead of float32 [4810]"),
    "type": (values(lambda v: v.astype(np.float64)), "delta is float64 [4810] instead of float32 [4810]"),
    "huge": (values(lambda v: v * np.float32(1e6)), "more than the"),
    "beyond float": (values(lambda v: np.full_like(v, 3e38)), "more than the"),
    "names": (renamed, "it holds gradient instead of delta"),
    "nothing": (without_reply, "it holds facts instead of reply, facts"),
    "unreadable": (unreadable, "delta cannot be read"),
    "several arrays": (with_bytes(several_arrays()), "delta cannot be read"),
    "no zip": (with_bytes(b"PK\x03\x04 nothing else"), "delta cannot be read"),
    "enormous": (with_bytes(header(shape=(10**13,))), "delta is float32 [10000000000000] instead of float32 [4810]"),
    "no values": (with_bytes(header()), "delta cannot be read (0 bytes of values)"),
    "objects": (with_bytes(header(descr="|O") + bytes(4810 * 8)), "delta is object [4810] instead of float32 [4810]"),
    "nested": (with_bytes(np.lib.format.magic(1, 0) + b"\xff\x1f" + b"(" * 0x1FFF), "delta cannot be read"),
    "another client": (signed_by_another, f"it is signed by client {CLIENT + 1}"),
    "no examples": (from_examples(0), "it says it comes from 0 examples"),
    "infinite examples": (from_examples(float("inf")), "it does not say who it is from (examples = inf)"),
    "raises": (raises, "ZeroDivisionError: no samples today"),
    "silent": (lambda reply: None, "no reply within 0.5 s"),
}


@pytest.mark.parametrize(("wrong", "reason"), WRONG.values(), ids=WRONG)
def test_an_invalid_reply_is_refused_and_the_round_continues(wrong: Any, reason: str, tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT, in_one_round(wrong))
    state = federate(grid, EXPERIMENT, tmp_path / "run", round_timeout=0.5 if reason.startswith("no reply") else 60.0)
    assert_same(state, simulate(EXPERIMENT, {ROUND: {CLIENT}}))
    ((round, client, note),) = refused(tmp_path / "run")
    assert (round, client) == (ROUND + 1, CLIENT)
    assert reason in note


@pytest.mark.parametrize("method", [ff.SCAFFOLD(), ff.FedGloSS(), ff.MOON()], ids=["scaffold", "fedgloss", "moon"])
def test_a_client_whose_reply_is_refused_keeps_its_old_state(method: ff.Method, tmp_path: Path) -> None:
    """Otherwise its control variate or dual variable would include a round that the server's does not."""
    experiment = dataclasses.replace(STATEFUL, method=method)
    grid = Loopback(experiment, in_one_round(values(lambda v: v * np.float32(np.nan))))
    assert_same(federate(grid, experiment, tmp_path / "run"), simulate(experiment, {ROUND: {CLIENT}}))


def test_the_log_names_who_failed_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federate(Loopback(EXPERIMENT, in_one_round(raises)), EXPERIMENT, tmp_path / "run")
    message = f"round {ROUND + 1}, client {CLIENT} (node {100 + CLIENT}): ZeroDivisionError: no samples today"
    assert message in [record.getMessage() for record in caplog.records]


def test_clients_are_asked_again_after_too_few_valid_replies(tmp_path: Path) -> None:
    """Clients whose reply was valid are not asked again."""
    failures = []

    def once(reply: Message) -> Message:
        failures.append(reply)
        return reply if len(failures) > 1 else raises(reply)  # type: ignore[return-value]

    grid = Loopback(STATEFUL, in_one_round(once))
    assert_same(federate(grid, STATEFUL, tmp_path / "run", min_replies=3), simulate(STATEFUL))
    assert len(failures) == 2
    assert grid.sent == EXPERIMENT.clients + STATEFUL.rounds * STATEFUL.cohort + 1


def test_the_run_stops_with_a_reason_and_continues_later(tmp_path: Path) -> None:
    with pytest.raises(ff.UserError, match="round 2: 2 valid replies, 3 are needed; start the run again to continue"):
        federate(
            Loopback(STATEFUL, in_one_round(raises), state=str(tmp_path)), STATEFUL, tmp_path / "run", min_replies=3
        )
    later = Loopback(STATEFUL, state=str(tmp_path))
    assert_same(federate(later, STATEFUL, tmp_path / "run", min_replies=3), simulate(STATEFUL))
