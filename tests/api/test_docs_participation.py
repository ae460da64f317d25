"""The examples of docs/participation.md: its commands run, its Python prints what the page shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fedflat.cli import main
from fedflat.runs.experiment import Setting

PAGE = (Path(__file__).parents[2] / "docs" / "participation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.S)


def test_the_python_example_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (number,) = (n for n, (kind, _) in enumerate(BLOCKS) if kind == "python")
    exec(compile(BLOCKS[number][1], "participation.md", "exec"), {})
    assert capsys.readouterr().out == BLOCKS[number + 1][1]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (_, text) in zip(("trace.csv", "own.csv"), (b for b in BLOCKS if b[0] == "csv"), strict=True):
        Path(name).write_text(text)
    commands = [text for _, text in BLOCKS if text.startswith("fedflat ")]
    assert len(commands) == 4
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    result = json.loads(Path("runs/slow/result.json").read_text())
    shown = json.loads("{" + next(text for _, text in BLOCKS if "clients_asked" in text) + "}")
    assert {name: result[name] for name in shown} == shown
    pytest.importorskip("dp_accounting")
    assert next(text for _, text in BLOCKS if "privacy: ε" in text) in capsys.readouterr().out


def test_the_table_has_every_sampling() -> None:
    table = PAGE.partition("## Samplings")[2].partition("With `cyclic`")[0]
    listed = re.findall(r"^\| `(\w[\w-]*)` \|", table, re.M)
    assert tuple(sorted(listed)) == tuple(sorted(get_args(get_type_hints(Setting)["sampling"])))
