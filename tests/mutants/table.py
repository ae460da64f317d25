"""Reads changes.txt, the wrong changes of the source with the tests that have to notice each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """A wrong change.

    Args:
        file: the file, below src/fedflat.
        old: a text that is there exactly once.
        new: what takes its place.
        tests: the test files that notice it, below tests, separated by spaces.
        only: which of their tests to run, as for pytest -k; all if empty.
    """

    file: str
    old: str
    new: str
    tests: str
    only: str = ""


def parse_changes(text: str) -> list[Mutant]:
    """Return the changes that a text describes, see the first lines of changes.txt."""
    found: list[Mutant] = []
    head, last = "", ""
    for line in text.splitlines():
        kind, content = line[:1], line[2:]
        if kind == "-" and last == "-":
            found[-1] = found[-1]._replace(old=f"{found[-1].old}\n{content}")
        elif kind == "-":
            file, _, tests = head.partition(": ")
            tests, _, only = tests.partition(" -k ")
            found.append(Mutant(file, content, "", tests, only))
        elif kind == "+":
            new = f"{found[-1].new}\n{content}" if last == "+" else content
            found[-1] = found[-1]._replace(new=new)
        elif kind not in ("#", ""):
            head = line
        last = kind
    return found


MUTANTS = parse_changes(Path(__file__).with_name("changes.txt").read_text(encoding="utf-8"))
