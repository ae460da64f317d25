"""The commands and the example of docs/optimisers.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedflat.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "optimisers.md").read_text(encoding="utf-8")


def test_commands_and_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^fedflat (.*)$", PAGE, re.M)
    assert len(commands) == 3
    for number, command in enumerate(commands):
        assert main([*shlex.split(command), "--local-epochs", "1", "--rounds", "2", "--out", f"run{number}"]) == 0
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    capsys.readouterr()
    exec(compile(snippet, "optimisers.md", "exec"), {})
    assert float(capsys.readouterr().out.rstrip("%\n")) > 50
