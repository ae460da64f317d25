"""docs/tasks.md runs, and runs of other tasks go through results, tables, report, sweep and stopping."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.report.tables import print_results
from fedflat.runs.read import read_stored_runs

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_the_page_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{50 + n},{n % 4 + 1},{'Bonn' if n % 3 else 'Ulm'},{1.5 * n},agent-{n % 5}" for n in range(30)]
    Path("houses.csv").write_text("\n".join(["area,rooms,city,price,agent", *rows]))
    scope: dict[str, Any] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(source, "tasks.md", "exec"), scope)
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["mse", "mae", "pinball"]
    assert scope["result"].final < 1
    assert scope["houses"].x.shape == (25, 4)
    assert int(scope["houses"].owner.max()) == 4


@pytest.fixture(scope="module")
def numbers() -> ff.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5))
    y = x @ rng.normal(size=5)
    return ff.Dataset.from_arrays(x[:90], y[:90], x[90:], y[90:])


def experiment(numbers: ff.Dataset, **options: Any) -> ff.Experiment:
    small: dict[str, Any] = {"rounds": 4, "clients": 6, "cohort": 3, "local_epochs": 1, "seeds": (0, 1)}
    torch.manual_seed(0)
    return ff.Experiment(dataset=numbers, model=nn.Linear(5, 1), **small | options)


def test_a_regression_has_a_folder_a_table_and_a_report(
    numbers: ff.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ff.run(experiment(numbers, lr=0.001), out=tmp_path / "slow")
    fast = ff.run(experiment(numbers, lr=0.05), out=tmp_path / "fast")
    assert fast.final < slow.final
    written = json.loads((tmp_path / "fast" / "result.json").read_text())
    assert written["final_mse"] == fast.final
    assert (written["metric"], written["higher_is_better"]) == ("mse", False)
    runs, problems = read_stored_runs([tmp_path / "slow", tmp_path / "fast"])
    assert not problems
    assert runs[1].result == fast
    assert fast.rounds_to(fast.final_per_seed[0] * 1.1) is not None
    assert slow.rounds_to(0.0) is None
    print_results(runs)
    assert "mse" in capsys.readouterr().out
    ff.write_report([tmp_path / "slow", tmp_path / "fast"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Mse on the test set" in page
    with pytest.raises(ff.UserError, match="this task has no accuracy"):
        fast.accuracy  # noqa: B018
    (row,) = ff.personalise(tmp_path / "fast", [0], alone=False, experiment=experiment(numbers, lr=0.05))
    assert (row.metric, row.tested_on) == ("mse", "the whole test set")
    assert row.accuracy == pytest.approx(fast.final)


def test_a_sweep_ranks_lower_as_better(numbers: ff.Dataset) -> None:
    points = ff.sweep(experiment(numbers, validation=0.2, seeds=(0,)), {"lr": [0.001, 0.05]})
    assert [point.values["lr"] for point in points] == [0.05, 0.001]


def test_early_stopping_knows_the_direction(numbers: ff.Dataset) -> None:
    result = ff.run(experiment(numbers, lr=1e-9, rounds=20), callbacks=[ff.EarlyStopping(patience=3, min_delta=1e-3)])
    assert result.stopped is not None
    assert "no lower mse in 3 evaluations" in result.stopped
