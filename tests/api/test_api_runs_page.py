"""The examples of docs/runs.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedflat.cli import main
from fedflat.runs.read import read_stored_run

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"runs these commands -->\n```\n(.*?)```", PAGE, re.S)
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "fedflat"
        assert main(words[1:]) == 0
    result = read_stored_run(tmp_path / "runs" / "one").result
    assert result is not None
    assert (result.rounds, result.seeds, len(result.history)) == (6, [0, 1], 12)


def test_the_snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    scope: dict[str, object] = {}
    exec(compile(snippet, "docs/runs.md", "exec"), scope)
    assert scope["result"].rounds == 6  # type: ignore[attr-defined]
