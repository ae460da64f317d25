"""Rules for a method's file: its length, imports and options, and the docstring's line on what is sent and kept."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from variants import ALL, DEFAULTS

import fedflat as ff
from fedflat.cli import flag
from fedflat.cli.arguments import parse_method
from fedflat.cli.catalogue import traffic_line
from fedflat.core.local_training import count_traffic, example_messages
from fedflat.core.method import Method
from fedflat.core.state import pack_state

SOURCES = Path(inspect.getfile(ff)).parent
SHARED = ("shared", "wrappers", "differential_privacy", "compression", "running_averages", "fedsol_ablation")
AROUND = {"fedlesam": {"scaffold", "feddyn"}}  # FedLESAM-S and -D are these methods with another gradient
FILES = {path.stem: path for path in sorted((SOURCES / "methods").glob("[!_]*.py")) if path.stem not in SHARED}
DOCS = SOURCES.parents[1] / "docs" / "methods"
MODELS = {  # down, up
    "fedavg": (1, 1),
    "fedsol": (1, 1),
    "fedgloss": (1, 1),
    "fedspeed": (1, 1),
    "feddyn": (1, 1),
    "fednova": (1, 1),
    "fedgf": (2, 1),
    "mofedsam": (2, 1),
    "mofedsam:each": (2, 2),
    "fedcm": (2, 1),
    "fedacg": (1, 1),
    "fedgmt": (2, 1),
    "fedlesam": (1, 1),
    "fedlesam:scaffold": (2, 2),
    "fedlesam:feddyn": (2, 1),
    "scaffold": (2, 2),
    "fedgamma": (2, 2),
    "fedsmoo": (2, 2),
    "naivefedgloss": (2, 2),
    "fedadam+naivefedgloss": (2, 2),
}
every_file = pytest.mark.parametrize("path", FILES.values(), ids=FILES)
every_default = pytest.mark.parametrize(("name", "method"), DEFAULTS.items(), ids=DEFAULTS)


@every_file
def test_at_most_60_lines_of_code(path: Path) -> None:
    assert len(code_lines(path.read_text())) <= 60


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: no blank lines, comments, docstrings (options' too) and citations."""
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in empty]
    used = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return used - {line for node in _texts(ast.parse(source)) for line in range(node.lineno, node.end_lineno + 1)}


def _texts(tree: ast.Module) -> Iterator[Any]:
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        cited = isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "citation"
        if text or cited:
            yield node


def test_code_lines_counts_code_only() -> None:
    source = '"""Doc."""\n\nx = 1  # why\n# alone\nclass A:\n    """Doc\n    more."""\n\n    y = (\n        2\n    )\n'
    assert code_lines(source) == {3, 5, 9, 10, 11}


@every_file
def test_no_method_uses_another(path: Path) -> None:
    tree = ast.parse(path.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    shared = {f"fedflat.methods.{name}" for name in {*SHARED, *AROUND.get(path.stem, ())}}
    assert not {module for module in modules - shared if module and module.startswith("fedflat.methods")}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "super"]


@every_default
def test_methods_extend_the_contract_only(name: str, method: Method) -> None:
    registered = set(ff.METHODS.values())
    assert not registered & set(type(method).__mro__[1:])


@every_default
def test_the_line_on_what_is_sent_and_kept(name: str, method: Method) -> None:
    """`down a, b | up c | client keeps – | server keeps d`: one symbol for each tensor, in order; – is none.

    In a wrapper's line `…` stands for the inner method's symbols.
    """
    params = torch.zeros(7)
    message, reply, kept = example_messages(method, params)
    sent = [message, reply, kept, method.init_server(params)]
    assert [len(symbols) for symbols in line_of(method)] == [len(pack_state(part)) for part in sent]


def line_of(method: Method) -> list[list[str]]:
    """The symbols of the four parts of a method's line."""
    line = traffic_line(type(method))
    parts = [
        part.strip().removeprefix(start).strip()
        for part, start in zip(line.split("|"), ("down", "up", "client keeps", "server keeps"), strict=True)
    ]
    outer = [[] if part == "–" else part.split(", ") for part in parts]
    inner = line_of(method.inner) if hasattr(method, "inner") else [[]] * 4
    return [[s for symbol in o for s in (i if symbol == "…" else [symbol])] for o, i in zip(outer, inner, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_counted_communication(name: str) -> None:
    size = 10_000
    sent = count_traffic(ALL[name], torch.zeros(size))
    assert (round(sent.down / size / 4, 2), round(sent.up / size / 4, 2)) == MODELS[name]


@every_default
def test_options_are_documented_and_their_own(name: str, method: Method) -> None:
    taken = {field.name for field in dataclasses.fields(ff.Setting)} | {"method", "config", "out", "resume", "target"}
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(method):
        assert field.name not in taken
        if field.name != "inner":
            assert f"| `{flag(field.name)}` | {_shown(field, method)} |" in page
    assert f"fedflat run {name}" in page
    assert method.citation.startswith("@")


def _shown(field: dataclasses.Field[Any], method: Method) -> str:
    value = getattr(method, field.name)
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def test_every_page_is_a_method() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} - {"README"} == set(ff.METHODS)


def test_the_index_lists_every_method() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)\.md\) \| \w.* \| `(\w+)` \|", index, re.M)
    assert listed == [(name, name, cls.__name__) for name, cls in ff.METHODS.items()]


@pytest.mark.parametrize("page", ["README", *ff.METHODS])
def test_commands_on_the_pages_exist(page: str) -> None:
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    commands = [line.split()[2:] for line in lines if line.startswith("fedflat run ")]
    assert commands
    for spec, *words in commands:
        own = {flag(field.name) for field in dataclasses.fields(parse_method(spec))}
        known = own | {flag(field.name) for field in dataclasses.fields(ff.Setting)}
        known |= {"--no-regularise", "--no-error-feedback"}
        assert {word for word in words if word.startswith("--")} <= known
