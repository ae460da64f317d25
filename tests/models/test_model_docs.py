"""The example of docs/models.md: dropout in a user's model is the same in every engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fedflat as ff

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "cohort": 2, "partition": "iid", "local_epochs": 1}


@pytest.fixture
def net() -> Any:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    scope: dict[str, Any] = {}
    exec(compile(source, "models.md", "exec"), scope)
    return scope["Net"]


def losses(model: Any, engine: str) -> list[float]:
    return [row["loss"] for row in ff.run(ff.Experiment(model=model, engine=engine, **SMALL)).history]


def test_engines_drop_the_same_units(net: Any) -> None:
    found = losses(net, "batched")
    assert found == pytest.approx(losses(net, "sequential"), rel=1e-4)

    def kept() -> Any:
        model = net()
        model.drop.p = 0.0
        return model

    assert found != pytest.approx(losses(kept, "sequential"), rel=1e-2), "some units are dropped"
