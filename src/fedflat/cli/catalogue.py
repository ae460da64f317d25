"""fedflat methods, cite and probes: what there is."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import dataclass
from typing import Any

import torch

from fedflat.cli.arguments import parse_options
from fedflat.core.local_training import count_traffic
from fedflat.core.method import Method
from fedflat.methods import METHODS
from fedflat.probes import PROBES
from fedflat.probes.probe import Probe
from fedflat.runs.config import find_method

COUNTED_PARAMETERS = 10_000  # parameters of the model on which communication is counted


@dataclass(frozen=True)
class MethodsOptions:
    """List the methods, their hyper-parameters and what they send."""

    json: bool = False
    """Print JSON instead of a table."""


def methods_command(words: list[str]) -> None:
    """Every method with paper, hyper-parameters and counted communication."""
    options = parse_options(MethodsOptions, words, "fedflat methods")
    rows = [describe_method(name, cls) for name, cls in METHODS.items()]
    print(json.dumps(rows, indent=2, ensure_ascii=False)) if options.json else _print_methods(rows)


def describe_method(name: str, cls: type[Method]) -> dict[str, Any]:
    """One method: what its file says and what its messages weigh, in models of 4-byte parameters."""
    method = cls()
    sent = count_traffic(method, torch.zeros(COUNTED_PARAMETERS))
    return {
        "name": name,
        "class": cls.__name__,
        "paper": summary_line(cls),
        "hyperparameters": {f.name: _plain(getattr(method, f.name)) for f in dataclasses.fields(method)},
        "models_down": round(sent.down / COUNTED_PARAMETERS / 4, 2),
        "models_up": round(sent.up / COUNTED_PARAMETERS / 4, 2),
        "client_keeps_models": round(sent.kept / COUNTED_PARAMETERS / 4, 2),
        "messages": line_on_messages(cls),
    }


def _documentation(cls: type[Method]) -> str:
    """What the class says of its messages, or its file where that holds one method."""
    own, file = (inspect.getdoc(o) or "" for o in (cls, inspect.getmodule(cls)))
    return own if "\ndown " in own or "\ndown " not in file else file


def summary_line(cls: type[Method]) -> str:
    """Name, paper and idea of a method: the first line of its documentation."""
    return _documentation(cls).partition("\n")[0]


def line_on_messages(cls: type[Method]) -> str:
    """The line `down … | up … | client keeps … | server keeps …` of a method, '' where it has none."""
    return next((line for line in _documentation(cls).splitlines() if line.startswith("down ")), "")


def _plain(value: Any) -> Any:
    return type(value).__name__ if isinstance(value, Method) else value


def _print_methods(rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "paper", "hyper-parameters", "down", "up", "kept", box=SIMPLE_HEAD)
    for row in rows:
        options = " ".join(f"{name}={value}" for name, value in row["hyperparameters"].items() if name != "inner")
        sizes = (f"{row[key]:g}" for key in ("models_down", "models_up", "client_keeps_models"))
        table.add_row(row["name"], row["paper"].split(":")[0], options, *sizes)
    notes = "down, up: sent to and by a client in a round, kept: by a client between rounds; in multiples of the model"
    Console().print(table, notes, sep="\n", highlight=False)


def cite_command(words: list[str]) -> None:
    """BibTeX of methods."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: fedflat cite METHOD [METHOD ...]\n\nPrint the BibTeX entries of methods.")
        return
    names = [part.partition(":")[0] for word in words for part in word.split("+")]
    entries = dict.fromkeys(find_method(name).citation for name in names)
    print("\n\n".join(entries))


@dataclass(frozen=True)
class ProbesOptions:
    """List what can be measured during training, and what it costs."""

    json: bool = False
    """Print JSON instead of a table."""


def probes_command(words: list[str]) -> None:
    """Every probe with what it measures and costs."""
    options = parse_options(ProbesOptions, words, "fedflat probes")
    rows = [describe_probe(name, probe) for name, probe in PROBES.items()]
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_probes(["probe", "measures", "costs"], [[row["name"], row["summary"], row["costs"]] for row in rows])


def describe_probe(name: str, probe: Probe) -> dict[str, str]:
    """One probe as its docstring tells: first line, formulas between, and the last paragraph, "Costs …"."""
    text, _, costs = (inspect.getdoc(probe) or "").rpartition("\n\nCosts ")
    summary, _, formulas = text.partition("\n\n")
    return {"name": name, "summary": summary, "formulas": formulas, "costs": " ".join(costs.split()).rstrip(".")}


def _print_probes(headings: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table, highlight=False)
