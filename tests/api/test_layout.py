"""The layout of the package: imports point one way, and a public name means one thing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import fedflat

ROOT = Path(fedflat.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if "template" not in path.parts]
LEVELS = (  # a package may import packages of the levels before its own
    ("core",),
    ("methods", "models", "data"),
    ("engine",),
    ("probes",),
    ("runs",),
    ("flatness", "personal", "flower"),
    ("report",),
    ("reproduce",),
    ("cli",),
)
LEVEL = {package: number for number, packages in enumerate(LEVELS) for package in packages}
BELOW_ALL = {
    "errors",
    "files",
    "options",
    "own_code",
    "progress",
}  # all may import them, they import none
PER_METHOD = {"Server", "Message", "Reply", "Client"}  # every method has its own


def package_of(path: Path) -> str:
    """The package of a file, or the file's own name where it is in none."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
    """The packages and top-level files of fedflat that a file imports, anywhere in it."""
    modules = {
        name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    return {module.split(".")[1] for module in modules if module.startswith("fedflat.")}


def test_every_package_has_a_level() -> None:
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} == set(LEVEL)


@pytest.mark.parametrize("package", LEVEL)
def test_imports_point_down(package: str) -> None:
    lower = {name for name, level in LEVEL.items() if level < LEVEL[package]} | BELOW_ALL | {package}
    found = {path: imported_packages(path) - lower for path in FILES if package_of(path) == package}
    assert {str(path.relative_to(ROOT)): against for path, against in found.items() if against} == {}


@pytest.mark.parametrize("name", sorted(BELOW_ALL))
def test_what_all_import_imports_no_package(name: str) -> None:
    assert imported_packages(ROOT / f"{name}.py") <= BELOW_ALL


def test_no_public_name_twice() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in PER_METHOD} == {}


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [package for package in LEVEL if f"{package}/" not in page] == []


@pytest.mark.parametrize("name", ["methods.wrappers", "methods.fedsol_ablation", "engine", "reproduce"])
def test_any_module_may_be_imported_first(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import fedflat.{name}"], check=True)
