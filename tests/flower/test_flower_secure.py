"""Secure aggregation: the server learns the mean that it would have computed, and no single reply."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate
from test_flower_replies import rows

import fedflat as ff
from fedflat.flower.config import Federation, from_run_config, to_run_config

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
    """Its masks are taken off with the shares that the others hold."""
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


def test_the_server_sees_no_reply(tmp_path: Path) -> None:
    """What arrives are whole numbers spread over all of [0, 2^48), whatever the reply is."""
    seen: list[np.ndarray] = []

    def look(client: int, reply: Message) -> Message:
        for record in reply.content.config_records.values():
            for value in (v for v in record.values() if isinstance(v, list) and v and isinstance(v[0], bytes)):
                seen.extend(np.load(io.BytesIO(v)) for v in value if v[:6] == b"\x93NUMPY")
        assert not any(len(record) for record in reply.content.array_records.values())
        return reply

    experiment = dataclasses.replace(EQUAL, rounds=1)
    federate(Loopback(experiment, look), experiment, tmp_path / "run", secure=True)
    vectors = [v for v in seen if v.size == 4810]
    assert len(vectors) == 4
    for vector in vectors:
        assert vector.min() < 2**48 * 0.01
        assert vector.max() > 2**48 * 0.99
        assert abs(float(vector.mean()) / 2**47 - 1) < 0.05


def test_a_reply_that_cannot_be_carried_is_not_sent(tmp_path: Path) -> None:
    """FedNova's count of steps, here 4 x 50, would be cut."""
    experiment = dataclasses.replace(EQUAL, method=ff.FedNova(), local_epochs=50, rounds=1)
    with pytest.raises(ff.UserError, match="round 1: 0 good replies"):
        federate(Loopback(experiment), experiment, tmp_path / "run", secure=True, attempts=1)


def test_weights_must_be_equal() -> None:
    flat: dict[str, Any] = to_run_config(EXPERIMENT, Federation(secure=True))
    with pytest.raises(ff.UserError, match="--weights examples: must be uniform"):
        from_run_config(flat)
