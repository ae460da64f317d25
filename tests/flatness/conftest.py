"""Two finished runs that all tests of this folder share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from finished_runs import SMALL

import fedflat as ff


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Two finished runs."""
    folder = tmp_path_factory.mktemp("flat")
    for name, method in {"avg": ff.FedAvg(), "dyn": ff.FedDyn()}.items():
        ff.run(ff.Experiment(method=method, seeds=(3, 5), rounds=2, **SMALL), out=folder / name)
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    """Copies of the two runs that a test may change."""
    return [Path(shutil.copytree(trained / name, tmp_path / name)) for name in ("avg", "dyn")]
