"""A federation of processes over TLS trains the model of a simulation, also after failures."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import EXPERIMENT, assert_same, server_state, simulate
from processes import Federation, wait_until
from torch import Tensor

import fedflat as ff
from fedflat.core.method import Method
from fedflat.data.load import load_dataset

METHODS: dict[str, Method] = {
    "fedavg": ff.FedAvg(),
    "scaffold": ff.SCAFFOLD(),
    "fedsol": ff.FedSOL(),
    "fedgf": ff.FedGF(threshold=0.0),
    "fedgloss": ff.FedGloSS(),
}
DATA = "digits.npz"  # saves every client process the import of scikit-learn
PAIR = dataclasses.replace(
    EXPERIMENT, dataset=f"npz:{DATA}", clients=2, cohort=2, model="digits-cnn", partition="iid", batch_size=256
)
FAILING = dataclasses.replace(
    EXPERIMENT, dataset=f"npz:{DATA}", method=ff.SCAFFOLD(), clients=3, cohort=3, rounds=5, partition="iid"
)
FAULTS = {"0-1": "raise", "1-2": "nan", "2-2": "shape", "0-3": "huge", "2-4": "hang", "1-5": "hang"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Start a federation of two connected nodes and a third one that is registered."""
    federation = Federation(tmp_path_factory.mktemp("federation") / "app")
    digits = load_dataset("digits")
    np.savez(federation.folder / DATA, **{name: getattr(digits, name) for name in ("x", "y", "x_test", "y_test")})
    try:
        federation.start_link()
        federation.register(0, 1, 2)
        federation.start_node(0)
        federation.start_node(1)
        yield federation
    finally:
        federation.stop()


@functools.cache
def train_all(federation: Federation) -> dict[str, Path]:
    """Train all methods at once, each in its own run, and return the runs' folders."""
    experiments = {name: dataclasses.replace(PAIR, method=method) for name, method in METHODS.items()}
    outs = {name: federation.app(name, experiment, min_nodes=2) for name, experiment in experiments.items()}
    for name in outs:
        federation.run(name)
    for name, out in outs.items():
        wait_until((out / "result.json").exists, f"the end of {name}", federation.logs)
    return outs


@pytest.fixture(scope="module")
def failing_run(federation: Federation) -> Path:
    """Return the folder of a run with one failure after another."""
    faults = federation.folder / "faults"
    faults.mkdir()
    for name, kind in FAULTS.items():
        (faults / name).write_text(kind)
    faulty = (Path(__file__).parent / "faulty_client.py").read_text()
    out = federation.app("failing", FAILING, faulty, min_nodes=3, round_timeout=3000.0)
    federation.start_node(2)
    federation.run("failing")
    wait_until((faults / "2-4.reached").exists, "round 4", federation.logs)
    federation.kill("node-2")
    (faults / "2-4").unlink()
    train_all(federation)  # while the server misses the killed node's heartbeats; round 5 waits for the node
    federation.start_node(2)
    wait_until((faults / "1-5.reached").exists, "round 5", federation.logs)
    federation.kill("link")
    (faults / "1-5").unlink()
    (out / "at-the-crash.json").write_text(json.dumps({n: t.tolist() for n, t in server_state(out).items()}))
    federation.start_link()
    federation.run("failing")
    wait_until((out / "result.json").exists, "the end of the failing run", federation.logs)
    return out


def simulated(out: Path, experiment: ff.Experiment, missing: dict[int, set[int]] | None = None) -> dict[str, Tensor]:
    """Return the state that the run in `out` should have reached."""
    return simulate(dataclasses.replace(experiment, dataset=f"npz:{out.parents[1] / DATA}"), missing)


def notes(out: Path, round: int) -> dict[int, tuple[bool, str]]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]
    return {row["client"]: (row["accepted"], row["note"]) for row in rows if row.get("round") == round}


def test_a_client_that_raises(failing_run: Path) -> None:
    accepted, note = notes(failing_run, 1)[0]
    assert not accepted
    assert "ArithmeticError" in note
    assert "sensor is broken" in note


def test_replies_with_nan_and_of_the_wrong_shape(failing_run: Path) -> None:
    found = notes(failing_run, 2)
    assert found[0] == (True, "")
    assert found[1][1] == "its reply is refused: delta has 4810 of 4810 values that are not finite"
    assert found[2][1] == "its reply is refused: delta is float32 [7] instead of float32 [4810]"


def test_an_absurdly_large_reply(failing_run: Path) -> None:
    accepted, note = notes(failing_run, 3)[0]
    assert not accepted
    assert "its reply is refused: delta has length" in note


def test_a_node_killed_in_a_round_comes_back(failing_run: Path) -> None:
    """The round continues without it when its heartbeats are missed, unless it is back before that."""
    found = notes(failing_run, 4)
    assert found[0] == found[1] == (True, "")
    assert found[2][0] or "Node Unavailable" in found[2][1]
    assert notes(failing_run, 5)[2] == (True, "")


def missing(out: Path) -> dict[int, set[int]]:
    """Return the clients whose replies did not count, by round from 0."""
    return {r - 1: {client for client, (accepted, _) in notes(out, r).items() if not accepted} for r in range(1, 6)}


def test_the_server_is_killed_and_the_run_continues_from_its_checkpoint(failing_run: Path) -> None:
    at_the_crash = json.loads((failing_run / "at-the-crash.json").read_text())
    before = simulated(failing_run, dataclasses.replace(FAILING, rounds=4), missing(failing_run))
    assert at_the_crash == {name: pytest.approx(tensor.tolist(), abs=1e-5) for name, tensor in before.items()}
    assert notes(failing_run, 5) == {0: (True, ""), 1: (True, ""), 2: (True, "")}


def test_the_final_model_is_that_of_the_accepted_replies(failing_run: Path) -> None:
    assert missing(failing_run)[2] == {0}
    assert_same(server_state(failing_run), simulated(failing_run, FAILING, missing(failing_run)))


@pytest.mark.parametrize("name", METHODS)
def test_three_rounds_equal_a_simulation(federation: Federation, name: str) -> None:
    out = train_all(federation)[name]
    assert_same(server_state(out), simulated(out, dataclasses.replace(PAIR, method=METHODS[name])))


def refused(federation: Federation, *security: str) -> str:
    """Return the log of a node that cannot connect."""
    (federation.folder / "refused.log").unlink(missing_ok=True)
    process = federation.start("refused", *federation.node_words(3, "--max-retries", "1", *security))
    wait_until(lambda: process.poll() is not None, "the refusal", federation.logs)
    federation.kill("refused")
    assert process.returncode != 0
    return federation.log("refused")


def test_a_node_with_an_unknown_key_is_refused(federation: Federation) -> None:
    log = refused(federation, "--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "keys/node-3")
    assert "Failed to activate SuperNode" in log
    assert "No SuperNode found with the given public key" in federation.log("link")


def test_a_node_without_a_key_is_refused(federation: Federation) -> None:
    assert "Failed to initialize the connection" in refused(federation, "--root-certificates", "keys/ca.crt")


def test_plain_text_is_refused(federation: Federation) -> None:
    assert "Failed to initialize the connection" in refused(federation, "--insecure")


def test_a_server_with_another_certificate_is_refused(federation: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path / "other").folder / "keys" / "ca.crt"
    keys = ["--root-certificates", str(other), "--auth-supernode-private-key", "keys/node-0"]
    assert "certificate" in refused(federation, *keys).lower()
