"""A federation of real processes over TLS: it learns what a simulation learns, and survives what goes wrong."""

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
from processes import Federation, until
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
STORY = dataclasses.replace(
    EXPERIMENT, dataset=f"npz:{DATA}", method=ff.SCAFFOLD(), clients=3, cohort=3, rounds=5, partition="iid"
)
FAULTS = {"0-1": "raise", "1-2": "nan", "2-2": "shape", "0-3": "huge", "2-4": "hang", "1-5": "hang"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two nodes are in, a third one is registered."""
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
def learn(federation: Federation) -> dict[str, Path]:
    """All methods at once, each in a run of its own; their folders."""
    experiments = {name: dataclasses.replace(PAIR, method=method) for name, method in METHODS.items()}
    outs = {name: federation.app(name, experiment, min_nodes=2) for name, experiment in experiments.items()}
    for name in outs:
        federation.run(name)
    for name, out in outs.items():
        until((out / "result.json").exists, f"the end of {name}", federation.logs)
    return outs


@pytest.fixture(scope="module")
def story(federation: Federation) -> Path:
    """A run in which one thing after another goes wrong; its folder."""
    faults = federation.folder / "faults"
    faults.mkdir()
    for name, kind in FAULTS.items():
        (faults / name).write_text(kind)
    faulty = (Path(__file__).parent / "faulty_client.py").read_text()
    out = federation.app("story", STORY, faulty, min_nodes=3, round_timeout=3000.0)
    federation.start_node(2)
    federation.run("story")
    until((faults / "2-4.reached").exists, "round 4", federation.logs)
    federation.kill("node-2")
    (faults / "2-4").unlink()
    learn(federation)  # while the server misses the killed node's heartbeats; round 5 waits for the node
    federation.start_node(2)
    until((faults / "1-5.reached").exists, "round 5", federation.logs)
    federation.kill("link")
    (faults / "1-5").unlink()
    (out / "at-the-crash.json").write_text(json.dumps({n: t.tolist() for n, t in server_state(out).items()}))
    federation.start_link()
    federation.run("story")
    until((out / "result.json").exists, "the end of the story", federation.logs)
    return out


def simulated(out: Path, experiment: ff.Experiment, missing: dict[int, set[int]] | None = None) -> dict[str, Tensor]:
    """What the run in `out` should have come to."""
    return simulate(dataclasses.replace(experiment, dataset=f"npz:{out.parents[1] / DATA}"), missing)


def notes(out: Path, round: int) -> dict[int, tuple[bool, str]]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]
    return {row["client"]: (row["accepted"], row["note"]) for row in rows if row.get("round") == round}


def test_a_client_that_raises(story: Path) -> None:
    accepted, note = notes(story, 1)[0]
    assert not accepted
    assert "ArithmeticError" in note
    assert "sensor is broken" in note


def test_replies_with_nan_and_of_the_wrong_shape(story: Path) -> None:
    found = notes(story, 2)
    assert found[0] == (True, "")
    assert found[1][1] == "its reply is refused: delta has 4810 of 4810 values that are not finite"
    assert found[2][1] == "its reply is refused: delta is float32 [7] instead of float32 [4810]"


def test_an_absurdly_large_reply(story: Path) -> None:
    accepted, note = notes(story, 3)[0]
    assert not accepted
    assert "its reply is refused: delta has length" in note


def test_a_node_killed_in_a_round_comes_back(story: Path) -> None:
    """The round goes on without it when its heartbeats are missed, unless it is back before that is noticed."""
    found = notes(story, 4)
    assert found[0] == found[1] == (True, "")
    assert found[2][0] or "Node Unavailable" in found[2][1]
    assert notes(story, 5)[2] == (True, "")


def missing(out: Path) -> dict[int, set[int]]:
    """Whose replies did not count, by rounds from 0."""
    return {r - 1: {client for client, (accepted, _) in notes(out, r).items() if not accepted} for r in range(1, 6)}


def test_the_server_is_killed_and_the_run_continues_from_its_checkpoint(story: Path) -> None:
    at_the_crash = json.loads((story / "at-the-crash.json").read_text())
    before = simulated(story, dataclasses.replace(STORY, rounds=4), missing(story))
    assert at_the_crash == {name: pytest.approx(tensor.tolist(), abs=1e-5) for name, tensor in before.items()}
    assert notes(story, 5) == {0: (True, ""), 1: (True, ""), 2: (True, "")}


def test_after_all_that_the_model_is_the_one_of_the_accepted_replies(story: Path) -> None:
    assert missing(story)[2] == {0}
    assert_same(server_state(story), simulated(story, STORY, missing(story)))


@pytest.mark.parametrize("name", METHODS)
def test_three_rounds_equal_a_simulation(federation: Federation, name: str) -> None:
    out = learn(federation)[name]
    assert_same(server_state(out), simulated(out, dataclasses.replace(PAIR, method=METHODS[name])))


def refused(federation: Federation, *security: str) -> str:
    """What a node says that is not let in."""
    (federation.folder / "refused.log").unlink(missing_ok=True)
    process = federation.start("refused", *federation.node_words(3, "--max-retries", "1", *security))
    until(lambda: process.poll() is not None, "the refusal", federation.logs)
    federation.kill("refused")
    assert process.returncode != 0
    return federation.log("refused")


def test_a_node_with_an_unknown_key_is_refused(federation: Federation) -> None:
    said = refused(federation, "--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", "keys/node-3")
    assert "Failed to activate SuperNode" in said
    assert "No SuperNode found with the given public key" in federation.log("link")


def test_a_node_without_a_key_is_refused(federation: Federation) -> None:
    assert "Failed to initialize the connection" in refused(federation, "--root-certificates", "keys/ca.crt")


def test_plain_text_is_refused(federation: Federation) -> None:
    assert "Failed to initialize the connection" in refused(federation, "--insecure")


def test_a_server_with_another_certificate_is_refused(federation: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path / "other").folder / "keys" / "ca.crt"
    keys = ["--root-certificates", str(other), "--auth-supernode-private-key", "keys/node-0"]
    assert "certificate" in refused(federation, *keys).lower()
