"""The commands and the example of docs/text.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedflat.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "text.md").read_text(encoding="utf-8").partition("## Hugging Face")[0]
LIGHT = "--rounds 1 --batch-size 8 --cohort 2 --model char-lstm --sequence-length 8 --local-steps 1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("letters").mkdir()
    for name in ("anna", "bert", "carl"):
        Path(f"letters/{name}").write_text(f"Dear {name}, how are you? " * 4)


def test_the_commands_run() -> None:
    commands = re.findall(r"^fedflat (.*)$", PAGE, re.M)
    assert len(commands) == 2
    for command in commands:
        assert main([*shlex.split(command), *LIGHT.split()]) == 0


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(source, "text.md", "exec"), {})
    count, perplexity = re.fullmatch(r"(\d+) trained .* (\d+\.\d)\n", capsys.readouterr().out).groups()
    assert int(count) == 2 * 2 * 4 * 32 + 33 * 256
    assert float(perplexity) < 120, "256 before training"


@pytest.mark.parametrize("method", ["fedntd", "fedsol", "fedgmt", "moon", "feddecorr"])
def test_methods_for_classes_say_so(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*f"run {method} --dataset text:letters {LIGHT}".split()]) == 2
    error = capsys.readouterr().err
    assert "compares class scores" in error or "no parts `features` and `head`" in error


@pytest.mark.parametrize("method", ["fedbabu", "perfedavg"])
def test_methods_that_treat_the_head_apart_learn_text(method: str) -> None:
    assert main([*f"run {method} --dataset text:letters {LIGHT} --engine sequential".split()]) == 0
