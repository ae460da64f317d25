"""Run folders made by hand, so that what the page shows is known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedflat.experiments.config import dump
from fedflat.experiments.experiment import Experiment
from fedflat.experiments.result import Result, summary

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run(name, accuracies, ...): a folder whose two seeds reach these accuracies, the second 0.1 less."""

    def make(
        name: str, accuracies: list[float], seconds: float = 1.0, finished: bool = True, lost: bool = False
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        experiment = Experiment(seeds=(0, 1), rounds=len(accuracies))
        rows = [
            {"round": r, "seed": s, "accuracy": a - 0.1 * s, "loss": None if lost and s else 1 - a, "seconds": 0.1 * r}
            for r, a in enumerate(accuracies, 1)
            for s in (0, 1)
        ]
        (folder / "config.yaml").write_text(dump(experiment))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if finished:
            numbers = {"client_steps_per_second": 9.0, "bytes_down_per_client_round": 4000, "parameters": 1000}
            names = {"method": "fedavg", "seeds": [0, 1], "versions": {"fedflat": "0"}, "privacy": None}
            sent = {"bytes_up_per_client_round": 4000, "seconds": seconds, "rounds": len(accuracies)}
            facts = {**summary(rows, [0, 1]), **numbers, **names, **sent}
            assert facts.keys() == {f.name for f in dataclasses.fields(Result)} - {"history"}
            (folder / "result.json").write_text(json.dumps(facts))
        return folder

    return make
