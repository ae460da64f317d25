"""The commands of docs/report.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from fedflat.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "report.md"


def test_the_example(tmp_path: Path, monkeypatch) -> None:
    (block,) = re.findall(r"<!-- tested: .*? -->\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert (program, main(words)) == ("fedflat", 0), line
    text = (tmp_path / "two.html").read_text()
    figures = {*re.findall(r'<figure id="([^"]+)"', text)}
    assert {"probe-sharpness-lambda1", "client-accuracy", "class-forgetting", "probe-alignment-cosine"} <= figures
    assert {"barriers", "wins", "pareto-bytes", "sharpness-lambda1-accuracy"} <= figures
    assert '"label": "baseline"' in text
