"""fedflat methods, fedflat probes and fedflat cite: lists of what there is."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import dataclass
from typing import Any

import torch

from fedflat.cli.arguments import parse_options, split_method
from fedflat.core.local_training import count_traffic
from fedflat.core.method import Method
from fedflat.methods import METHODS
from fedflat.probes import PROBES
from fedflat.probes.probe import Probe

EXAMPLE_PARAMETERS = 10_000  # parameters of the model on which communication is counted


@dataclass(frozen=True)
class MethodsOptions:
    """List the methods, their hyper-parameters and what they send."""

    json: bool = False
    """Print JSON instead of a table."""


def methods_command(words: list[str]) -> None:
    """Run fedflat methods: list every method with its paper, hyper-parameters and communication."""
    options = parse_options(MethodsOptions, words, "fedflat methods")
    rows = [describe_method(name, cls) for name, cls in METHODS.items()]
    print(json.dumps(rows, indent=2, ensure_ascii=False)) if options.json else _print_methods(rows)


def describe_method(name: str, cls: type[Method]) -> dict[str, Any]:
    """Return what the catalogue shows of one method; traffic is in multiples of a model of 4-byte parameters.

    Args:
        name: the method's name on the command line.
        cls: its class.
    """
    method = cls()
    traffic = count_traffic(method, torch.zeros(EXAMPLE_PARAMETERS))
    return {
        "name": name,
        "class": cls.__name__,
        "paper": summary_line(cls),
        "hyperparameters": {f.name: _json_value(getattr(method, f.name)) for f in dataclasses.fields(method)},
        "models_down": round(traffic.down / EXAMPLE_PARAMETERS / 4, 2),
        "models_up": round(traffic.up / EXAMPLE_PARAMETERS / 4, 2),
        "client_keeps_models": round(traffic.kept / EXAMPLE_PARAMETERS / 4, 2),
        "messages": traffic_line(cls),
    }


def _documentation(cls: type[Method]) -> str:
    """Return the docstring that describes the method: its class's, or its module's if only that has a `down …` line."""
    of_class, of_module = (inspect.getdoc(o) or "" for o in (cls, inspect.getmodule(cls)))
    return of_class if "\ndown " in of_class or "\ndown " not in of_module else of_module


def summary_line(cls: type[Method]) -> str:
    """Return the first line of a method's documentation, with its name, paper and idea."""
    return _documentation(cls).partition("\n")[0]


def traffic_line(cls: type[Method]) -> str:
    """Return the line `down … | up … | client keeps … | server keeps …` of a method, '' if it has none."""
    return next((line for line in _documentation(cls).splitlines() if line.startswith("down ")), "")


def _json_value(value: Any) -> Any:
    """Return a hyper-parameter for JSON; a wrapped method becomes the name of its class."""
    return type(value).__name__ if isinstance(value, Method) else value


def _print_methods(rows: list[dict[str, Any]]) -> None:
    """Print the methods as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "paper", "hyper-parameters", "down", "up", "kept", box=SIMPLE_HEAD)
    for row in rows:
        defaults = " ".join(f"{name}={value}" for name, value in row["hyperparameters"].items() if name != "inner")
        sizes = (f"{row[key]:g}" for key in ("models_down", "models_up", "client_keeps_models"))
        table.add_row(row["name"], row["paper"].split(":")[0], defaults, *sizes)
    notes = "down, up: sent to and by a client in a round, kept: by a client between rounds; in multiples of the model"
    Console().print(table, notes, sep="\n", highlight=False)


def cite_command(words: list[str]) -> None:
    """Run fedflat cite METHOD [METHOD ...]: print BibTeX entries, each once."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: fedflat cite METHOD [METHOD ...]\n\nPrint the BibTeX entries of methods.")
        return
    names = [split_method(part)[0] for word in words for part in word.split("+")]
    entries = dict.fromkeys(METHODS.find(name).citation for name in names)
    print("\n\n".join(entries))


@dataclass(frozen=True)
class ProbesOptions:
    """List the probes, which measure during training, and what each costs."""

    json: bool = False
    """Print JSON instead of a table."""


def probes_command(words: list[str]) -> None:
    """Run fedflat probes: list every probe with what it measures and what it costs."""
    options = parse_options(ProbesOptions, words, "fedflat probes")
    rows = [describe_probe(name, probe) for name, probe in PROBES.items()]
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        print_table(["probe", "measures", "costs"], [[row["name"], row["summary"], row["costs"]] for row in rows])


def describe_probe(name: str, probe: Probe) -> dict[str, str]:
    """Return what the catalogue shows of one probe, from its docstring.

    The first line is the summary, the last paragraph ("Costs …") the costs, and what is between them the formulas.

    Args:
        name: the probe's name on the command line.
        probe: its function.
    """
    text, _, costs = (inspect.getdoc(probe) or "").rpartition("\n\nCosts ")
    summary, _, formulas = text.partition("\n\n")
    return {"name": name, "summary": summary, "formulas": formulas, "costs": " ".join(costs.split()).rstrip(".")}


def print_table(headings: list[str], rows: list[list[str]]) -> None:
    """Print a table; where the output is no terminal it is up to 140 characters wide."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table, highlight=False)
