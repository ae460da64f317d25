"""A small run that is stopped in the middle, and a check that its folder is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fedflat.cli import main
from fedflat.progress import TrainingBar

SMALL = shlex.split(
    "--rounds 6 --clients 4 --cohort 2 --partition iid --model mlp --local-epochs 1 --engine sequential"
)
RUN = ["run", "fedgloss", *SMALL, "--checkpoint-every", "2"]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stop_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt trainings of the command line after so many rounds."""

    def update(self: TrainingBar, round: int, rows: object) -> None:
        if round == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingBar, "update", update)


def refused(words: list[str], folder: Path, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that a command refuses the folder with one line that contains `problem`, and changes no file."""
    before = contents(folder)
    capsys.readouterr()
    assert main([*words, "--out", str(folder)]) == 2
    err = capsys.readouterr().err
    assert f"--out {folder}" in err
    assert problem in err
    assert err.count("\n") == 1
    assert contents(folder) == before
