"""fedflat flower new."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedflat.commands.parse import leading, parse
from fedflat.errors import UserError
from fedflat.runs.config import load_experiment
from fedflat.runs.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Write a ready Flower app that trains an experiment with clients on machines of their own."""

    config: Path | None = None
    """YAML file of the experiment, such as the config.yaml of a run; the defaults unless given."""


def new_app(words: list[str]) -> None:
    """fedflat flower new DIR."""
    folders, flags = leading(words)
    options = parse(NewOptions, flags, "fedflat flower new DIR")
    if len(folders) != 1:
        raise UserError(f"{' '.join(['flower new', *folders])}: name the folder to write")
    from fedflat.flower.new import write_app

    write_app(Path(folders[0]), load_experiment(options.config) if options.config else Experiment())
    print(f"a Flower app in {folders[0]}; its README.md has the commands")
