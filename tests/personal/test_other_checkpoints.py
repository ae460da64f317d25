"""A finished run whose configuration is not the one that its checkpoint was trained with is refused in one line."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedflat as ff
from fedflat.cli import main
from fedflat.errors import UserError
from fedflat.personal.fine_tuning import personalise
from fedflat.runs.read import read_trained_run

TRAINED = ff.Experiment(model="mlp", clients=3, cohort=2, rounds=1, local_epochs=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("other") / "run"
    ff.run(TRAINED, out=out)
    return out


@pytest.mark.parametrize(
    ("old", "new"),
    [("seeds:\n- 0", "seeds:\n- 7"), ("model: mlp", "model: digits-cnn"), ("name: fedavg", "name: scaffold")],
)
def test_edited_configurations(trained: Path, tmp_path: Path, old: str, new: str, capsys) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    text = (copy / "config.yaml").read_text()
    assert old in text
    (copy / "config.yaml").write_text(text.replace(old, new))
    assert main(["personalise", str(copy)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedflat: run {copy}: its checkpoint does not belong to this configuration (")
    assert error.count("\n") == 1


@pytest.mark.parametrize("change", [{"seeds": (1,)}, {"method": ff.SCAFFOLD()}, {"rounds": 2}], ids=str)
def test_another_experiment(trained: Path, change: dict) -> None:
    with pytest.raises(UserError, match="does not belong to this configuration"):
        personalise(trained, experiment=dataclasses.replace(TRAINED, **change))


def test_where_and_how_it_is_computed_may_change(trained: Path) -> None:
    here = dataclasses.replace(TRAINED, engine="sequential", device="cpu", precision="fp32")
    assert read_trained_run(trained, here).experiment == here


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_result(trained: Path, tmp_path: Path, text: str) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"damaged run folder \(result\.json"):
        read_trained_run(copy)


def test_data_that_name_their_clients_since(tmp_path: Path) -> None:
    arrays = {name: np.zeros((n, 1, 8, 8), np.uint8) for name, n in (("x", 30), ("x_test", 6))}
    arrays |= {"y": np.arange(30) % 3, "y_test": np.arange(6) % 3}
    np.savez(tmp_path / "own.npz", **arrays)
    ff.run(dataclasses.replace(TRAINED, dataset=f"npz:{tmp_path}/own.npz", alpha=10.0), out=tmp_path / "run")
    np.savez(tmp_path / "own.npz", **arrays, client=np.arange(30) % 5)
    with pytest.raises(UserError, match=r"its data, npz:.*, have changed since; restore them"):
        personalise(tmp_path / "run")
