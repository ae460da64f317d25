"""The Python blocks of docs/callbacks.md run as printed, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedflat as ff

PAGE = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "callbacks.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert re.search(r"^round 6: accuracy \d+%, norm \d", printed, re.M)
    assert re.search(r"^round 3: accuracy \d+%, clients \[.*\], distance \d", printed, re.M)
    assert ff.load_model("runs/own-loop")


def test_the_built_in_callbacks_take_what_the_page_gives_them() -> None:
    text = " ".join(PAGE.partition("Built in are")[2].partition("##")[0].split())
    made = re.findall(r"`(ff\.\w+\(.*?\))`", text)
    assert len(made) == 6
    for call in made:
        if "Wandb" not in call and "MLflow" not in call:
            eval(call, {"ff": ff})


def test_the_page_names_every_part_of_a_view() -> None:
    for name in (
        "round",
        "seconds",
        "experiment",
        "folder",
        "metrics",
        "history",
        "server",
        "servers",
        "model",
        "models",
    ):
        assert f"`{name}`" in PAGE
        assert hasattr(ff.TrainingView, name) or name in ff.TrainingView.__dataclass_fields__
