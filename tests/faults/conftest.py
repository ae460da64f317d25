"""Fixtures for tests of run folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted_run import RUN, stop_after

from fedflat.cli import main


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run stopped after five rounds, with a checkpoint of round four."""
    stop_after(5, monkeypatch)
    assert main([*RUN, "--out", str(tmp_path / "run")]) == 130
    monkeypatch.undo()
    return tmp_path / "run"
