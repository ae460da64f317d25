"""docs/how-to.md: every command is one that the command line accepts, and the Python blocks run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import main, sweep, train, tune

PAGE = (Path(__file__).parents[2] / "docs" / "how-to.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in re.findall(r"^fedflat (.*)$", PAGE, re.M)]


class ParsedError(SystemExit):
    """Raised where a command would begin to train."""


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:50])
def test_the_command_line_accepts(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(*_: Any, **__: Any) -> None:
        raise ParsedError

    monkeypatch.chdir(tmp_path)
    for module in (train, sweep, tune):
        monkeypatch.setattr(module, "output_folder", parsed)
    monkeypatch.setattr(train, "_check_continues", lambda out: None)  # the run to continue is not there
    if words[0] in ("run", "compare", "sweep", "tune"):
        with pytest.raises(ParsedError):
            main(words)
    elif words[0] == "cite":
        assert main(words) == 0
    else:
        assert words[0] == "report"


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    here = [section for section in PAGE.split("\n## ") if "test_hugging_face.py runs" not in section]
    for block in re.findall(r"```python\n(.*?)```", "".join(here), re.S):
        exec(compile(block, "how-to.md", "exec"), scope)
    assert "parameters are trained and sent\nmse " in capsys.readouterr().out
    scheduled = "run fedavg --clients 5 --cohort 5 --availability schedule.csv --model mlp --local-epochs 1 --rounds 3"
    assert main([*scheduled.split(), "--out", "schedule"]) == 0
    assert '"clients_asked_per_round": 2.0' in Path("schedule/result.json").read_text()
    tuned = "run fedsol --perturb all --model mlp --init weights.safetensors --rounds 1 --out tuned"
    assert main(tuned.split()) == 0
    (houses,) = (words for words in COMMANDS if "table:houses.csv" in words)
    assert main([*houses, "--rounds", "1"]) == 0
    assert '"metric": "mse"' in Path("runs/houses/result.json").read_text()
