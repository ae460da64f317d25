"""Missing packages, too little memory, and a reader of the output that ends early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.cli import main

SMALL = {"rounds": 2, "clients": 4, "cohort": 2, "partition": "iid", "model": "mlp", "local_epochs": 1}
WORDS = [word for name, value in SMALL.items() for word in ("--" + name.replace("_", "-"), str(value))]
TRAINING = """
import sys
for name in ("tyro", "plotly", "jinja2", "pooch", "pydantic"):
    sys.modules[name] = None
import fedflat
result = fedflat.run(fedflat.Experiment(rounds=1, model="mlp", local_epochs=1, engine="sequential"), out=sys.argv[1])
print(result.rounds)
"""


def test_training_needs_no_packages_of_the_report_and_the_command_line(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TRAINING, str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_run_without_the_packages_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "fedflat.report.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    out = tmp_path / "run"
    assert main(["run", "fedavg", *WORDS, "--out", str(out)]) == 0
    assert "jinja2 is not installed" in capsys.readouterr().out
    assert (out / "result.json").exists()
    assert not (out / "report.html").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory."),
    ],
)
def test_too_little_memory(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fedflat.cli.train.run", fail)
    assert main(["run", "fedavg", "--out", "never"]) == 1
    assert capsys.readouterr().err.startswith("fedflat: not enough memory")


def test_other_errors_are_one_line_and_a_traceback_on_request(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug\nin two lines")

    monkeypatch.setattr("fedflat.cli.train.run", fail)
    assert main(["run", "fedavg", "--out", "never"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("fedflat: internal error (RuntimeError: a bug in two lines); ")
    assert said.count("\n") == 1
    with pytest.raises(RuntimeError, match="a bug"):
        main(["run", "fedavg", "--out", "never", "--debug"])


def test_a_huge_batch_size_is_the_largest_client() -> None:
    sizes = (400, 10**9)
    losses = [ff.run(ff.Experiment(batch_size=size, **SMALL)).curve(0, "loss") for size in sizes]
    assert losses[0] == losses[1]


def test_reader_that_ends_early() -> None:
    """fedflat methods --json | head -1."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "fedflat", "methods", "--json"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
