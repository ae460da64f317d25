"""Secure aggregation: the server learns the mean of the replies, and no single reply."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate
from test_flower_replies import refused, rows

import fedflat as ff
from fedflat.flower.config import FederationOptions, from_run_config, run_config_spelling, to_run_config

EQUAL = dataclasses.replace(EXPERIMENT, weights="uniform", clients=4, cohort=4)
CLOSE = [ff.FedAvg(), ff.SCAFFOLD(), ff.FedSOL(), ff.FedGF(threshold=0.0)]
KINKED = [ff.FedGloSS(), ff.NaiveFedGloSS()]  # rounding of the perturbed model moves samples over a ReLU's kink
METHODS = {type(m).__name__: (m, tolerance) for group, tolerance in ((CLOSE, 1e-5), (KINKED, 1e-3)) for m in group}


@pytest.mark.parametrize(("method", "tolerance"), METHODS.values(), ids=METHODS)
def test_equal_to_a_simulation_up_to_rounding(method: ff.Method, tolerance: float, tmp_path: Path) -> None:
    experiment = dataclasses.replace(EQUAL, method=method)
    state = federate(Loopback(experiment), experiment, tmp_path / "run", secure=True)
    assert_same(state, simulate(experiment), tolerance)


def test_a_client_that_leaves_in_the_middle(tmp_path: Path) -> None:
    """Its masks are removed with the shares that the other clients hold."""
    stages: list[int] = []

    def leave(client: int, reply: Message) -> Message | None:
        if client == 2 and reply.metadata.group_id == "2":
            stages.append(client)
            return reply if len(stages) < 3 else None
        return reply

    grid = Loopback(EQUAL, leave)
    state = federate(grid, EQUAL, tmp_path / "run", secure=True, round_timeout=1.0)
    assert_same(state, simulate(EQUAL, {1: {2}}), tolerance=1e-5)
    failed = [(row["round"], row["client"], row["note"]) for row in rows(tmp_path / "run") if not row["accepted"]]
    assert failed == [(2, 2, "it did not finish secure aggregation")]


def test_a_client_that_left_can_come_back(tmp_path: Path) -> None:
    """The mean of one reply would reveal it: so all clients are asked again, and the earlier mean is dropped."""
    replies: Counter[int] = Counter()
    silent = {(2, 3), (1, 4 + 3)}  # client 2 does not send its masked reply at first, client 1 the second time

    def leave(client: int, reply: Message) -> Message | None:
        replies[client] += 1
        return None if (client, replies[client]) in silent else reply

    experiment = dataclasses.replace(EQUAL, method=ff.SCAFFOLD(), rounds=2)
    grid = Loopback(experiment, leave)
    state = federate(grid, experiment, tmp_path / "run", secure=True, min_replies=4, round_timeout=1.0)
    assert_same(state, simulate(experiment), tolerance=1e-5)
    assert [row["client"] for row in rows(tmp_path / "run") if row["round"] == 1].count(0) == 3


def test_one_client_alone_is_not_asked_to_train(tmp_path: Path) -> None:
    grid, kinds = Loopback(EQUAL), []
    grid.activated = {100: "first"}
    grid.change = lambda client, reply: kinds.append(client) or reply
    with pytest.raises(ff.UserError, match="round 1: 0 valid replies"):
        federate(grid, EQUAL, tmp_path / "run", secure=True, round_timeout=0.2)
    assert not kinds


def masked(change: Any) -> Any:
    """Change the reply of client 1 that holds its masked vector, in round 2."""

    def wrong(client: int, reply: Message) -> Message:
        if client == 1 and reply.metadata.group_id == "2" and "fitres.metrics" in reply.content:
            change(reply.content)
        return reply

    return wrong


def shortened(content: RecordDict) -> None:
    content["secaggplus_configs"]["masked_params"] = content["secaggplus_configs"]["masked_params"][:1]


def packed(content: RecordDict) -> None:
    content["secaggplus_configs"]["masked_params"] = [b"PK\x03\x04"] * 2


BAD = {
    "no examples": (lambda content: content["fitres.metrics"].update(examples=0), "it says it comes from 0 examples"),
    "other examples": (
        lambda content: content["fitres.metrics"].update(examples=10**6),
        "it claims 1000000 examples, its client declared 359",
    ),
    "no client info": (lambda content: content["fitres.metrics"].clear(), "it does not say who it is from"),
    "no vector": (lambda content: content["secaggplus_configs"].clear(), "masked_params"),
    "too few": (shortened, "argument 2 is shorter"),
    "no arrays": (packed, "its weight cannot be read"),
}


@pytest.mark.parametrize(("change", "reason"), BAD.values(), ids=BAD)
def test_a_bad_masked_reply_is_as_if_its_client_had_left(change: Any, reason: str, tmp_path: Path) -> None:
    state = federate(Loopback(EQUAL, masked(change)), EQUAL, tmp_path / "run", secure=True)
    assert_same(state, simulate(EQUAL, {1: {1}}), tolerance=1e-5)
    ((round, client, note),) = refused(tmp_path / "run")
    assert (round, client) == (2, 1)
    assert note.startswith("its reply is refused: ")
    assert reason in note


def nonsense(content: RecordDict) -> None:
    """Replace the masked vector by other integers."""
    vector = np.random.default_rng(0).integers(0, 2**48, 4810)
    file = io.BytesIO()
    np.save(file, vector)
    content["secaggplus_configs"]["masked_params"][1] = file.getvalue()


@pytest.mark.usefixtures("known_noise")
def test_a_mean_that_no_valid_replies_have_is_refused(tmp_path: Path) -> None:
    """One client can make it anything, and the server sees no reply to refuse; the round is repeated."""
    lies: list[int] = []

    def once(content: RecordDict) -> None:
        if not lies:
            nonsense(content)
        lies.append(1)

    state = federate(Loopback(EQUAL, masked(once)), EQUAL, tmp_path / "run", secure=True)
    assert_same(state, simulate(EQUAL), tolerance=1e-5)
    notes = refused(tmp_path / "run")
    assert sorted((round, client) for round, client, _ in notes) == [(2, client) for client in range(4)]
    assert all(note.startswith("its reply is refused: the mean of the round: delta has length") for *_, note in notes)


@pytest.mark.usefixtures("known_noise")
def test_the_mean_of_private_replies_keeps_their_bound(tmp_path: Path) -> None:
    """It is checked with dpfedavg, where honest means are within the bound up to the rounding of the protocol."""
    private = dataclasses.replace(EQUAL, method=ff.Private(clip=1e-3))
    state = federate(Loopback(private), private, tmp_path / "run", secure=True)
    assert_same(state, simulate(private), tolerance=1e-5)


def test_a_client_without_keys_does_not_end_the_run(tmp_path: Path) -> None:
    keys: list[int] = []

    def forget(client: int, reply: Message) -> Message:
        found = reply.content["secaggplus_configs"]
        keys.extend([client] if client == 1 and "pk1" in found else [])
        if keys == [1] and client == 1 and "pk1" in found:
            found.clear()
        return reply

    state = federate(Loopback(EQUAL, forget), EQUAL, tmp_path / "run", secure=True)
    assert_same(state, simulate(EQUAL), tolerance=1e-5)
    assert {note for _, _, note in refused(tmp_path / "run")} == {"secure aggregation broke off (KeyError: 'pk1')"}


def test_the_server_sees_no_reply(tmp_path: Path) -> None:
    """The server receives integers that are spread over all of [0, 2^48), whatever the reply is."""
    received: list[np.ndarray] = []

    def record_arrays(client: int, reply: Message) -> Message:
        for record in reply.content.config_records.values():
            for value in (v for v in record.values() if isinstance(v, list) and v and isinstance(v[0], bytes)):
                received.extend(np.load(io.BytesIO(v)) for v in value if v[:6] == b"\x93NUMPY")
        assert not any(len(record) for record in reply.content.array_records.values())
        return reply

    experiment = dataclasses.replace(EQUAL, rounds=1)
    federate(Loopback(experiment, record_arrays), experiment, tmp_path / "run", secure=True)
    vectors = [v for v in received if v.size == 4810]
    assert len(vectors) == 4
    for vector in vectors:
        assert vector.min() < 2**48 * 0.01
        assert vector.max() > 2**48 * 0.99
        assert abs(float(vector.mean()) / 2**47 - 1) < 0.05


def test_a_reply_outside_the_range_is_not_sent(tmp_path: Path) -> None:
    """FedNova's number of steps, here 4 x 50, would be clipped."""
    experiment = dataclasses.replace(EQUAL, method=ff.FedNova(), local_epochs=50, rounds=1)
    with pytest.raises(ff.UserError, match="round 1: 0 valid replies"):
        federate(Loopback(experiment), experiment, tmp_path / "run", secure=True, attempts=1)


