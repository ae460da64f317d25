"""Every command on a page is one that the command line accepts. tests/tutorial has the tutorial and how-to.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import main, sweep, train, tune
from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.personalise import PersonaliseOptions
from fedflat.cli.report import ReachOptions, ReportOptions
from fedflat.cli.reproduce import ReproduceOptions
from fedflat.cli.watch import WatchOptions
from fedflat.flatness import AnalysisSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "methods").glob("*.md")]
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^(?:\$ |torchrun .*-m |srun (?:--\S+ \S+ )*)?fedflat (\w+ .*)$", re.M)
PLACEHOLDER = re.compile(r"…|\.\.\.$|METHOD|\$|;|\|")
# Commands that need a file or ranks, print help, or are shown with their error.
ELSEWHERE = re.compile(r"\.py:|--config|--help|--engine distributed|dpfedavg --aggregate")
TRAINING = ("run", "compare", "sweep", "tune")
READING: dict[str, type] = {
    "analyse": AnalysisSettings,
    "personalise": PersonaliseOptions,
    "reach": ReachOptions,
    "report": ReportOptions,
    "reproduce": ReproduceOptions,
    "watch": WatchOptions,
}


class ParsedError(SystemExit):
    """Raised where a command would begin to train."""


def page_commands() -> list[str]:
    """The commands in blocks of code, each once, without comments."""
    texts = [page.read_text(encoding="utf-8") for page in sorted(PAGES) if page.name != "how-to.md"]
    blocks = [block.replace("\\\n", " ") for text in texts for block in BLOCK.findall(text)]
    found = dict.fromkeys(c.partition(" #")[0].strip() for block in blocks for c in COMMAND.findall(block))
    return [command for command in found if not PLACEHOLDER.search(command) and not ELSEWHERE.search(command)]


COMMANDS = page_commands()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.split()[0] in TRAINING])
def test_commands_that_train(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(*_: Any, **__: Any) -> None:
        raise ParsedError

    monkeypatch.chdir(tmp_path)
    for module in (train, sweep, tune):
        monkeypatch.setattr(module, "output_folder", parsed)
    monkeypatch.setattr(train, "_check_continues", lambda out: None)  # the run to continue is not there
    with pytest.raises(ParsedError):
        main(shlex.split(command))


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.split()[0] in READING])
def test_commands_that_read_runs(command: str) -> None:
    name, *words = shlex.split(command)
    _, flags = split_positionals(words)
    parse_options(READING[name], flags, f"fedflat {name}")
