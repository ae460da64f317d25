"""Write the pages of docs/reference from the code: make reference.

What is listed here comes from where it is declared: options from dataclasses, names from registries, fields of files
from the classes that are written. tests/api/test_reference.py compares the pages with this, and with a real run.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

import fedflat
from fedflat.cli import COMMANDS, DATA, FLOWER, flag, main
from fedflat.cli.catalogue import describe_method, describe_probe
from fedflat.cli.tyro_rules import metavar
from fedflat.core.task import Task
from fedflat.core.tasks import TASKS
from fedflat.data.catalogue import DATASETS
from fedflat.data.load import OWN_KINDS
from fedflat.data.partition import PARTITIONS
from fedflat.engine import ENGINES
from fedflat.flatness.finished_run import AnalysisSettings
from fedflat.flatness.measures import MEASUREMENTS, measure_barrier
from fedflat.methods import METHODS
from fedflat.models import MODELS, TEXT_MODELS
from fedflat.options import Pattern, Range, member_types, value_words
from fedflat.probes import PROBES
from fedflat.runs.config import experiment_to_dict
from fedflat.runs.experiment import Experiment, Setting
from fedflat.runs.result import Result, _name_in_json

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- written by docs/generate_reference.py from the code; change it there and run make reference -->\n\n"

RUN_FILES = {
    "config.yaml": "the whole experiment",
    "metrics.jsonl": "one line per evaluation and seed",
    "checkpoint/state.safetensors": "states of the server and the clients, to continue from",
    "result.json": "the summary, written last: a folder that has it is complete",
    "report.html": "the page about the run, written by `fedflat run` and `fedflat compare`",
}
OTHER_FILES = {
    "added-seeds/": "seeds that were added later, until they have reached the round of the others",
    "analysis/": "`fedflat analyse`: WHAT.json and WHAT.csv for everything measured",
    "tracking.json": "`--track`: the run's name at the tracker, to go on there",
    "personalise.json": "`fedflat personalise`: the accuracy of every client's personal models",
    "sweep.json, tune.json": "`fedflat sweep`, `fedflat tune`, in the folder of all points: the points, the best first",
    "clients.jsonl, examples.json": "federations: who took part, and the number of examples that each client declared",
}
METRICS = {
    "round": "rounds trained so far, from 1",
    "seed": "the seed",
    "accuracy": "the task's metrics by name, the main one first; classification has `accuracy`, a fraction",
    "loss": "mean loss on the same samples; null where it is not finite",
    "seconds": "time of training and evaluation so far",
    "probes": "only where probes measured: PROBE.MEASURE and its value, a number, a list or null",
}
CHECKPOINT = {
    "counters": "three float64: rounds trained, seconds, and local steps of all clients and seeds",
    "threads": "the number of CPU threads, which a resumed run keeps",
    "trial.SEED.server.NAME": "the server's state; `params` is the global model, all parameters as one vector",
    "trial.SEED.clients.NAME": "what clients keep: row 0 is the initial state, the others belong to `clients.clients`",
    "trial.SEED.clients.clients": "the numbers of the clients whose states are stored",
}
METADATA = {
    "config": "the configuration as YAML",
    "data": "the fingerprint of the data, where there is one",
    "crc": "CRC-32 of names, bytes, configuration and fingerprint",
}
CLIENTS = {
    "round": "the round, from 1",
    "exchange": "0, or 1 for the second exchange of a round",
    "client": "the client's number",
    "accepted": "whether its reply counts",
    "examples": "the number of examples that the reply claims; null if it claims none",
    "norm": "the norm of the reply; null if it is not known or not finite",
    "note": "why the reply does not count, or what else happened; empty otherwise",
    "node": "only in lines about a node that takes no part: Flower's number of it",
}

CLASSIFICATION = "One class for each sample: targets [B] are classes, outputs [B, classes] are their scores."
FURTHER_MODULES = {  # names that the pages use and that are not in fedflat itself
    "fedflat.data.load": ("load_dataset", "list_datasets"),
    "fedflat.data.prepare": ("prepare_dataset",),
    "fedflat.data.partition": ("partition_rows", "class_counts", "PARTITIONS"),
    "fedflat.data.text": ("load_text", "load_sklearn_text"),
    "fedflat.data.hugging_face": ("load_hugging_face_data",),
    "fedflat.models.text": ("transformer",),
    "fedflat.models.layers": ("Dropout",),
    "fedflat.runs.build": ("build_participation",),
    "fedflat.runs.read": ("read_trained_run",),
    "fedflat.flatness": tuple(name for name in fedflat.flatness.__all__ if name != "analyse"),
}


ANALYSES = get_type_hints(AnalysisSettings)["what"]  # the names that fedflat analyse --what takes
HUGE = str(Range(1, 10**9)).removeprefix("must be ")  # an upper bound that only catches slips


class _OptionsFoundError(SystemExit):
    """Raised in place of parsing, with the options that a command asks tyro for."""


def command_options(command: str) -> tuple[Any, Any, str, str]:
    """Return class, defaults, usage and first paragraph of a command's options; (None, …) if it has none.

    Args:
        command: the words after fedflat, such as "data show".
    """

    def found(options: Any, **settings: Any) -> None:
        raise _OptionsFoundError(options, settings)

    original, tyro.cli, printed = tyro.cli, found, io.StringIO()  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(printed):
            main([*command.split(), "--help"])
    except _OptionsFoundError as wanted:
        options, settings = wanted.args
        about = settings["description"] or inspect.getdoc(options) or ""
        return options, settings.get("default"), settings["prog"], about
    finally:
        tyro.cli = original
    usage, _, about = printed.getvalue().partition("\n\n")
    return None, None, usage.removeprefix("usage: "), about


def field_docs(cls: type) -> dict[str, str]:
    """Return the string below each field of a dataclass, as one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):  # made by make_dataclass, or not a class of Python
            continue
        body = getattr(node, "body", [])
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return docs


