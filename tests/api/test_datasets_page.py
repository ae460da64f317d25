"""The examples of docs/datasets.md: a table on the command line, and data sets of torch."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
TESTED = re.findall(r"<!-- tested: [^>]* -->\n```python\n(.*?)```", PAGE, re.S)


def test_a_table_from_the_command_to_the_personal_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(TESTED[0], "datasets.md", "exec"), {})
    command = re.search(r"^fedflat (run fedavg --dataset table:.*)$", PAGE, re.M)
    assert command
    assert main(shlex.split(command[1])) == 0
    printed, shown = (rows_of_clients(text) for text in (capsys.readouterr().out, PAGE))
    assert [row[:3] for row in printed] == [row[:3] for row in shown]
    assert [float(n) for row in printed for n in row[3:]] == pytest.approx(
        [float(n) for row in shown for n in row[3:]], rel=0.05
    )
    assert main(["run", "fedavg", "--out", "runs/houses", "--resume", "--rounds", "11"]) == 0
    assert main(["report", "runs/houses", "--out", "page.html"]) == 0
    assert "Single clients" in Path("page.html").read_text()
    assert main(["personalise", "runs/houses", "--epochs", "1", "--no-alone"]) == 0
    rows = json.loads(Path("runs/houses/personalise.json").read_text())
    assert rows[0]["tested_on"] == "their own test samples"
    result = json.loads(Path("runs/houses/result.json").read_text())
    assert rows[0]["mse"] == pytest.approx(result["training_clients"]["mean"][0])
    capsys.readouterr()
    Path("houses.csv").write_text(Path("houses.csv").read_text().replace("68,1,", "69,1,"))
    assert main(["run", "fedavg", "--out", "runs/houses", "--resume", "--rounds", "12"]) == 2
    assert "table:houses.csv" in capsys.readouterr().err


def rows_of_clients(text: str) -> list[list[str]]:
    """Return the cells of the rows about single clients."""
    lines = [
        line.split("│")[1:-1] for line in text.splitlines() if "own test samples │" in line or "held out  " in line
    ]
    return [[cell.strip() for cell in cells] for cells in lines]


def test_data_sets_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    exec(compile(TESTED[1], "datasets.md", "exec"), scope)
    assert float(capsys.readouterr().out) > 0.6
    assert len(scope["data"].y) == 160
