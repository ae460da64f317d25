"""fedflat flower new: write the folder of a Flower app that trains an experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.errors import UserError
from fedflat.flower.config import ConfigValue, FederationOptions, to_run_config
from fedflat.runs.config import load_experiment
from fedflat.runs.experiment import Experiment

COPIED_FILES = {  # file of the template → file of the app
    "server_app.py": "server_app.py",
    "client_app.py": "client_app.py",
    "make_certificates.py": "make_certificates.py",
    "flower.env": "flower.env",
    "gitignore": ".gitignore",
}
PROJECT = """[project]
name = "fedflat-federation"
version = "1.0.0"
description = "A federation trained with fedflat"
license = "Apache-2.0"
dependencies = ["fedflat[flower]"]

[tool.flwr.app]
publisher = "fedflat"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
"""


def write_flower_app(folder: Path, experiment: Experiment) -> None:
    """Write the app; raise UserError if the folder exists and is not empty.

    Args:
        folder: where to write it.
        experiment: what the app trains.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(None, f"flower new {folder}", "exists and is not an empty folder; choose another")
    config, template = to_run_config(experiment, FederationOptions()), files("fedflat.flower") / "template"
    texts = {target: (template / name).read_text(encoding="utf-8") for name, target in COPIED_FILES.items()}
    texts["pyproject.toml"] = PROJECT + flat_toml(config)
    texts["README.md"] = _readme((template / "README.md").read_text(encoding="utf-8"), config)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def flat_toml(config: Mapping[str, ConfigValue]) -> str:
    """Return a run configuration as TOML, one line for each dotted key."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in config.items())


def _toml_value(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _readme(text: str, config: Mapping[str, ConfigValue]) -> str:
    """Fill the template of the README with the numbers and names of this app."""
    clients = int(config["clients"])
    return Template(text).substitute(
        clients=clients,
        numbers=f"$(seq 0 {clients - 1})",
        dataset=config["dataset"],
        out=config["federation.out"],
    )


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Write a Flower app that trains an experiment with every client on a machine of its own."""

    config: Path | None = None
    """YAML file of the experiment, such as the config.yaml of a run; without it, the defaults."""


def new_app(words: list[str]) -> None:
    """Run fedflat flower new DIR.

    Args:
        words: what follows `flower new` on the command line.
    """
    folders, flags = split_positionals(words)
    options = parse_options(NewOptions, flags, "fedflat flower new DIR")
    if len(folders) != 1:
        raise UserError(None, " ".join(["flower new", *folders]), "name the folder to write")
    write_flower_app(Path(folders[0]), load_experiment(options.config) if options.config else Experiment())
    print(f"a Flower app in {folders[0]}; its README.md has the commands")