def allowed(hint: Any) -> str:
    """Return what values a field takes: FLOAT, between 0 and 1."""
    limits = [str(limit).removeprefix("must be ").replace(HUGE, "at least 1") for limit in _limits(hint)]
    if hint is bool:
        return "on or off"
    return ", ".join([metavar(hint).replace("{", "").replace("}", "").replace(",", ", "), *limits])


def _limits(hint: Any) -> Iterator[Range | Pattern]:
    """Yield the ranges in a type."""
    if get_origin(hint) is Annotated:
        yield from (part for part in get_args(hint) if isinstance(part, Range | Pattern))
    for part in get_args(hint):
        yield from _limits(part)


def option_rows(cls: Any, values: Any = None, spell: Callable[[str], str] = flag) -> list[list[str]]:
    """Return option, allowed values, default and meaning of every field of a dataclass.

    Args:
        cls: the dataclass.
        values: an object with the defaults; the fields' own unless given.
        spell: how a field is written.
    """
    docs, hints, rows = field_docs(cls), get_type_hints(cls, include_extras=True), []
    for field in dataclasses.fields(cls):
        if field.name in ("inner", "method") or not field.init:
            continue
        default = getattr(values, field.name, field.default)
        words = "" if default in (None, dataclasses.MISSING) else " ".join(value_words(default))
        words = {"True": "on", "False": "off"}.get(words, words)
        hint = str if field.name in ("dataset", "model", "task") else hints[field.name]
        name = spell(field.name)
        rows.append([f"`{name}`", allowed(hint), f"`{words}`" if words else "", docs.get(field.name, "")])
    return rows


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [headings, ["---"] * len(headings), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def fields_table(fields: Mapping[str, str]) -> str:
    """Return a table of the fields of a file and their meaning."""
    return table(["field", "meaning"], [[f"`{name}`", text] for name, text in fields.items()])


OPTION_HEADINGS = ["option", "value", "default", "meaning"]


def commands_page() -> str:
    """Return the page of all commands."""
    commands = [name for name in COMMANDS if name not in ("data", "flower")]
    commands += [f"data {name}" for name in DATA] + [f"flower {name}" for name in FLOWER]
    intro = (
        "# Commands\n\nEvery command and its options, from the definitions that `--help` shows. "
        "Any command takes `--help`, and `--debug`, which shows the traceback of an error. "
        "Exit codes: 0 done, 1 trouble of the system, 2 a mistake in the command, 130 Ctrl-C, 143 SIGTERM.\n\n"
    )
    return NOTE + intro + "".join(map(command_section, commands))


def command_section(command: str) -> str:
    """Return the section of one command."""
    options, default, usage, about = command_options(command)
    about = about.replace(f": {', '.join(METHODS)}.", ".")
    text = f"## fedflat {command}\n\n```\n{usage}{' [OPTIONS]' if options else ''}\n```\n\n{about.strip()}\n\n"
    if options is None:
        return text
    hints = get_type_hints(options, include_extras=True)
    groups = [(f.name, hints[f.name]) for f in dataclasses.fields(options) if dataclasses.is_dataclass(hints[f.name])]
    if not groups:
        return text + table(OPTION_HEADINGS, option_rows(options, default))
    for name, cls in groups:
        if issubclass(cls, Setting):
            text += "It takes every option of [an experiment](experiment.md).\n\n"
        elif name != "method":
            text += table(OPTION_HEADINGS, option_rows(cls, getattr(default, name, None)))
    if any(name == "method" for name, _ in groups):
        text += "It takes the options of the method too; [names](names.md#methods) lists them.\n\n"
    return text


def experiment_page() -> str:
    """Return the page of the options of an experiment."""
    intro = (
        "# Options of an experiment\n\nThe same options are flags of `fedflat run`, `compare`, `sweep` and `tune`, "
        "keys of `config.yaml`, and arguments of `ff.Experiment`. `--batch-size 16` is `batch_size: 16` in YAML and "
        "`batch_size=16` in Python. `method` is one more key: its `name` and its own options.\n\n"
    )
    return NOTE + intro + table(OPTION_HEADINGS, option_rows(Setting))


def names_page() -> str:
    """Return the page of everything that is chosen by a name."""
    text = NOTE + "# Names\n\nEverything that an option takes by name, from the registries of the code.\n\n"
    text += "## Methods\n\n" + "".join(map(method_section, METHODS))
    rows = [[f"`{name}`", first_line(make)] for name, make in (MODELS | TEXT_MODELS).items()]
    text += (
        "## Models\n\n`--model NAME`, `auto`, `FILE.py:CLASS` or `hf:FOLDER` ([models.md](../models.md)).\n\n"
        + table(["name", "what it is"], rows)
    )
    rows = [["`digits`", "10", "embedded"], ["`sklearn-text`", "", "embedded; text"]]
    rows += [[f"`{n}`", str(d.classes), "download" if d.files else "by hand"] for n, d in DATASETS.items()]
    own = ", ".join(f"`{kind}:PATH`" for kind in [*OWN_KINDS, "hf"])
    text += f"## Data sets\n\n`--dataset NAME`, or {own} or `FILE.py:FUNCTION` ([datasets.md](../datasets.md)).\n\n"
    text += table(["name", "classes", "from"], rows)
    rows = [[f"`{name}`", first_line(part)] for name, part in PARTITIONS.items()]
    text += "## Partitions\n\n`--partition NAME` ([data-partitions.md](../data-partitions.md)).\n\n"
    text += table(["name", "what it does"], rows)
    learned = {name: CLASSIFICATION if task is Task else first_line(task) for name, task in TASKS.items()}
    rows = [[f"`{name}`", learned[name], f"`{task.metric}`"] for name, task in TASKS.items()]
    text += "## Tasks\n\n`--task NAME`, `auto` or `FILE.py:CLASS` ([tasks.md](../tasks.md)).\n\n" + table(
        ["name", "what is learned", "metric"], rows
    )
    probes = [describe_probe(name, probe) for name, probe in PROBES.items()]
    rows = [[f"`{p['name']}`", p["summary"], p["costs"]] for p in probes]
    text += "## Probes\n\n`--probes NAME ...` ([probes.md](../probes.md)).\n\n" + table(
        ["name", "measures", "costs"], rows
    )
    measures = {name: MEASUREMENTS.get(name, measure_barrier) for name in member_types(ANALYSES)}
    rows = [[f"`{name}`", first_line(measure)] for name, measure in measures.items()]
    text += (
        "## Measurements of finished runs\n\n`fedflat analyse RUN --what NAME ...` ([analysis.md](../analysis.md)).\n\n"
    )
    text += table(["name", "measures"], rows)
    rows = [[f"`{name}`", first_line(engine)] for name, engine in ENGINES.items()]
    text += (
        "## Engines\n\n`--engine NAME`; `distributed` is `batched` under torchrun ([scaling.md](../scaling.md)).\n\n"
    )
    return text + table(["name", "how clients train"], rows)


def method_section(name: str) -> str:
    """Return the section of one method."""
    cls = METHODS[name]
    text = (
        f"### {name}\n\n`ff.{cls.__name__}`. {describe_method(name, cls)['paper']} ([page](../methods/{name}.md))\n\n"
    )
    rows = option_rows(cls)
    return text + (table(OPTION_HEADINGS, rows) if rows else "It has no options of its own.\n\n")


def first_line(documented: Any) -> str:
    """Return the first line of a docstring, without the verb of a function."""
    line = (inspect.getdoc(documented) or "").partition("\n")[0]
    noun = re.sub("^(Return|Measure) ", "", line)
    return noun[:1].upper() + noun[1:] if noun[:2].isascii() and noun[:2].isalpha() else noun


def result_fields() -> dict[str, str]:
    """Return the fields of result.json and their meaning, from the docstring of Result."""
    attributes = (inspect.getdoc(Result) or "").partition("Attributes:")[2]
    pairs = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.M)
    return {_name_in_json(name, "METRIC"): " ".join(text.split()) for name, text in pairs if name != "history"}


