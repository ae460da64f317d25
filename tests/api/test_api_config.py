"""What configuration files may say."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedflat as ff
from fedflat.runs.config import load_experiment


def loaded(folder: Path, text: str) -> ff.Experiment:
    (folder / "experiment.yaml").write_text(text)
    return load_experiment(folder / "experiment.yaml")


def test_an_inner_method_by_its_name(tmp_path: Path) -> None:
    short = loaded(tmp_path, "method: {name: fedavgm, inner: fedsam}")
    assert short == loaded(tmp_path, "method: {name: fedavgm, inner: {name: fedsam}}")
    assert short.method.inner == ff.FedSAM()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method: {name: fedsol, rho: {name: fedavg}}", "--rho"),
        ("method: {name: fedavgm, inner: 3}", "method.inner: must be a method's name"),
        ("lr: 0.1\nrounds: 3\nlr: 0.2", "the key 'lr' appears twice"),
        ("method: {name: fedsol, rho: 1, rho: 2}", "the key 'rho' appears twice"),
        ("seeds: &s [0]\nprobes: *s", "aliases (*name) are not allowed"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ff.UserError) as caught:
        loaded(tmp_path, text)
    assert str(tmp_path / "experiment.yaml") in str(caught.value)
    assert said in str(caught.value)
