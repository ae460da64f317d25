"""The commands and examples of docs/optimisers.md, docs/personal.md and docs/sweeps.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedflat.cli import main

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str) -> int:
    """Run the commands of a page with fewer steps, then its Python example; return the number of commands."""
    page = (DOCS / name).read_text(encoding="utf-8")
    commands = re.findall(r"^fedflat (.*)$", page, re.M)
    for number, command in enumerate(commands):
        assert main([*shlex.split(command), "--local-epochs", "1", "--rounds", "2", "--out", f"run{number}"]) == 0
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(snippet, name, "exec"), {})
    return len(commands)


@pytest.fixture(autouse=True)
def in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_american_spelling() -> None:
    words = "run fedavg --optimizer adamw --optimizer-state keep --rounds 1 --local-epochs 1 --model mlp --out run"
    assert main(words.split()) == 0
    assert "optimiser: adamw" in (Path("run") / "config.yaml").read_text()


def test_optimisers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_page("optimisers.md") == 5
    assert float(capsys.readouterr().out.splitlines()[-1].rstrip("%")) > 50


def test_personal_models(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "personal.md").read_text(encoding="utf-8")
    for command in re.findall(r"^fedflat (.*)$", page, re.M):
        assert main(shlex.split(command)) == 0
    out = capsys.readouterr().out
    first_columns = re.findall(r"^(│ [^│]+│ \d+ +│)", page, re.M)
    assert len(first_columns) == 7
    assert all(columns in out for columns in first_columns)


def test_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_page("sweeps.md") == 2
    out = capsys.readouterr().out.splitlines()
    end = out.index("results in run0")
    best, command, example = out[end - 2], out[end - 1], out[-3]
    assert re.fullmatch(r"best: --rho [\d.]+ --lr [\d.]+", best)
    again = command.removeprefix("train it on all samples: fedflat ")
    assert "--validation" not in again
    assert len(list(Path("run0").glob("*/result.json"))) == 4
    assert re.fullmatch(r"\{'rho': [\d.]+, 'lr': [\d.]+\} [\d.]+%", example)
    assert out[-2].count("StopAtAccuracy") == 2, "both points were stopped by their own callback"
    assert re.fullmatch(r"\{'rho': [\d.]+\} [\d.]+%", out[-1])
    searched = [line.partition(": ")[0] for line in out[out.index("results in run1") - 3 :][:3]]
    assert searched == ["best", "test accuracy of the best", "train it on all samples"]
    assert main([*shlex.split(again), "--rounds", "1", "--out", "best"]) == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "name a method and the values"),
        ("fedsol --validation 0.1", "give at least one option with its values"),
        ("fedsol rho --validation 0.1", "rho: must look like name=value,value"),
        ("fedsol rho=1 rho=2 --validation 0.1", "rho may be given once"),
        ("fedsol rh=1 --validation 0.1", "did you mean rho?"),
        ("fedsol rho=1,x --validation 0.1", "--rho x"),
        ("fedsol =1,2 --validation 0.1", "=1,2: must look like name=value,value"),
        ("fedsol rho=1..2 --validation 0.1", "rho=1..2: fedflat tune searches ranges"),
        ("fedsol seeds=0,1 --validation 0.1", "--seeds: is the same for all points; give --seeds 0 1 beside them"),
        ("fedsol validation=0.1,0.2", "--validation: is the same for all points; give --validation 0.1"),
        ("fedsol method=fedavg,fedsam --validation 0.1", "fedflat compare trains several methods"),
        (
            "fedsol --rho 1,2 --validation 0.1",
            "--rho 1,2: must be a number; values to sweep stand before the flags, rho=1,2",
        ),
        ("fedsol --space rho=0.1-5", "--space rho=0.1-5: must be a number; a range is written rho=0.1..5"),
        ("fedsol --space", "--space: give the options to search"),
        ("fedsol --space rho", "--space rho: must look like"),
        ("fedsol --space rho=5..1", "--rho 5..1: must go from a smaller"),
        ("fedsol --space rho=0..1:log", "--rho 0..1:log: must begin above 0"),
        ("fedsol --space rho=0.1..1:lin", "--space rho=0.1..1:lin: after the numbers may stand :log"),
        ("fedsol --space rho=-1..1", "--rho -1: must be at least 0"),
        ("fedsol --space lr=0.1..inf", "--lr inf: must be more than 0 and finite"),
        ("fedsol --space local-epochs=0.5..2", "--local-epochs 0.5: must be a whole number"),
        ("fedsol --space rho=a..1", "two numbers around .."),
        ("fedsol --space perturb=1..2", "is not a number"),
        ("fedsol --space rho=1..2", "--validation: points are compared"),
        ("fedsol --space rho=1..2 lr=0.1..1 --sampler grid --trials 3 --validation 0.1", "too few for a grid"),
        ("fedsol rho=1,2", "--validation: points are compared on held-out training samples"),
    ],
)
def test_mistakes_are_one_line(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = "tune" if "--space" in words else "sweep"
    assert main([command, *words.split()]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1
