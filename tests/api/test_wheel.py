"""The wheel holds every file of the package, trains and writes a report; all files name the same version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import fedflat

ROOT = Path(__file__).parents[2]
TINY = "--rounds 1 --clients 4 --cohort 2 --partition iid --model mlp --local-epochs 1"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of a wheel that is built from a copy of the source."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = "-m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist ."
    subprocess.run([sys.executable, *build.split()], cwd=folder, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "unpacked")
    return folder / "unpacked"


def files_of(package: Path) -> set[str]:
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package).as_posix() for path in files}


def test_the_wheel_holds_every_file(unpacked: Path) -> None:
    assert files_of(unpacked / "fedflat") == files_of(ROOT / "src" / "fedflat")


def test_the_wheel_trains_and_reports(unpacked: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    code = f"import sys, fedflat.cli as c; print(c.__file__); sys.exit(c.main('run fedavg {TINY} --out run'.split()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(unpacked))
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest is not None
    assert {project["version"], fedflat.__version__, citation["version"], newest[1]} == {fedflat.__version__}