def config_fields() -> dict[str, str]:
    """Return the keys of config.yaml and when they are written: what is not used is left out."""
    always = experiment_to_dict(Experiment())
    names = ["method", *(field.name for field in dataclasses.fields(Setting))]
    when = {name: "always" if name in always else "where it has an effect" for name in names}
    return {**when, "code": "where a file of yours is named: its path and SHA-256"}


def run_folder_page() -> str:
    """Return the page of the files of a run folder and their fields."""
    text = NOTE + "# Files of a run\n\n" + table(["file", "content"], [[f"`{n}`", t] for n, t in RUN_FILES.items()])
    text += "Some folders have more:\n\n" + table(["file", "content"], [[f"`{n}`", t] for n, t in OTHER_FILES.items()])
    text += "## config.yaml\n\n[Options of an experiment](experiment.md) explains each key.\n\n"
    text += table(["key", "written"], [[f"`{name}`", when] for name, when in config_fields().items()])
    text += "## metrics.jsonl\n\nOne JSON object per line, one line per evaluation and seed.\n\n" + fields_table(
        METRICS
    )
    text += (
        "## result.json\n\nMETRIC is the task's main metric: `final_accuracy` for classification. Fields that may be "
        "none are left out then, but for `clients`; `metric` and `higher_is_better` are left out where the metric is "
        "accuracy.\n\n"
    )
    text += fields_table(result_fields())
    text += "## checkpoint/state.safetensors\n\nTensors by name:\n\n" + fields_table(CHECKPOINT)
    text += "Its metadata:\n\n" + fields_table(METADATA)
    text += "## clients.jsonl\n\nOnly of federations: one JSON object per line ([deploy.md](../deploy.md)).\n\n"
    return text + fields_table(CLIENTS)


