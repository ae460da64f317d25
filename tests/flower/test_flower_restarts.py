"""Servers and nodes that stop and come back, nodes that are not there and nodes of no use."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from loopback import EXPERIMENT, Crash, Loopback, assert_same, federate, server_state, simulate
from test_flower_replies import CLIENT, STATEFUL, in_one_round, rows

import fedflat as ff
from fedflat.engine.folder import RunFolder
from fedflat.flower import errand


@pytest.mark.parametrize("method", [ff.SCAFFOLD(), ff.FedSMOO(), ff.NaiveFedGloSS(), ff.FedSOL()], ids=str)
@pytest.mark.parametrize("nodes", ["stay", "restart"])
def test_a_server_that_dies_continues_with_the_same_model(
    method: ff.Method, nodes: str, tmp_path: Path, crash_in_round: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that had already replied go back to the state that the checkpoint knows of."""
    experiment = dataclasses.replace(STATEFUL, method=method)
    grid = Loopback(experiment, state=str(tmp_path / "states"))
    crash_in_round(3)
    with pytest.raises(Crash):
        federate(grid, experiment, tmp_path / "run")
    monkeypatch.undo()
    before = server_state(tmp_path / "run")
    assert_same(before, simulate(dataclasses.replace(experiment, rounds=2)))
    grid = grid if nodes == "stay" else Loopback(experiment, state=str(tmp_path / "states"))
    assert_same(federate(grid, experiment, tmp_path / "run"), simulate(experiment))


