"""Servers and nodes that stop and restart, and the states that nodes keep."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from loopback import Crash, Loopback, assert_same, federate, server_state, simulate
from test_flower_replies import CLIENT, STATEFUL, in_one_round, rows

import fedflat as ff
from fedflat.flower import nodes
from fedflat.flower.client import ClientState
from fedflat.runs.folder import RunFolder


@pytest.mark.parametrize("method", [ff.SCAFFOLD(), ff.FedSMOO(), ff.NaiveFedGloSS(), ff.FedSOL()], ids=str)
@pytest.mark.parametrize("nodes", ["stay", "restart"])
def test_a_server_that_crashes_continues_with_the_same_model(
    method: ff.Method, nodes: str, tmp_path: Path, crash_in_round: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that had already replied go back to the state that belongs to the checkpoint."""
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


@pytest.mark.parametrize("change", ["engine", "folder"])
def test_clients_find_their_states_after_a_change(change: str, tmp_path: Path, crash_in_round: Any) -> None:
    """The run continues with another engine, which has no effect here, or in a folder that was moved."""
    grid, out = Loopback(STATEFUL, state=str(tmp_path / "states")), tmp_path / "run"
    crash_in_round(3)
    with pytest.raises(Crash):
        federate(grid, STATEFUL, out)
    out = out.rename(tmp_path / "moved") if change == "folder" else out
    experiment = dataclasses.replace(STATEFUL, engine="sequential") if change == "engine" else STATEFUL
    assert_same(federate(grid, experiment, out), simulate(STATEFUL))
    assert not any("gone" in row["note"] for row in rows(out))


def test_another_run_has_another_name(tmp_path: Path) -> None:
    """Otherwise its clients would begin with the states of the first run."""
    experiment, grid = dataclasses.replace(STATEFUL, rounds=1), Loopback(STATEFUL, state=str(tmp_path / "states"))
    for name in ("one", "two"):
        federate(grid, experiment, tmp_path / name)
    assert len(list((tmp_path / "states").glob("client-*"))) == 2 * STATEFUL.cohort


def test_there_is_a_checkpoint_after_every_round_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes keep only the states that one repeated round needs."""
    clock, saved, save = [0.0], [], RunFolder.save

    def slow(self: RunFolder, tensors: Any) -> None:
        clock[0] += 60.0
        saved.append(int(tensors["counters"][0]))
        save(self, tensors)

    monkeypatch.setattr(RunFolder, "save", slow)
    monkeypatch.setattr("fedflat.runs.training.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    federate(Loopback(STATEFUL), STATEFUL, tmp_path / "run")
    assert saved == [1, 2, 3, 4, 4]


def test_a_client_that_lost_its_state_begins_anew_and_is_logged(tmp_path: Path) -> None:
    """Nodes without a folder for states lose them when they restart."""
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


def test_a_damaged_state_counts_as_lost(tmp_path: Path) -> None:
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
    monkeypatch.setattr(nodes, "RESTART_CHECK_SECONDS", 0.1)
    lost: list[int] = []

    def restart(reply: Message) -> Message | None:
        if lost:
            return reply
        lost.append(CLIENT)
        grid.activated[100 + CLIENT] = "second"
        grid.contexts[100 + CLIENT].state = RecordDict()
        return None

    grid = Loopback(STATEFUL, in_one_round(restart), state=str(tmp_path / "states"))
    assert_same(federate(grid, STATEFUL, tmp_path / "run"), simulate(STATEFUL))
    assert lost
    assert all(row["accepted"] and not row["note"] for row in rows(tmp_path / "run"))


def test_a_node_continues_from_the_newer_state_in_a_shared_folder(tmp_path: Path) -> None:
    one, other = RecordDict(), RecordDict()
    states = [{"c": torch.full((2,), float(turn))} for turn in range(3)]
    ClientState(one, tmp_path, "run", 0, 1).store(-1, {}, 0, states[0])
    ClientState(other, tmp_path, "run", 0, 1).store(0, states[0], 1, states[1])
    state, lost = ClientState(one, tmp_path, "run", 0, 1).load(1, states[2])
    assert not lost
    assert torch.equal(state["c"], states[1]["c"])
