"""Digits on several real processes: the result of one, and what happens when one of them is killed."""

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

from launch import finish, kill_rank, launched, torchrun
from test_ranks import by_client

from fedflat.cli import main

RUN = shlex.split("run fedgloss --rounds 12 --local-epochs 1 --cohort 4 --seeds 0 1 --checkpoint-every 3 --warmup 6")


def fedflat(out: Path, *more: str) -> list[str]:
    return [*RUN, "--out", str(out), *more]


def ranks(number: int, out: Path, *more: str, restarts: int = 0) -> list[str]:
    return torchrun(number, f"--max-restarts={restarts}", "-m", "fedflat", *fedflat(out, *more))


def wait_for_rows(process: subprocess.Popen[str], out: Path, lines: int) -> None:
    """Until the run has written so many metrics."""
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
        time.sleep(0.002)


def rows(out: Path) -> list[dict[str, object]]:
    """Metrics without what the clock wrote."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(line).items() if name != "seconds"} for line in lines]


def assert_close(one: Path, other: Path, tolerance: float) -> None:
    states = [by_client(load_file(out / "checkpoint" / "state.safetensors")) for out in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name in states[0].keys() - {"counters"}:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=0, atol=tolerance, msg=name)
    assert [(row["round"], row["seed"]) for row in rows(one)] == [(row["round"], row["seed"]) for row in rows(other)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks from start to end."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with launched(ranks(2, out)) as process:
        printed = finish(process)
    assert printed.count("results in") == 1
    return out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(fedflat(out)) == 0
    return out


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """Three ranks of which the last is killed in the middle; what was said, and the exit code."""
    out = tmp_path_factory.mktemp("killed") / "run"
    with launched(ranks(3, out)) as process:
        wait_for_rows(process, out, 8)
        kill_rank(process, 2)
        _, err = process.communicate(timeout=300)
    return out, err, process.returncode


def test_two_ranks_equal_one(whole: Path, alone: Path) -> None:
    assert_close(whole, alone, 1e-5)
    results = [json.loads((out / "result.json").read_text()) for out in (whole, alone)]
    assert results[0]["versions"]["hardware"].endswith("2 processes")
    assert results[0]["rounds"] == results[1]["rounds"] == 12
    assert results[0]["bytes_up_per_client_round"] == results[1]["bytes_up_per_client_round"]


def test_a_killed_rank_ends_the_run(killed: tuple[Path, str, int]) -> None:
    out, err, code = killed
    said = re.findall(r"^fedflat: .*$", err, re.MULTILINE)
    assert code != 0
    assert len(said) == 1, err
    match = re.match(r"fedflat: rank 2 died in round (\d+); with --out the run continues", said[0])
    assert match, said
    assert 5 <= int(match[1]) <= 12
    assert not (out / "result.json").exists()


@pytest.mark.parametrize("number", [1, 2])
def test_resumed_with_fewer_ranks(number: int, killed: tuple[Path, str, int], alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(killed[0], out)
    if number == 1:
        assert main(fedflat(out, "--resume", "--engine", "batched")) == 0
    else:
        with launched(ranks(number, out, "--resume")) as process:
            finish(process)
    assert_close(out, alone, 1e-5)


def test_torchrun_restarts_from_the_checkpoint(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with launched(ranks(2, out, restarts=1)) as process:
        wait_for_rows(process, out, 8)
        kill_rank(process, 0)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert re.search(r"^fedflat: rank 0 died in round \d+;", err, re.MULTILINE), err
    assert_close(out, whole, 0)
    assert rows(out) == rows(whole)
