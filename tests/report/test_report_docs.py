"""The commands of docs/report.md and docs/analysis.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import main

DOCS = Path(__file__).parents[2] / "docs"


def run_example(page: str) -> None:
    """Run the commands of a page's tested blocks."""
    blocks = re.findall(r"<!-- tested: .*? -->\n```\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    assert blocks
    for line in "".join(blocks).splitlines():
        program, *words = shlex.split(line)
        assert (program, main(words)) == ("fedflat", 0), line


def figures_of(page: Path) -> set[str]:
    return {*re.findall(r'<figure id="([^"]+)"', page.read_text())}


def test_the_example_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("report.md")
    figures = figures_of(tmp_path / "two.html")
    assert {"probe-sharpness-lambda1", "client-accuracy", "class-forgetting", "probe-alignment-cosine"} <= figures
    assert {"barriers", "wins", "pareto-bytes", "sharpness-lambda1-accuracy"} <= figures
    assert '"label": "baseline"' in (tmp_path / "two.html").read_text()


def test_the_examples_of_the_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("analysis.md")
    assert (tmp_path / "flat" / "fedsam" / "analysis" / "lpf.json").exists()
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "analysis.md").read_text(encoding="utf-8"), re.S)
    scope: dict[str, Any] = {}
    exec(compile(block, "analysis.md", "exec"), scope)
    assert not scope["analysis"].problems
    assert "trajectory" in figures_of(tmp_path / "paths.html")
    assert (tmp_path / "figures" / "trajectory.pdf").exists()
