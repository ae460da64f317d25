"""docs/architecture.md names packages, files, classes and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fedflat

ROOT = Path(__file__).parents[2]
SOURCE = Path(fedflat.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)
DIAGRAMS = re.findall(r"^```\n(.*?)^```$", PAGE, re.M | re.S)
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))


def names_in(path: Path) -> set[str]:
    """Every name that a file defines: modules, classes, functions, arguments, variables, and strings such as `auto`."""
    found = {path.stem if path.stem != "__init__" else path.parent.name}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.alias):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


NAMES = {name for path in SOURCE.rglob("*.py") for name in names_in(path)}


@pytest.mark.parametrize("span", [span for span in SPANS if re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", span)])
def test_names_exist(span: str) -> None:
    name = span.partition("(")[0].removesuffix(".py")
    assert name in NAMES or all(part in NAMES for part in name.split(".")), f"no {name} in src/fedflat"


@pytest.mark.parametrize("span", [span for span in SPANS if span.startswith("--")])
def test_options_exist(span: str) -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    flag = span.split()[0]
    methods = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "methods").glob("*.py"))
    assert flag in reference or f"    {flag[2:].replace('-', '_')}:" in methods, flag


def test_the_diagram_has_every_package_and_file() -> None:
    drawn = set(re.findall(r"^ {3}(\w+)/ ", DIAGRAMS[0], re.M)) | set(re.findall(r"(\w+)\.py", DIAGRAMS[0]))
    there = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {path.stem for path in SOURCE.glob("*.py")}
    assert drawn == there - {"__init__", "__main__"}


@pytest.mark.parametrize("folder", sorted(set(re.findall(r"\((tests/\w+)", PROSE))))
def test_folders_of_tests_exist(folder: str) -> None:
    assert (ROOT / folder).is_dir()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([\w-]+)", PROSE))))
def test_targets_of_make_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)


def test_the_functions_of_a_method_exist() -> None:
    (contract,) = [block for block in DIAGRAMS if block.startswith("init_server")]
    functions = re.findall(r"\b(\w+)\(", contract)
    assert {"init_client", "broadcast", "step", "reply", "update"} <= set(functions)
    assert all(hasattr(fedflat.Method, name) for name in functions)