def python_page() -> str:
    """Return the page of the public names; mkdocstrings fills in their documentation when the site is built."""
    names = {f"ff.{name}": module for module, names in fedflat._MODULES.items() for name in names}
    further = {f"{module}.{name}": module for module, names in FURTHER_MODULES.items() for name in names}
    text = (
        "# Python\n\nWhat most programs need is in `fedflat`, here `import fedflat as ff`. "
        "The site shows signatures and docstrings; in Python, `help(ff.Experiment)` does. "
        "Methods such as `ff.FedSOL` are listed under [names](names.md#methods).\n\n"
    )
    text += names_table(names) + "Further names, in modules of their own:\n\n" + names_table(further)
    for name, module in (names | further).items():
        text += f"## {name}\n\n::: {module}.{name.rpartition('.')[2]}\n"
        text += "    options: { inherited_members: true }\n\n" if name == "ff.Task" else "\n"
    return NOTE + text


def names_table(names: Mapping[str, str]) -> str:
    """Return a table of names with what each is, linked to their sections.

    Args:
        names: the module of each name.
    """
    rows = [
        [f"[`{name}`](#{name.replace('.', '').lower()})", what_it_is(name, module)] for name, module in names.items()
    ]
    return table(["name", "what it is"], rows)


def what_it_is(name: str, module: str) -> str:
    """Return what a public name is: the first line of its docstring, the range of a type, the keys of a dict."""
    found = getattr(import_module(module), name.rpartition(".")[2])
    if get_origin(found) is Annotated:
        return allowed(found)
    return f"by name: {', '.join(found)}" if type(found) is dict else first_line(found)


INDEX = """# Reference

| page | |
|---|---|
| [Commands](commands.md) | every command and its options |
| [Options of an experiment](experiment.md) | flags of training commands, keys of YAML, `ff.Experiment` |
| [Names](names.md) | every method, model, data set, partition, task, probe, engine |
| [Files of a run](run-folder.md) | every field of config, metrics, result, checkpoint and clients.jsonl |
| [Python](python.md) | every public name of `fedflat` |
| [Methods](../methods/README.md) | a page about each method |
"""

PAGES: dict[str, Callable[[], str]] = {
    "README.md": lambda: NOTE + INDEX,
    "commands.md": commands_page,
    "experiment.md": experiment_page,
    "names.md": names_page,
    "run-folder.md": run_folder_page,
    "python.md": python_page,
}


def write_pages() -> None:
    """Write every page of the reference."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page().rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_pages()
