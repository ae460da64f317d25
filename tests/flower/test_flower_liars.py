"""Clients that lie or fail: what they claim is checked, logged and bounded, and their errors give nothing away."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict
from loopback import EXPERIMENT, Crash, Loopback, assert_same, federate, simulate
from test_flower_replies import CLIENT, ROUND, in_one_round, refused, rows, values

import fedflat as ff
from fedflat.flower import client, node_data, nodes
from fedflat.flower.config import FederationOptions
from fedflat.flower.server import serve

SHORT = dataclasses.replace(EXPERIMENT, rounds=2)
EVERYBODY = dataclasses.replace(EXPERIMENT, cohort=4, rounds=2)


def claims(examples: int) -> Callable[[Message], Message]:
    def wrong(reply: Message) -> Message:
        reply.content["facts"]["examples"] = examples
        return reply

    return wrong


CLAIMS = {
    "far too many": (2**62, f"it says it comes from {2**62} examples, possible are 1 to 1000000000"),
    "too many": (10**6, "it claims 1000000 examples, its client declared 359"),
    "too few": (358, "it claims 358 examples, its client declared 359"),
}


@pytest.mark.parametrize(("examples", "reason"), CLAIMS.values(), ids=CLAIMS)
def test_a_reply_must_claim_the_examples_that_the_node_declared(examples: int, reason: str, tmp_path: Path) -> None:
    state = federate(Loopback(SHORT, in_one_round(claims(examples))), SHORT, tmp_path / "run")
    assert_same(state, simulate(SHORT, {ROUND: {CLIENT}}))
    assert refused(tmp_path / "run") == [(ROUND + 1, CLIENT, f"its reply is refused: {reason}")]


def declare(grid: Loopback, node: int, examples: int) -> None:
    """Let a node answer the query with another number of examples, and reply honestly."""

    def lie(message: Message) -> Message | None:
        answer = reply(message)
        if answer and message.metadata.message_type == "query" and message.metadata.dst_node_id == node:
            answer.content["facts"]["examples"] = examples
        return answer

    reply, grid._reply = grid._reply, lie  # type: ignore[method-assign]


def test_the_first_declaration_holds_for_the_whole_run(tmp_path: Path, crash_in_round: Any) -> None:
    """Also after the server has crashed, and for another node that says it is the same client."""
    crash_in_round(1)
    with pytest.raises(Crash):
        federate(Loopback(EVERYBODY), EVERYBODY, tmp_path / "run")
    grid = Loopback(EVERYBODY)
    declare(grid, 102, 9)
    federate(grid, EVERYBODY, tmp_path / "run")
    (rejected,) = (row for row in rows(tmp_path / "run") if "node" in row)
    assert rejected["node"] == 102
    assert "it says it has 9 examples, client 2 declared 359 before; if its data have changed" in rejected["note"]


@pytest.mark.parametrize("text", ['{"0": 359,}', "[359]", '{"0": null}', '{"zero": 359}'])
def test_an_edited_file_of_declarations_is_refused_in_words(text: str, tmp_path: Path) -> None:
    """A message asks operators to edit it."""
    (tmp_path / "examples.json").write_text(text)
    with pytest.raises(ff.UserError, match=r"examples\.json: must be numbers of examples by client"):
        nodes.ClientLog(tmp_path / "clients.jsonl", "run")


@pytest.mark.parametrize("client", [0, 3], ids=["first", "last"])
def test_a_client_that_outweighs_all_others_is_noticed(
    client: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, whether it declares before the others or after them."""
    grid = Loopback(SHORT)
    declare(grid, 100 + client, 10**6)
    federate(grid, SHORT, tmp_path / "run")
    warning = f"client {client} (node {100 + client}): declares 1000000 examples, all others together "
    assert caplog.text.count(warning) == 1


def test_max_examples_caps_the_weight_of_a_client(tmp_path: Path) -> None:
    uneven = dataclasses.replace(SHORT, partition="lda", alpha=1.0)
    state = federate(Loopback(uneven), uneven, tmp_path / "run", max_examples=1)
    assert_same(state, simulate(dataclasses.replace(uneven, weights="uniform")))


def test_a_reply_of_an_earlier_round_is_refused(tmp_path: Path) -> None:
    old: list[RecordDict] = []

    def replay(number: int, reply: Message) -> Message:
        if number == 1 and old:
            reply.content = old[0]
        old.extend([copy.deepcopy(reply.content)] if number == 1 else [])
        return reply

    federate(Loopback(EVERYBODY, replay), EVERYBODY, tmp_path / "run")
    reason = "its reply is refused: it answers another request (turn 0; asked was turn 1)"
    assert refused(tmp_path / "run") == [(2, 1, reason)]


