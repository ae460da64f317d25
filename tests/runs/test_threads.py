"""The number of CPU threads: a rule without a clock, what overrides it, and that it survives a resumed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedflat as ff
from fedflat.runs import threads
from fedflat.runs.build import build_run
from fedflat.runs.threads import WORK_PER_THREAD, choose_threads, count_multiplications, restore_threads

TINY = {"model": "mlp", "clients": 4, "cohort": 2, "local_steps": 1, "rounds": 1, "device": "cpu"}


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a user's machine with four cores, where nothing is set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "count_cores", lambda: 4)
    with restore_threads():
        yield


def trained(out: Path | None = None, resume: bool = False, **options: Any) -> tuple[ff.Result, set[int]]:
    """The result, and the numbers of threads that were seen during training."""
    seen: set[int] = set()
    experiment = ff.Experiment(**{**TINY, **options})
    result = ff.run(experiment, out, resume, watch=lambda round, rows: seen.add(torch.get_num_threads()))
    return result, seen


def test_multiplications_are_counted() -> None:
    built = build_run(ff.Experiment(model="digits-cnn", device="cpu"))
    batch = built.client_data.samples(torch.arange(3))
    by_hand = 8 * 8 * 16 * 9 + 4 * 4 * 32 * 16 * 9 + 128 * 64 + 64 * 10
    assert count_multiplications(built.task, built.initial_params[0], batch) == 3 * by_hand


@pytest.mark.parametrize(
    ("cores", "batch_size", "expected"), [(4, 1, 1), (4, 31, 1), (4, 62, 2), (4, 500, 4), (1, 500, 1)]
)
def test_threads_grow_with_the_work_of_a_batch(
    cores: int, batch_size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "count_cores", lambda: cores)
    monkeypatch.setattr(threads, "count_multiplications", lambda *_: 2 * WORK_PER_THREAD / 31)  # of two samples
    experiment = ff.Experiment(**TINY)
    assert choose_threads(experiment, build_run(experiment), batch_size) == expected


def test_what_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = ff.Experiment(**TINY)
    built = build_run(experiment)
    torch.set_num_threads(3)
    assert choose_threads(experiment, built) == 1
    assert choose_threads(experiment, built, before=2) == 2
    assert choose_threads(experiment, built, batch_size=10**6, ranks=2, before=2) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads(experiment, built) == 3
    assert choose_threads(experiment, built, before=2) == 2
    assert choose_threads(ff.Experiment(**TINY, threads=4), built, before=2) == 4


def test_run_gives_torch_its_threads_back() -> None:
    torch.set_num_threads(3)
    result, seen = trained()
    assert (seen, torch.get_num_threads()) == ({1}, 3)
    assert result.versions["threads"] == "1"
    with pytest.raises(ff.UserError):
        trained(threads=2, cohort=9)
    assert torch.get_num_threads() == 3


def test_the_option_is_written_only_where_it_is_given(tmp_path: Path) -> None:
    assert trained(tmp_path / "two", threads=2)[1] == {2}
    trained(tmp_path / "auto")
    assert yaml.safe_load((tmp_path / "two/config.yaml").read_text())["threads"] == 2
    assert "threads" not in yaml.safe_load((tmp_path / "auto/config.yaml").read_text())
    assert json.loads((tmp_path / "two/result.json").read_text())["versions"]["threads"] == "2"


def test_a_run_goes_on_with_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "2")
        torch.set_num_threads(2)
        trained(tmp_path)
    torch.set_num_threads(1)
    assert trained(tmp_path, resume=True, rounds=2)[1] == {2}
    assert trained(tmp_path, resume=True, rounds=3, threads=1)[1] == {1}


@pytest.mark.parametrize("count", [0, 1025])
def test_impossible_numbers_are_refused(count: int) -> None:
    with pytest.raises(ff.UserError, match="threads"):
        trained(threads=count)


def test_waiting_threads_of_the_command_sleep() -> None:
    script = (
        "import os, sys, fedflat.cli as cli; cli.main([]); print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split()[-2:] == ["passive", "False"]