def test_there_is_a_checkpoint_after_every_round_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes keep what one round needs to be played again, no more."""
    clock, saved, save = [0.0], [], RunFolder.save

    def slow(self: RunFolder, tensors: Any) -> None:
        clock[0] += 60.0
        saved.append(int(tensors["counters"][0]))
        save(self, tensors)

    monkeypatch.setattr(RunFolder, "save", slow)
    monkeypatch.setattr("fedflat.experiments.training.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    federate(Loopback(STATEFUL), STATEFUL, tmp_path / "run")
    assert saved == [1, 2, 3, 4, 4]


def test_a_client_whose_state_is_gone_begins_afresh_and_is_named(tmp_path: Path) -> None:
    """Nodes without a folder for their states forget when they are started again."""
    grid = Loopback(STATEFUL)

    def forget(client: int, reply: Message) -> Message:
        if reply.metadata.group_id == "2":
            for context in grid.contexts.values():
                context.state = RecordDict()
        return reply

    grid.change = forget
    federate(grid, STATEFUL, tmp_path / "run")
    notes = [(row["round"], row["note"]) for row in rows(tmp_path / "run") if row["note"]]
    assert (3, "its state was gone, it began afresh") in notes
    assert all(row["accepted"] for row in rows(tmp_path / "run"))


def test_a_damaged_state_counts_as_gone(tmp_path: Path) -> None:
    grid = Loopback(STATEFUL, state=str(tmp_path / "states"))

    def damage(client: int, reply: Message) -> Message:
        for context in grid.contexts.values():
            context.state = RecordDict()
        for path in (tmp_path / "states").iterdir():
            path.write_bytes(path.read_bytes()[:-8] + b"\x00\x01\x02\x03\x04\x05\x06\x07")
        return reply

    grid.change = damage
    federate(grid, STATEFUL, tmp_path / "run")
    assert any("gone" in row["note"] for row in rows(tmp_path / "run"))


def test_a_node_that_restarts_within_a_round_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errand, "WATCH", 0.1)
    lost: list[int] = []

    def die(reply: Message) -> Message | None:
        if lost:
            return reply
        lost.append(CLIENT)
        grid.since[100 + CLIENT] = "second"
        grid.contexts[100 + CLIENT].state = RecordDict()
        return None

    grid = Loopback(STATEFUL, in_one_round(die), state=str(tmp_path / "states"))
    assert_same(federate(grid, STATEFUL, tmp_path / "run"), simulate(STATEFUL))
    assert lost
    assert all(row["accepted"] and not row["note"] for row in rows(tmp_path / "run"))


def test_a_client_that_is_not_there_is_replaced(tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT)
    del grid.since[100 + CLIENT]
    federate(grid, EXPERIMENT, tmp_path / "run")
    taking_part = [{row["client"] for row in rows(tmp_path / "run") if row["round"] == r} for r in (1, 2, 3)]
    assert taking_part == [set(range(4)) - {CLIENT}] * 3


def test_a_round_waits_for_nodes_but_not_for_ever(tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT)
    grid.since.clear()
    with pytest.raises(ff.UserError, match="round 1: 0 good replies, 1 are needed"):
        federate(grid, EXPERIMENT, tmp_path / "run", round_timeout=0.2)


def test_nodes_that_are_of_no_use_take_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = Loopback(EXPERIMENT)
    grid.contexts[100].node_config = {"partition-id": 9}
    grid.contexts[101].node_config = {}
    federate(grid, EXPERIMENT, tmp_path / "run")
    said = [record.getMessage() for record in caplog.records if "takes no part" in record.getMessage()]
    assert "partition-id=9: must be a client number below 4" in said[0]
    assert "partition-id=None" in said[1]
    assert {row["client"] for row in rows(tmp_path / "run")} == {2, 3}


def test_a_node_that_is_slow_to_say_who_it_is_is_asked_again(tmp_path: Path) -> None:
    """One that answers that it cannot take part is not."""
    experiment, asked = dataclasses.replace(EXPERIMENT, cohort=4), []

    def ask(message: Message) -> Message | None:
        node, hello = message.metadata.dst_node_id, message.metadata.message_type == "query"
        asked.extend([node] if hello else [])
        return None if hello and node == 100 and asked.count(100) == 1 else reply(message)

    grid = Loopback(experiment)
    grid.contexts[101].node_config = {}
    reply, grid._reply = grid._reply, ask  # type: ignore[method-assign]
    federate(grid, experiment, tmp_path / "run", round_timeout=0.5)
    assert (asked.count(100), asked.count(101)) == (2, 1)
    assert {row["round"] for row in rows(tmp_path / "run") if row["client"] == 0} == {2, 3}


@pytest.mark.parametrize("examples", [float("inf"), float("nan"), 7.5, -1, 0])
def test_a_hello_that_is_nonsense(examples: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def lie(message: Message) -> Message | None:
        answer = reply(message)
        if message.metadata.message_type == "query" and message.metadata.dst_node_id == 100:
            answer.content["facts"]["examples"] = examples
        return answer

    grid = Loopback(EXPERIMENT)
    reply, grid._reply = grid._reply, lie  # type: ignore[method-assign]
    federate(grid, EXPERIMENT, tmp_path / "run")
    assert any(record.getMessage().startswith("node 100: takes no part: it ") for record in caplog.records)
    assert {row["client"] for row in rows(tmp_path / "run")} == {1, 2, 3}


def test_two_nodes_that_claim_to_be_one_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The newer one counts, as after a move to another machine; but it is said and written down."""
    grid = Loopback(EXPERIMENT)
    grid.contexts[103].node_config = {"partition-id": 0}
    federate(grid, EXPERIMENT, tmp_path / "run")
    note = "node 103 takes the place of node 100, which is still connected"
    assert rows(tmp_path / "run")[0] == {"client": 0, "note": note}
    assert [r.levelname for r in caplog.records if r.getMessage() == f"client 0: {note}"] == ["WARNING"]


def test_a_node_that_restarts_is_no_second_one(tmp_path: Path) -> None:
    def restart(client: int, reply: Message) -> Message:
        grid.since[100] = "second"
        return reply

    grid = Loopback(EXPERIMENT, restart)
    federate(grid, EXPERIMENT, tmp_path / "run")
    assert all("round" in row for row in rows(tmp_path / "run"))
