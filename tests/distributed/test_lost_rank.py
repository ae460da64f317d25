"""Several real processes train digits: to the result of one process, also after a rank was killed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parent))

from test_rank_agreement import by_client
from torchrun_processes import finish, kill_rank, launched, torchrun

from fedflat.cli import main

ROUNDS = 12
# not seeds 1 and 2, where rounding alone moves the model by 1e-4 and more: the sequential and the batched engine differ
# by as much, by 1e-7 with other seeds
RUN = shlex.split(
    f"run fedgloss --rounds {ROUNDS} --local-epochs 1 --cohort 4 --seeds 0 3 --checkpoint-every 3 --warmup 6"
)


def fedflat(out: Path, *more: str) -> list[str]:
    return [*RUN, "--out", str(out), *more]


def ranks(number: int, out: Path, *more: str, restarts: int = 0) -> list[str]:
    return torchrun(number, f"--max-restarts={restarts}", "-m", "fedflat", *fedflat(out, *more))


def wait_for_rows(process: subprocess.Popen[str], out: Path, lines: int) -> None:
    """Wait until the run has written so many rows of metrics."""
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
        time.sleep(0.002)


def rows(out: Path) -> list[dict[str, object]]:
    """Return the metrics without the seconds."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(line).items() if name != "seconds"} for line in lines]


def assert_close(one: Path, other: Path, tolerance: float) -> None:
    states = [by_client(load_file(out / "checkpoint" / "state.safetensors")) for out in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name in states[0].keys() - {"counters"}:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=0, atol=tolerance, msg=name)
    assert [(row["round"], row["seed"]) for row in rows(one)] == [(row["round"], row["seed"]) for row in rows(other)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the run in one process and return its folder."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(fedflat(out)) == 0
    return out


def test_a_killed_rank_ends_the_run_and_fewer_ranks_resume_it(alone: Path, tmp_path: Path) -> None:
    """The last of three ranks is killed; then one process, and two, continue from the checkpoint."""
    out = tmp_path / "killed"
    with launched(ranks(3, out)) as process:
        wait_for_rows(process, out, 8)
        kill_rank(process, 2)
        _, err = process.communicate(timeout=300)
    messages = re.findall(r"^fedflat: .*$", err, re.MULTILINE)
    match = re.fullmatch(
        r"fedflat: rank 2 died in round (\d+); a run with an output folder can continue from .*", *messages
    )
    assert match, err
    assert 5 <= int(match[1]) <= ROUNDS
    assert process.returncode != 0
    assert not (out / "result.json").exists()
    for number in (1, 2):
        _resume(number, out, tmp_path / f"resumed-{number}")
        assert_close(tmp_path / f"resumed-{number}", alone, 1e-5)
    clients = load_file(tmp_path / "resumed-2" / "checkpoint" / "state.safetensors")["trial.0.clients.clients"].tolist()
    assert clients == sorted(clients), "the order does not tell how many ranks there were, or that they were others"


def _resume(number: int, killed: Path, out: Path) -> None:
    shutil.copytree(killed, out)
    if number == 1:
        assert main(fedflat(out, "--resume", "--engine", "batched")) == 0
    else:
        with launched(ranks(number, out, "--resume")) as process:
            finish(process)


def test_torchrun_restarts_from_the_checkpoint(alone: Path, tmp_path: Path) -> None:
    """Two undisturbed ranks equal one process; if torchrun restarts them after a kill, they end with the same bits."""
    whole, out = tmp_path / "whole", tmp_path / "restarted"
    with launched(ranks(2, whole)) as process:
        assert finish(process).count("results in") == 1
    assert_close(whole, alone, 1e-5)
    with launched(ranks(2, out, restarts=1)) as process:
        wait_for_rows(process, out, 8)
        kill_rank(process, 0)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert re.search(r"^fedflat: rank 0 died in round \d+;", err, re.MULTILINE), err
    assert_close(out, whole, 0)
    assert rows(out) == rows(whole)
    facts = [json.loads((folder / "result.json").read_text()) for folder in (out, alone)]
    assert facts[0]["versions"]["hardware"].endswith("2 processes")
    assert facts[0]["rounds"] == facts[1]["rounds"] == ROUNDS
