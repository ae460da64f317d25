"""Servers and nodes that stop and come back, nodes that are not there and nodes of no use."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from loopback import EXPERIMENT, Loopback, assert_same, federate, server_state, simulate
from test_flower_replies import CLIENT, STATEFUL, in_one_round, rows

import fedflat as ff
from fedflat.engine.folder import RunFolder
from fedflat.flower import errand


class Crash(Exception):
    """The server dies."""


@pytest.fixture
def crash_in_round(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the server die when all replies of a round are in, just before its checkpoint."""
    save, calls = RunFolder.save, []

    def arm(round: int) -> None:
        def dying(self: RunFolder, tensors: Any) -> None:
            calls.append(1)
            if len(calls) == round:
                raise Crash
            save(self, tensors)

        monkeypatch.setattr(RunFolder, "save", dying)

    return arm


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
