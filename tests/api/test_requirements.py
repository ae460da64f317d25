"""The lock files: every published file has its hash, and what fedflat needs is apart from what its developers need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
ENTRY = re.compile(r"^(\S+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)


def packages(lock: Path) -> set[str]:
    return {name.lower() for name, _ in ENTRY.findall(lock.read_text())}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_has_hashes(lock: Path) -> None:
    text = re.sub(r"^#.*\n", "", lock.read_text(), flags=re.M)
    assert packages(lock)
    assert ENTRY.sub("", text) == ""


def test_what_fedflat_needs_is_locked_apart() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split("[<>=]", name)[0].lower() for name in project["dependencies"]}
    assert needed - packages(ROOT / "requirements.lock") == {"torch"}
    assert not packages(ROOT / "requirements.lock") & packages(ROOT / "requirements-dev.lock")


def test_the_extras_are_locked_so_that_no_test_of_them_is_skipped() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {re.split("[<>=]", name)[0].lower() for names in extras.values() for name in names}
    apart = packages(ROOT / "requirements-flower.lock")
    assert needed - packages(ROOT / "requirements-dev.lock") == {"flwr", "dp-accounting"} & apart