REFUSED = {
    "weights": ({"weights": "examples"}, {}, "weights examples: must be uniform with federation.secure"),
    "compression": ({"method": ff.Compressed()}, {}, "method compress: saves nothing with federation.secure"),
    "cohort": ({"cohort": 1}, {}, "cohort 1: must be at least 2 with federation.secure"),
    "rule": ({"aggregate": "median"}, {}, "aggregate median: must be mean with federation.secure"),
    "clip": ({"clip_replies": "2x"}, {}, "clip_replies 2x: cannot be used with federation.secure"),
    "nodes": ({}, {"min_nodes": 1}, "federation.min_nodes 1: must be at least 2 with federation.secure"),
}


@pytest.mark.parametrize(("experiment", "federation", "message"), REFUSED.values(), ids=REFUSED)
def test_options_that_secure_aggregation_does_not_allow(experiment: Any, federation: Any, message: str) -> None:
    options = FederationOptions(**{"secure": True, "min_nodes": 2, **federation})
    assert from_run_config(to_run_config(EQUAL, dataclasses.replace(options, min_nodes=2)))
    config = to_run_config(dataclasses.replace(EQUAL, **experiment), options)
    with pytest.raises(ff.UserError) as error:
        from_run_config(config)
    assert error.value.message(run_config_spelling(config)).startswith(message)
