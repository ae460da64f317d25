"""Nodes that are missing, cannot take part, answer late, or claim the same client."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from loopback import EXPERIMENT, Loopback, federate, run_server_app
from test_flower_replies import CLIENT, STATEFUL, rows

import fedflat as ff
from fedflat.flower.messages import REQUEST_KEY, ClientInfo, TrainRequest
from fedflat.flower.nodes import ClientLog, Nodes


def nodes_of(grid: Loopback, folder: Path) -> tuple[Nodes, RecordDict]:
    """Return the nodes of a grid, and the query that asks which clients they are."""
    request = TrainRequest(
        run="run", seed=0, round=0, exchange=0, turn=0, key=7, accepted=-1, steps=0, lr=0.0,
        population=len(grid.contexts), classes=10, names=[], samples="uint8 [1, 8, 8]", mean=[0.0], std=[1.0],
    )  # fmt: skip
    nodes = Nodes(grid, [0] * len(grid.contexts), 5.0, ClientLog(folder / "clients.jsonl", "run"))  # type: ignore[arg-type]
    return nodes, RecordDict({REQUEST_KEY: request.record()})


def test_a_reply_answers_the_request_with_its_turn_and_its_key(tmp_path: Path) -> None:
    """A request that is sent again after a restart has the same turn and another key."""
    _, query = nodes_of(Loopback(EXPERIMENT), tmp_path)
    request = TrainRequest.read(query[REQUEST_KEY])
    ClientInfo(client=0, examples=5, turn=0, key=7).check_answers(request)
    for other in ({"turn": 1, "key": 7}, {"turn": 0, "key": 8}):
        with pytest.raises(ValueError, match="answers another request"):
            ClientInfo(client=0, examples=5, **other).check_answers(request)


def test_a_client_that_is_not_connected_is_replaced(tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT)
    del grid.activated[100 + CLIENT]
    federate(grid, EXPERIMENT, tmp_path / "run")
    taking_part = [{row["client"] for row in rows(tmp_path / "run") if row["round"] == r} for r in (1, 2, 3)]
    assert taking_part == [set(range(4)) - {CLIENT}] * 3


def test_a_round_waits_for_nodes_until_the_timeout(tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT)
    grid.activated.clear()
    with pytest.raises(ff.UserError, match="round 1: 0 valid replies, 1 are needed"):
        federate(grid, EXPERIMENT, tmp_path / "run", round_timeout=0.2)


UNREACHABLE = {
    "nodes": ({"federation.min_nodes": 5}, "federation.min_nodes 5: must be at most the number of clients, 4"),
    "replies": ({"federation.min_replies": 4}, "federation.min_replies 4: must be at most the cohort, 3"),
}


@pytest.mark.parametrize(("options", "message"), UNREACHABLE.values(), ids=UNREACHABLE)
@pytest.mark.parametrize("partition", ["dirichlet", "natural"])
@pytest.mark.usefixtures("tracebacks")
def test_more_nodes_or_replies_than_possible(partition: Any, options: Any, message: str, tmp_path: Path) -> None:
    x, y = np.zeros((8, 1, 8, 8), np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x, y_test=y, client=np.arange(8) % 4)
    changes = {"dataset": f"npz:{tmp_path / 'own.npz'}", "clients": 20} if partition == "natural" else {}
    grid, experiment = Loopback(EXPERIMENT), dataclasses.replace(EXPERIMENT, partition=partition, **changes)
    with pytest.raises(ff.UserError, match=message):
        run_server_app(grid, experiment, tmp_path / "run", **{"federation.round_timeout": 0.1}, **options)
    assert grid.sent == 0
    assert not (tmp_path / "run").exists()


def test_a_round_waits_for_a_share_of_the_clients_that_the_data_name(tmp_path: Path) -> None:
    """The option `clients`, 20, is not their number: three of four are waited for, not fifteen."""
    x, y = np.zeros((8, 1, 8, 8), np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x, y_test=y, client=np.arange(8) % 4)
    natural = {"dataset": f"npz:{tmp_path / 'own.npz'}", "partition": "natural", "clients": 20, "cohort": 0.75}
    experiment = dataclasses.replace(EXPERIMENT, **natural, rounds=1)  # type: ignore[arg-type]
    grid = Loopback(experiment)
    grid.activated = dict.fromkeys(range(100, 104), "first")
    run_server_app(grid, experiment, tmp_path / "run")
    assert [row["accepted"] for row in rows(tmp_path / "run")] == [True] * 3


def test_nodes_with_a_wrong_number_take_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There is one warning and one line in clients.jsonl for each of them, not one for every round."""
    grid = Loopback(EXPERIMENT)
    grid.contexts[100].node_config = {"partition-id": 9}
    grid.contexts[101].node_config = {}
    federate(grid, EXPERIMENT, tmp_path / "run")
    first, second, *others = rows(tmp_path / "run")
    assert (first["node"], second["node"]) == (100, 101)
    assert first["note"] == "takes no part: node-config partition-id=9: must be a client number below 4"
    assert "partition-id=None" in second["note"]
    assert {row["client"] for row in others} == {2, 3}
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    warnings = [message for message in messages if message.startswith("node ")]
    assert [f"node {row['node']}: {row['note']}" for row in (first, second)] == warnings


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt/states"])
def test_a_node_whose_state_folder_cannot_be_written_takes_no_part(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    grid = Loopback(STATEFUL, state=str(tmp_path / "states"))
    grid.contexts[101].node_config["state"] = str(tmp_path / name)
    federate(grid, STATEFUL, tmp_path / "run")
    rejected, *others = rows(tmp_path / "run")
    assert rejected["node"] == 101
    assert rejected["note"].startswith("takes no part: node-config state: must be a folder that can be written (")
    assert str(tmp_path) not in (tmp_path / "run" / "clients.jsonl").read_text()
    assert {row["client"] for row in others} == {0, 2, 3}
    assert all(row["accepted"] for row in others)


def test_a_node_that_answers_the_query_late_is_asked_again(tmp_path: Path) -> None:
    """A node that answers that it cannot take part is not asked again."""
    experiment, asked = dataclasses.replace(EXPERIMENT, cohort=4), []

    def ask(message: Message) -> Message | None:
        node, is_query = message.metadata.dst_node_id, message.metadata.message_type == "query"
        asked.extend([node] if is_query else [])
        return None if is_query and node == 100 and asked.count(100) == 1 else reply(message)

    grid = Loopback(experiment)
    grid.contexts[101].node_config = {}
    reply, grid._reply = grid._reply, ask  # type: ignore[method-assign]
    federate(grid, experiment, tmp_path / "run", round_timeout=0.5)
    assert (asked.count(100), asked.count(101)) == (2, 1)
    assert {row["round"] for row in rows(tmp_path / "run") if row.get("client") == 0} == {2, 3}


@pytest.mark.parametrize("examples", [float("inf"), float("nan"), 7.5, -1, 0])
def test_an_impossible_number_of_examples(examples: float, tmp_path: Path) -> None:
    def lie(message: Message) -> Message | None:
        answer = reply(message)
        if message.metadata.message_type == "query" and message.metadata.dst_node_id == 100:
            answer.content["facts"]["examples"] = examples
        return answer

    grid = Loopback(EXPERIMENT)
    reply, grid._reply = grid._reply, lie  # type: ignore[method-assign]
    federate(grid, EXPERIMENT, tmp_path / "run")
    rejected, *others = rows(tmp_path / "run")
    assert rejected["node"] == 100
    assert rejected["note"].startswith("takes no part: it ")
    assert {row["client"] for row in others} == {1, 2, 3}


@pytest.mark.parametrize(("activated", "newer"), [("second", 100), ("first", 103)])
def test_two_nodes_that_claim_to_be_one_client(
    activated: str, newer: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The newer one counts, as after a move to another machine; log and clients.jsonl name both."""
    grid = Loopback(EXPERIMENT)
    grid.contexts[103].node_config = {"partition-id": 0}
    grid.activated[100] = activated
    federate(grid, EXPERIMENT, tmp_path / "run")
    note = f"node {newer} takes the place of node {203 - newer}, which is still connected"
    assert rows(tmp_path / "run")[0] == {"client": 0, "note": note}
    assert [r.levelname for r in caplog.records if r.getMessage() == f"client 0: {note}"] == ["WARNING"]
    assert any(r.getMessage().startswith(f"client 0 (node {newer}): connected") for r in caplog.records)


def test_an_older_node_that_answers_later_does_not_count(tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT)
    nodes, query = nodes_of(grid, tmp_path)
    grid.contexts[101].node_config = {"partition-id": 0}
    grid.activated = {100: "second"}
    nodes.update(query)
    grid.activated[101] = "first"
    nodes.update(query)
    assert nodes.node_of == {0: 100}
    assert [row["note"] for row in rows(tmp_path)] == ["node 100 takes the place of node 101, which is still connected"]


def test_when_the_newer_node_leaves_the_older_one_counts_again(tmp_path: Path) -> None:
    """It continues from the state that the other stored in their shared folder."""
    grid = Loopback(STATEFUL, state=str(tmp_path / "states"))
    grid.activated[103], grid.contexts[103].node_config["partition-id"] = "second", 0
    taking_part: list[int] = []

    def leave(client: int, reply: Message) -> Message:
        taking_part.extend([reply.metadata.src_node_id] if client == 0 else [])
        if reply.metadata.group_id == "2":
            grid.activated.pop(103, None)
        return reply

    grid.change = leave
    federate(grid, STATEFUL, tmp_path / "run")
    assert taking_part == [103, 103, 100, 100]
    assert not any("gone" in row["note"] for row in rows(tmp_path / "run"))


def test_a_node_that_comes_back_as_another_client(tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT)
    nodes, query = nodes_of(grid, tmp_path)
    del grid.activated[101]
    nodes.update(query)
    grid.activated[100], grid.contexts[100].node_config = "second", {"partition-id": 1}
    nodes.update(query)
    assert nodes.node_of == {1: 100, 2: 102, 3: 103}


def test_a_node_that_restarts_is_not_a_second_node(tmp_path: Path) -> None:
    def restart(client: int, reply: Message) -> Message:
        grid.activated[100] = "second"
        return reply

    grid = Loopback(EXPERIMENT, restart)
    federate(grid, EXPERIMENT, tmp_path / "run")
    assert all("round" in row for row in rows(tmp_path / "run"))
