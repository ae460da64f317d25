"""CONTRIBUTING's example of a method works as printed: from Python, with every engine, and by its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fedflat as ff
from fedflat.cli import main
from fedflat.cli.catalogue import describe_method
from fedflat.core.task import Batch, Task
from fedflat.flatness.finished_run import AnalysisSettings

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SMALL = {"rounds": 3, "clients": 4, "cohort": 2, "partition": "iid", "model": "mlp", "local_epochs": 1}


@pytest.fixture
def fedngd() -> Iterator[type[ff.Method]]:
    (source,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.S)
    module = sys.modules["fedngd"] = ModuleType("fedngd")
    exec(compile(source, "fedngd.py", "exec"), module.__dict__)
    yield module.FedNGD
    del sys.modules["fedngd"], ff.METHODS["fedngd"]


def test_step_has_the_given_length(fedngd: type[ff.Method]) -> None:
    task = Task(torch.nn.Linear(3, 2))
    batch = Batch(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]), torch.ones(4, dtype=torch.bool), None)
    w = torch.randn(task.size)
    direction, _ = fedngd(length=0.5).step(task, w, batch, None, ())  # type: ignore[call-arg]
    assert float(direction.norm()) == pytest.approx(0.5, rel=1e-5)
    assert float(torch.dot(direction, task.grad(w, batch))) > 0


def test_engines_agree(fedngd: type[ff.Method]) -> None:
    results = [ff.run(ff.Experiment(method=fedngd(), engine=engine, **SMALL)) for engine in ("sequential", "batched")]
    losses = [[row["loss"] for row in result.history] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_the_example_imports_nothing_else_of_ours() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.S)
    assert re.findall(r"^.*import.*$", source, re.M) == ["from dataclasses import dataclass", "import fedflat as ff"]


def test_a_run_of_a_registered_method_is_analysed(fedngd: type[ff.Method], tmp_path: Path) -> None:
    ff.run(ff.Experiment(method=fedngd(), **SMALL), out=tmp_path / "run")
    found = ff.analyse(tmp_path / "run", AnalysisSettings(what=("lpf",), samples=50))
    assert "lpf" in found.documents["run"]


def test_a_name_of_another_method_is_refused(fedngd: type[ff.Method]) -> None:
    with pytest.raises(ff.UserError, match='method="fedavg": is the name of FedAvg already'):
        ff.register("fedavg")(fedngd)
    assert ff.register("fedngd")(fedngd) is fedngd, "a module may be imported again"


def test_one_line_makes_it_known(fedngd: type[ff.Method], tmp_path: Path) -> None:
    row = describe_method("fedngd", fedngd)
    assert (row["models_down"], row["models_up"], row["hyperparameters"]) == (1, 1, {"length": 1.0})
    words = [word for name, value in SMALL.items() for word in ("--" + name.replace("_", "-"), str(value))]
    assert main(["run", "fedngd", "--length", "0.5", *words, "--out", str(tmp_path / "run")]) == 0
    assert "name: fedngd\n  length: 0.5\n" in (tmp_path / "run" / "config.yaml").read_text()
