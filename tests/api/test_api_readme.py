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


def test_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_snippet("FedSOL").accuracy > 0.8
    assert re.fullmatch(r"\d+\.\d% ± \d+\.\d% with 3084 bytes up\n", capsys.readouterr().out)


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


def test_commands_and_methods_exist() -> None:
    commands_only = re.sub(r"```\w+\n.*?```\n", "", README, flags=re.S)
    blocks = "".join(re.findall(r"```\n(.*?)```", commands_only, re.S))
    assert set(re.findall(r"fedflat (\w+)", blocks)) == set(COMMANDS)
    table = README.partition("## Methods")[2].partition("## Adding")[0]
    listed = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`([\w-]+)`", row)}
    assert listed == set(METHODS)