def test_every_reply_is_logged_with_its_claim_norm_and_verdict(tmp_path: Path) -> None:
    huge = in_one_round(values(lambda v: v * np.float32(1e6)))
    federate(Loopback(SHORT, huge), SHORT, tmp_path / "run")
    logged = {(row["round"], row["client"]): row for row in rows(tmp_path / "run")}
    norms = [row["norm"] for row in logged.values()]
    assert len(norms) == 2 * SHORT.cohort
    assert all(row["examples"] == 359 for row in logged.values())
    lie = logged[ROUND + 1, CLIENT]
    assert not lie["accepted"]
    assert lie["norm"] == max(norms) > 1e4 * sorted(norms)[-2]


def test_a_reply_that_is_much_longer_than_the_others_gets_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is within the bounds, and nothing else would say which client makes the accuracy fall."""
    federate(Loopback(SHORT, in_one_round(values(lambda v: -10 * v))), SHORT, tmp_path / "run")
    (warning,) = [r.getMessage() for r in caplog.records if "times as long" in r.getMessage()]
    assert warning.startswith(f"round {ROUND + 1}, client {CLIENT} (node {100 + CLIENT}): its reply is ")
    assert warning.endswith(" times as long as the median of the round; clip_replies bounds it")


def test_clipped_replies_are_logged(tmp_path: Path) -> None:
    clipped = dataclasses.replace(SHORT, clip_replies="2x")
    federate(Loopback(clipped, in_one_round(values(lambda v: -10 * v))), clipped, tmp_path / "run")
    notes = {(row["round"], row["client"]): row["note"] for row in rows(tmp_path / "run") if row["note"]}
    assert notes.keys() == {(ROUND + 1, CLIENT)}
    assert notes[ROUND + 1, CLIENT].startswith("its reply is clipped, times 0.")


def books(factor: float) -> Callable[[Message], Message]:
    """Return a change of the scalars of a reply."""

    def wrong(reply: Message) -> Message:
        record = reply.content["reply"]
        for name in [name for name, array in record.items() if array.numpy().ndim == 0]:
            record[name] = Array(np.array(factor * record[name].numpy(), np.float32))
        return reply

    return wrong


COUNTING = {
    "fednova": (ff.FedNova(), "steps is -3, a client that was asked for 3 steps sends 3"),
    "around it": (ff.ServerMomentum(inner=ff.FedNova()), "steps is -3, a client that was asked for 3 steps sends 3"),
    "fedcm": (ff.FedCM(), "span is -0.15, a client that was asked for 3 steps sends 0.15"),
}


@pytest.mark.parametrize(("method", "reason"), COUNTING.values(), ids=COUNTING)
def test_nobody_can_lie_about_bookkeeping(method: ff.Method, reason: str, tmp_path: Path) -> None:
    """A negative number of steps would turn the direction of the whole round, whatever bounds the replies' norms."""
    counting = dataclasses.replace(SHORT, method=method, clip_replies="1x")
    state = federate(Loopback(counting, in_one_round(books(-1.0))), counting, tmp_path / "run")
    assert_same(state, simulate(counting, {ROUND: {CLIENT}}))
    (lie,) = [row for row in rows(tmp_path / "run") if row.get("accepted") is False]
    assert (lie["round"], lie["client"], lie["note"]) == (ROUND + 1, CLIENT, f"its reply is refused: {reason}")


def test_many_steps_are_no_long_reply(tmp_path: Path) -> None:
    """With momentum 30 steps count as 210, far more than the norm of the model."""
    counting = dataclasses.replace(SHORT, method=ff.FedNova(), local_epochs=None, local_steps=30, momentum=0.9)
    state = federate(Loopback(counting), counting, tmp_path / "run", max_ratio=1.0)
    assert_same(state, simulate(counting))


