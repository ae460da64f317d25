"""The examples of docs/models.md: a frozen backbone and LoRA, dropout that engines agree on, running averages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fedflat as ff
from fedflat.runs.build_model import _say_once

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "cohort": 2, "partition": "iid", "local_epochs": 1}


def example(number: int) -> dict[str, Any]:
    """The names that an example of the page defines."""
    scope: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, re.S)[number], "models.md", "exec"), scope)
    return scope


@pytest.fixture
def net() -> Any:
    return example(1)["Net"]


def test_a_backbone_with_batch_norm_and_lora_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    _say_once.cache_clear()  # another test may have had the same line printed
    result = example(0)["result"]
    assert result.parameters == 2 * (288 + 32) + 32 * 3 + 3  # LoRA's two matrices and the last layer
    assert result.accuracy > 0.8
    assert "1 nn.BatchNorm2d, 1 nn.Dropout replaced by fedflat's own" in capsys.readouterr().err


def test_a_loaded_module_classifies_samples_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope = example(2)
    assert scope["accuracy"] == pytest.approx(scope["result"].accuracy)
    assert scope["result"].accuracy > 0.6


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
