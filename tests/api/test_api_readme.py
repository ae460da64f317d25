"""The README's Python examples work and are short; its commands and methods exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import COMMANDS
from fedflat.methods import METHODS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)


def run_snippet(word: str) -> Any:
    """Run the example that contains `word`, and return its result."""
    (snippet,) = (text for text in SNIPPETS if word in text)
    scope: dict[str, Any] = {}
    exec(compile(snippet, "README.md", "exec"), scope)
    return scope["result"]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets_are_short(snippet: str) -> None:
    assert len([line for line in snippet.splitlines() if line.strip()]) < 15


def test_a_resnet_with_batch_normalisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_snippet("norm_stats").accuracy > 0.8


def test_snippet_of_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_snippet("FedSOL").accuracy > 0.8
    shown = re.search(r"```text\n(\d+\.\d)% ± \d+\.\d% with 3084 bytes up\n```", README)
    printed = re.fullmatch(r"(\d+\.\d)% ± \d+\.\d% with 3084 bytes up\n", capsys.readouterr().out)
    assert shown
    assert printed
    assert float(printed[1]) == pytest.approx(float(shown[1]), abs=2), "another machine rounds in another way"
    assert len([line for line in SNIPPETS[0].splitlines() if line.strip()]) == 10


def test_snippet_of_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_snippet("load_table").held_out_clients["clients"] == 2
    found = re.fullmatch(r"r2 (0\.\d\d), mse on held-out clients (0\.\d\d)\n", capsys.readouterr().out)
    assert found
    assert float(found[1]) > 0.3


def test_snippet_of_lora(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_snippet("ff.lora")
    assert result.history[-1]["perplexity"] < 60, "256 before training"
    assert re.fullmatch(r"perplexity \d+\.\d with 9472 trained parameters\n", capsys.readouterr().out)


def test_it_is_read_in_two_minutes() -> None:
    words = re.sub(r"```.*?```|\(\S+\)|^\|.*$|<!--.*?-->", "", README, flags=re.M | re.S).split()
    assert len(words) < 500, "what is not needed to begin belongs on another page"


def test_commands_and_methods_exist() -> None:
    commands_only = re.sub(r"```\w+\n.*?```\n", "", README, flags=re.S)
    blocks = "".join(re.findall(r"```\n(.*?)```", commands_only, re.S))
    shown = set(re.findall(r"^fedflat (\w+)", blocks, re.M))
    assert {"run", "compare", "sweep", "analyse", "report"} <= shown <= set(COMMANDS)
    table = README.partition("## Methods")[2].partition("## Limits")[0]
    rows = "".join(re.findall(r"^\| .* \| (`.*?) \|$", table, re.M))
    assert set(re.findall(r"`([\w-]+)`", rows)) == set(METHODS)