@pytest.mark.parametrize("inner", [ff.FedAvg(), ff.FedNova()], ids=["fedavg", "fednova"])
@pytest.mark.usefixtures("known_noise")
def test_the_server_enforces_the_bound_of_a_private_method(inner: ff.Method, tmp_path: Path) -> None:
    """A reply half as long again as the bound is refused, so the noise covers what one client can change."""
    private = dataclasses.replace(SHORT, method=ff.Private(inner=inner, clip=1e-3))
    long = in_one_round(values(lambda v: v * (1.5e-3 / np.linalg.norm(v)).astype(v.dtype)))
    state = federate(Loopback(private, long), private, tmp_path / "run")
    assert_same(state, simulate(private, {ROUND: {CLIENT}}))
    ((_, _, note),) = refused(tmp_path / "run")
    assert note == "its reply is refused: it has norm 0.0015, dpfedavg's clients send at most 0.001"


def test_errors_of_clients_give_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server learns that the client failed. What and where is in the log of the node."""

    def broken(*_: Any) -> None:
        raise PermissionError("/home/anna/patients.npz")

    monkeypatch.setattr(client, "local_update", broken)
    with pytest.raises(ff.UserError, match="round 1: 0 valid replies"):
        federate(Loopback(SHORT), SHORT, tmp_path / "run", attempts=1)
    assert {note for _, _, note in refused(tmp_path / "run")} == {"the client failed; its node's log says why"}
    (seen, *_) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "/home/anna/patients.npz" in str(seen.exc_info)


def test_own_data_that_cannot_be_loaded_are_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = Loopback(SHORT)
    grid.contexts[102].node_config["data"] = f"npz:{tmp_path}/private.npz"
    federate(grid, SHORT, tmp_path / "run")
    assert rows(tmp_path / "run")[0]["note"].endswith("node-config data: cannot be loaded; the node's log says why")
    assert "private.npz" not in (tmp_path / "run" / "clients.jsonl").read_text()
    assert "there is no file" in caplog.text


def test_a_round_waits_for_the_cohort_and_a_short_one_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With default options; a node is missing from the second round on."""
    monkeypatch.setattr(nodes, "NODE_CHECK_SECONDS", 0.05)
    grid = Loopback(EVERYBODY)

    def leave(number: int, reply: Message) -> Message:
        grid.activated.pop(103, None)
        return reply

    grid.change = leave
    serve(EVERYBODY, FederationOptions(out=str(tmp_path / "run"), round_timeout=0.5), grid)  # type: ignore[arg-type]
    assert "3 of 4 clients connected, waiting" in caplog.text
    assert [r.getMessage() for r in caplog.records if "instead of" in r.getMessage()] == [
        "round 2: 3 replies instead of 4"
    ]


def test_a_node_assembles_its_data_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower starts a process for every message, so the samples are kept in the folder for states."""
    loaded: list[int] = []
    load = node_data.load_run_dataset

    def count(experiment: ff.Experiment) -> Any:
        loaded.append(1)
        return load(experiment)

    monkeypatch.setattr(node_data, "load_run_dataset", count)
    expected = simulate(EVERYBODY)
    assert_same(federate(Loopback(EVERYBODY, state=str(tmp_path / "states")), EVERYBODY, tmp_path / "run"), expected)
    assert len(loaded) == EVERYBODY.clients
    other = dataclasses.replace(EVERYBODY, partition_seed=1)  # the samples of another partition are not taken for these
    grid = Loopback(other, state=str(tmp_path / "states"))
    assert_same(federate(grid, other, tmp_path / "other"), simulate(other))
    assert len(loaded) == 2 * EVERYBODY.clients


def test_other_users_of_a_node_cannot_read_its_samples(tmp_path: Path) -> None:
    federate(Loopback(SHORT, state=str(tmp_path / "states")), SHORT, tmp_path / "run")
    assert [*(tmp_path / "states").glob("data-*")]
    assert (tmp_path / "states").stat().st_mode & 0o077 == 0


def test_own_files_that_change_are_read_again(tmp_path: Path) -> None:
    """And the copy of the old samples is removed: one of them may have been withdrawn."""
    x, y = np.zeros((8, 1, 8, 8), np.uint8), np.arange(8)
    counts = []
    for samples in (8, 6):
        np.savez(tmp_path / "own.npz", x=x[:samples], y=y[:samples], x_test=x, y_test=y)
        grid = Loopback(SHORT, state=str(tmp_path / "states"))
        grid.contexts[100].node_config["data"] = f"npz:{tmp_path / 'own.npz'}"
        out = tmp_path / f"run-{samples}"
        federate(grid, dataclasses.replace(EVERYBODY, rounds=1), out)
        counts += [row["examples"] for row in rows(out) if row.get("client") == 0]
    assert counts == [8, 6]
    assert len([*(tmp_path / "states").glob("data-0-*")]) == 1
