"""Every command that trains, on any page, is one that the command line accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import main, sweep, train, tune

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "docs", ROOT / "docs" / "methods")  # tests/tutorial has the tutorial and how-to.md
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted(folder.glob("*.md")))]
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^(?:\$ |torchrun .*-m |srun (?:--\S+ \S+ )*)?fedflat ((?:run|compare|sweep|tune) .*)$", re.M)
PLACEHOLDER = re.compile(r"…|\.\.\.$|METHOD|\$|;")
# Commands that need a file or ranks, print help, or are shown with their error.
ELSEWHERE = re.compile(r"\.py:|--config|--help|--engine distributed|dpfedavg --aggregate")


class ParsedError(BaseException):
    """Raised where a command would begin to train."""


def page_commands() -> dict[str, Path]:
    """The commands in blocks of code, without comments, with the first page that has each."""
    found: dict[str, Path] = {}
    for page in (page for page in PAGES if page.name != "how-to.md"):
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for command in COMMAND.findall(block.replace("\\\n", " ")):
                found.setdefault(command.partition(" #")[0].strip(), page)
    return {c: page for c, page in found.items() if not PLACEHOLDER.search(c) and not ELSEWHERE.search(c)}


COMMANDS = page_commands()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_accepts(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(*_: Any, **__: Any) -> None:
        raise ParsedError

    monkeypatch.chdir(tmp_path)
    for module in (train, sweep, tune):
        monkeypatch.setattr(module, "output_folder", parsed)
    with pytest.raises(ParsedError):
        print(main(shlex.split(command)), COMMANDS[command])
