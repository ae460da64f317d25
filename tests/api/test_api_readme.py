"""The README's Python example works and is short; its commands and methods exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedflat.cli import COMMANDS
from fedflat.methods import METHODS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len([line for line in snippet.splitlines() if line.strip()]) < 15
    scope: dict[str, object] = {}
    exec(compile(snippet, "README.md", "exec"), scope)
    assert scope["result"].accuracy > 0.8  # type: ignore[attr-defined]
    assert re.fullmatch(r"\d+\.\d% ± \d+\.\d% with 3084 bytes up\n", capsys.readouterr().out)


def test_commands_and_methods_exist() -> None:
    blocks = "".join(re.findall(r"```\n(.*?)```", README, re.S))
    assert set(re.findall(r"fedflat (\w+)", blocks)) == set(COMMANDS)
    table = README.partition("## Methods")[2].partition("## Adding")[0]
    listed = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`([\w-]+)`", row)}
    assert listed == set(METHODS)
