"""Configuration files: which experiments they describe, and which mistakes are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedflat as ff
from fedflat.runs.config import load_experiment


def loaded(folder: Path, text: str) -> ff.Experiment:
    """Return the experiment in a file with this text."""
    (folder / "experiment.yaml").write_text(text)
    return load_experiment(folder / "experiment.yaml")


def test_an_inner_method_by_its_name(tmp_path: Path) -> None:
    short = loaded(tmp_path, "method: {name: fedavgm, inner: fedsam}")
    assert short == loaded(tmp_path, "method: {name: fedavgm, inner: {name: fedsam}}")
    assert short.method.inner == ff.FedSAM()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("method: {name: fedsol, rho: {name: fedavg}}", "rho={'name': 'fedavg'}: must be a number"),
        ("method: {name: fedavgm, inner: 3}", "method.inner: must be a method's name"),
        ("lr: 0.1\nrounds: 3\nlr: 0.2", "the key 'lr' appears twice"),
        ("method: {name: fedsol, rho: 1, rho: 2}", "the key 'rho' appears twice"),
        ("seeds: &s [0]\nprobes: *s", "aliases (*name) are not allowed"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ff.UserError) as error:
        loaded(tmp_path, text)
    assert str(error.value).startswith(f'config="{tmp_path / "experiment.yaml"}": ')
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: {name: fedsol, rho: -1}", "rho=-1: must be at least 0 and finite"),
        ("seeds: [3, 3]", "seeds=(3, 3): every seed may appear once"),
        ("method: fedsool", "method fedsool: unknown (did you mean fedsol?); methods are"),
        ("method: {name: fedavgm, inner: {name: fedsam, r: 1}}", "method.inner fedsam: unknown key 'r': allowed are "),
        ("3", "options: must be a mapping, such as 'rounds: 60'"),
    ],
)
def test_an_error_in_a_file_carries_the_error_in_the_option(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ff.UserError) as error:
        loaded(tmp_path, text)
    assert (error.value.option, error.value.value) == ("config", tmp_path / "experiment.yaml")
    assert isinstance(error.value.problem, ff.UserError)
    assert str(error.value.problem).startswith(message)
