"""A full disk is no mistake of the user: one line and exit code 1, whatever was being written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_atomic import largest_file

from fedflat.cli import main

TRAIN = "--rounds 1 --clients 2 --cohort 2 --partition iid --model mlp --local-epochs 1 --engine sequential"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and a folder of images."""
    folder = tmp_path_factory.mktemp("disk")
    assert main(["run", "fedavg", *TRAIN.split(), "--out", str(folder / "run")]) == 0
    for part in ("train/a", "train/b", "test/a", "test/b"):
        (folder / "images" / part).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "images" / part / "0.png")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        f"run fedavg {TRAIN} --out new",
        f"compare fedavg {TRAIN} --out both",
        f"run fedavg {TRAIN} --dataset folder:images --out pictures",
        "data prepare folder:images",
        "report run --out page.html",
        "toy --out toy.png",
        "data show digits --out digits.png",
        "analyse run --what hessian --samples 20",
        "personalise run --epochs 1 --no-alone",
    ],
)
def test_every_command(place: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FEDFLAT_CACHE", str(place / "cache"))
    capsys.readouterr()
    with largest_file(100):
        assert main(words.split()) == 1
    err = capsys.readouterr().err
    assert "too large" in err
    assert err.count("fedflat: ") == 1
    assert not [path for path in place.rglob(".*") if path.name != ".lock"], "no temporary file is left"


def test_output_to_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "fedflat", "cite", "fedavg"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "fedflat: [Errno 28] No space left on device\n"
