"""fedflat sweep: train a method at every point of a grid of options, many points at once."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedflat.cli import flag
from fedflat.cli.arguments import OutputFiles, method_chain, split_positionals
from fedflat.cli.outputs import output_folder
from fedflat.cli.train import parse_experiment, tell_how_to_continue
from fedflat.core.method import Method
from fedflat.errors import UserError, shorten
from fedflat.methods import METHODS
from fedflat.options import Count, parse_words, value_words
from fedflat.progress import TrainingBar
from fedflat.runs.experiment import Experiment
from fedflat.runs.sweep import AT_ONCE, Grid, SweepPoint, grid_points, option_type, point_name, sweep

EXAMPLE = "fedflat sweep fedsol rho=0.5,1,2 lr=0.01,0.03 --validation 0.1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFiles(OutputFiles):
    """Configuration file, results and how many points are trained at once."""

    out: Path | None = None
    """Folder for a run folder of each point; runs/sweep-METHOD-DATE-TIME unless given."""
    resume: bool = False
    """Continue the sweep in the folder of --out, with the same options given again; more rounds or points extend it."""
    at_once: Count = AT_ONCE
    """Points that are trained side by side; fewer need less memory."""


def sweep_command(words: list[str]) -> None:
    """Train one method at every point of a grid."""
    names, flags = split_positionals(words)
    if not names and not {"--help", "-h"} & set(flags):
        raise UserError(None, "sweep", f"name a method and the values of its options first, for example {EXAMPLE}")
    about = f"Train one method at every point of a grid and show the best on validation samples: {EXAMPLE}."
    usage = "sweep METHOD NAME=VALUE,VALUE ..."
    with _explain_lists():
        experiment, files = parse_experiment(names[0] if names else None, flags, SweepFiles, usage, about)
    grid = parse_grid(experiment.method, names[1:])
    with output_folder(files, f"sweep-{names[0]}", leads=True) as out:
        folders = [out / point_name(values) for values, _ in grid_points(experiment, grid)]
        with tell_how_to_continue(["sweep", *names, "--at-once", str(files.at_once)], folders, out):
            points = _sweep_with_bar(experiment, grid, out, files)
    print_sweep(points)
    if points[0].result.diverged_seeds:
        print("no best point: every one of them diverged, for at least one seed")
    else:
        print(f"best: {' '.join(option_words(points[0].values))}")
        print(f"train it on all samples: {command_of(points[0].experiment, points[0].values)}")
    print(f"results in {out}")


@contextmanager
def _explain_lists() -> Iterator[None]:
    """Say where values stand that were given to a flag with commas: --rho 0.5,1."""
    try:
        yield
    except UserError as error:
        if not (error.option and isinstance(error.value, str) and "," in error.value):
            raise
        name = flag(error.option).removeprefix("--")
        problem = f"{error.problem}; values to sweep stand before the flags, {name}={shorten(error.value)}"
        raise UserError(error.option, error.value, problem) from None


def parse_grid(method: Method, words: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values by name that words such as rho=0.5,1,2 stand for; raise UserError for other words."""
    if not words:
        raise UserError(None, "sweep", "give at least one option with its values, for example lr=0.01,0.03")
    grid: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if not key or not values:
            raise UserError(None, word, "must look like name=value,value, for example rho=0.5,1,2")
        if key in grid:
            raise UserError(None, word, f"{name} may be given once")
        if ".." in values:
            raise UserError(None, word, "fedflat tune searches ranges; a sweep takes values with commas between them")
        grid[key] = [parse_words(option_type(method, key), [value]) for value in values.split(",")]
    return grid


def _sweep_with_bar(experiment: Experiment, grid: Grid, out: Path, files: SweepFiles) -> list[SweepPoint]:
    """Train with a progress bar over the rounds of all points."""
    count = len(grid_points(experiment, grid))
    with TrainingBar(f"{count} points", experiment.rounds * count) as bar:
        return sweep(experiment, grid, out, files.resume, files.at_once, bar.update)


def print_sweep(points: Sequence[SweepPoint]) -> None:
    """Print the points, the best first, with their metric on the held-out samples."""
    print_columns([[*points[0].values, f"validation {points[0].result.metric}"], *(_row(point) for point in points)])


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of words with their columns aligned."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(point: SweepPoint) -> list[str]:
    result = point.result
    form = result.main_metric.form
    value = f"{result.final:{form}} ± {result.final_std:{form}}"
    return [*(" ".join(value_words(v)) for v in point.values.values()), "diverged" if result.diverged_seeds else value]


def command_of(experiment: Experiment, values: Collection[str]) -> str:
    """Return the command that trains an experiment on all training samples and evaluates on the test set.

    Args:
        experiment: the experiment.
        values: names of options that are written though they may have their default.
    """
    outer, *inner = method_chain(experiment.method)
    spec = "+".join([METHODS.name_of(type(outer)), *map(_spec, inner)])
    changed = _changed(outer, type(outer)(), values)
    setting = _changed(dataclasses.replace(experiment, validation=0.0), Experiment(), values)
    return shlex.join(["fedflat", "run", spec, *option_words(changed), *option_words(setting)])


def _changed(options: Any, defaults: Any, always: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from those of another, or are in `always`; methods do not count."""
    values = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    kept = {n: v for n, v in values.items() if n in always or v != getattr(defaults, n)}
    return {n: v for n, v in kept.items() if not isinstance(v, Method)}


def _spec(method: Method) -> str:
    """Return a wrapped method as it is written after a +: fedsol:rho=2.0."""
    pairs = [f"{name}={' '.join(value_words(v))}" for name, v in _changed(method, type(method)()).items()]
    return METHODS.name_of(type(method)) + (":" + ",".join(pairs) if pairs else "")


def option_words(values: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line: --rho 1.0 --lr 0.03."""
    return [word for name, value in values.items() for word in _flag_words(name, value)]


def _flag_words(name: str, value: Any) -> list[str]:
    """Return one option as words; one that is on or off has a flag for each: --regularise, --no-regularise."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    return [flag(name), *value_words(value)]
