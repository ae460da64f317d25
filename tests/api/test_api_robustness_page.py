"""The commands of docs/robustness.md work, and its refusal is what is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedflat.cli import main
from fedflat.runs.read import read_stored_run

PAGE = (Path(__file__).parents[2] / "docs" / "robustness.md").read_text(encoding="utf-8")


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"runs these commands -->\n```\n(.*?)```", PAGE, re.S)
    for line in block.splitlines():
        assert main(shlex.split(line)[1:]) == 0
    runs = [read_stored_run(tmp_path / "runs" / name) for name in ("attacked", "median", "clipped")]
    attacked, median, clipped = (run.rows[-1]["accuracy"] for run in runs)
    assert attacked < min(median, clipped) - 0.2, "both defences help, as the page says"


def test_the_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    ((command, message),) = re.findall(r"\$ fedflat (.*)\n(fedflat: .*)\n", PAGE)
    assert main(shlex.split(command)) == 2
    assert capsys.readouterr().err.strip() == message
