"""Finished runs from Python: folders may be given as text or paths, options as in `Experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedflat as ff
from fedflat.flatness.finished_run import AnalysisSettings

SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "cohort": 2, "partition": "iid", "model": "mlp", "local_epochs": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    ff.run(ff.Experiment(**SMALL), out=str(out))
    return out


@pytest.mark.parametrize("given", [str, Path, lambda run: [str(run)], lambda run: (run,)])
def test_analyse(run: Path, given: Any) -> None:
    settings = AnalysisSettings(what=["lpf"], draws=np.int64(4))  # type: ignore[arg-type]
    found = ff.analyse(given(run), settings)
    assert not found.problems
    assert found.documents["one"]["lpf"]["settings"]["draws"] == 4


def test_report(run: Path, tmp_path: Path) -> None:
    assert ff.write_report([str(run)], str(tmp_path / "page.html"), figures=str(tmp_path / "figures")) == []
    assert "fedavg" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert list((tmp_path / "figures").iterdir())


def test_personalise(run: Path) -> None:
    assert [row.epochs for row in ff.personalise(str(run), [np.int64(0)], alone=False)] == [0, 0]
