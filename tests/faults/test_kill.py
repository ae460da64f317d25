"""A run that is killed at any moment can be continued, and its result is bit-identical to an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import time
from pathlib import Path

import pytest
import torch
from forked_commands import ForkedCommand
from safetensors.torch import load_file

RUN = shlex.split("run compress+fedgloss:warmup=6 --bits 4 --rounds 16 --local-epochs 1 --seeds 0 1")
RUN += shlex.split("--checkpoint-every 3")
RUN += shlex.split("--optimiser adamw --optimiser-state keep --lr 0.003 --lr-schedule cosine")


def start(out: Path, *more: str) -> ForkedCommand:
    return ForkedCommand([*RUN, "--out", str(out), *more], out.parent)


def wait_until_running(process: ForkedCommand, out: Path, lines: int) -> None:
    """Wait until the run has written so many lines of metrics, or config.yaml if `lines` is 0."""
    metrics = out / "metrics.jsonl"
    while process.running:
        if lines == 0 and (out / "config.yaml").exists():
            return
        if lines and metrics.exists() and metrics.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.002)


def rows(out: Path) -> list[dict[str, object]]:
    """Return the rows of metrics without their times."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(line).items() if name != "seconds"} for line in lines]


def assert_same(one: Path, other: Path) -> None:
    assert rows(one) == rows(other)
    states = [load_file(out / "checkpoint" / "state.safetensors") for out in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name in states[0].keys() - {"counters"}:
        assert torch.equal(states[0][name], states[1][name]), name
    results = [json.loads((out / "result.json").read_text()) for out in (one, other)]
    for timed in ("seconds", "client_steps_per_second"):
        assert results[0].pop(timed) > 0 < results[1].pop(timed)
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    code, _, err = start(out).wait()
    assert code == 0, err
    return out


def test_killed_again_and_again(whole: Path, tmp_path: Path) -> None:
    out, generator = tmp_path / "run", random.Random(os.getpid())
    moments = [0, *sorted(generator.sample(range(2, 28), 2))]
    for lines in moments:
        process = start(out, "--resume")
        wait_until_running(process, out, lines)
        time.sleep(generator.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        code, _, err = process.wait()
        assert code in (-signal.SIGKILL, 0), (moments, err)
    if not (out / "result.json").exists():
        code, _, err = start(out, "--resume").wait()
        assert code == 0, (moments, err)
    assert_same(whole, out)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_interrupted_by_a_signal(whole: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The last complete round is saved though no checkpoint was due, and the command that is printed continues."""
    out = tmp_path / "a run"
    process = start(out, "--checkpoint-every", "1000")
    wait_until_running(process, out, 4)
    process.send_signal(number)
    ended, printed, err = process.wait()
    assert ended == code, err
    assert not printed
    message, command = err.splitlines()[-1].split(": fedflat ")
    assert message == "fedflat: interrupted; continue with"
    saved = load_file(out / "checkpoint" / "state.safetensors")["counters"][0]
    assert saved == rows(out)[-1]["round"] >= 2
    again, _, err = ForkedCommand(shlex.split(command), tmp_path).wait()
    assert again == 0, err
    assert_same(whole, out)
