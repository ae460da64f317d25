"""fedflat tune: search for the options of a method that are best on held-out samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedflat.cli.arguments import OutputFiles, split_positionals
from fedflat.cli.outputs import output_folder
from fedflat.cli.sweep import command_of, option_words, print_columns
from fedflat.cli.train import parse_experiment, tell_how_to_continue
from fedflat.core.method import Method
from fedflat.core.metric import MainMetric
from fedflat.errors import NOT_SHOWN, UserError
from fedflat.options import member_types, parse_words, value_problem, value_words
from fedflat.progress import TrainingBar
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import mean_std
from fedflat.runs.search_space import SearchOptions, SearchRange, Space, search_points
from fedflat.runs.sweep import option_type, point_name
from fedflat.runs.tune import TuneResult, tune

EXAMPLE = "fedflat tune fedsol --space rho=0.1..5:log lr=0.01..0.1:log --trials 27 --validation 0.1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneFiles(SearchOptions, OutputFiles):
    """What is searched, configuration file and results."""

    out: Path | None = None
    """Folder for a run folder of each trial; runs/tune-METHOD-DATE-TIME unless given."""
    resume: bool = False
    """Continue the search in the folder of --out, with the same options given again."""
    space: tuple[str, ...] = ()
    """Options to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=VALUE,VALUE,..."""


def tune_command(words: list[str]) -> None:
    """Search for the options of one method."""
    names, flags = split_positionals(words)
    if len(names) != 1 and not {"--help", "-h"} & set(flags):
        raise UserError(None, " ".join(["tune", *names]), f"name one method, for example {EXAMPLE}")
    about = f"Search for the options of one method that are best on held-out samples: {EXAMPLE}."
    spec = names[0] if names else None
    experiment, files = parse_experiment(spec, flags, TuneFiles, "tune METHOD", about)
    space = parse_space(experiment.method, files.space)
    options = SearchOptions(**{f.name: getattr(files, f.name) for f in dataclasses.fields(SearchOptions)})
    points = search_points(experiment, space, options)
    changed = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    own = [*option_words({"space": files.space}), *option_words(changed)]
    with output_folder(files, f"tune-{names[0]}", leads=True) as out:
        folders = [out / point_name(point) for point in points] or [out]  # Optuna's are not known before
        with tell_how_to_continue(["tune", names[0], *own], folders, out):
            result = _tune_with_bar(experiment, space, out, options, files.resume)
    print_tune(result)
    print(f"results in {out}")


def parse_space(method: Method, words: Sequence[str]) -> Space:
    """Return the search space that words such as rho=0.1..5:log describe; raise UserError for other words."""
    if not words:
        raise UserError("space", NOT_SHOWN, "give the options to search, for example rho=0.1..5:log lr=0.01..0.1")
    space: dict[str, Any] = {}
    for word in words:
        name, _, values = word.partition("=")
        key = name.replace("-", "_")
        if not key or not values:
            raise UserError("space", word, "must look like rho=0.1..5, rho=0.1..5:log or rho=0.5,1,2")
        if key in space:
            raise UserError("space", word, f"{name} may be given once")
        hint = option_type(method, key)
        space[key] = _range(hint, word, values) if ".." in values else _values(hint, word, values)
    return space


def _values(hint: Any, word: str, text: str) -> list[Any]:
    """Return the values that 0.5,1,2 describes, for an option of type `hint`."""
    values = [parse_words(hint, [value]) for value in text.split(",")]
    if problem := next(filter(None, (value_problem(hint, value) for value in values)), ""):
        raise UserError("space", word, f"{problem}; a range is written {word.partition('=')[0]}=0.1..5")
    return values


def _range(hint: Any, word: str, text: str) -> SearchRange:
    """Return the range that 0.1..5 or 0.1..5:log describes, for an option of type `hint`."""
    bounds, colon, scale = text.partition(":")
    kinds = member_types(hint)
    if not {int, float} & set(kinds):
        raise UserError("space", word, "is not a number; give its values with commas between them")
    try:
        low, high = (_number(bound) for bound in bounds.split(".."))
    except ValueError:
        raise UserError("space", word, "must have two numbers around .., for example rho=0.1..5") from None
    if colon and scale != "log":
        raise UserError("space", word, "after the numbers may stand :log, and nothing else")
    return SearchRange(low, high, bool(scale), whole=int in kinds and isinstance(low, int) and isinstance(high, int))


def _number(word: str) -> float:
    """Return a whole number as an int, others as a float; raise ValueError for other words."""
    number = parse_words(int | float, [word])
    if isinstance(number, str):
        raise ValueError(word)
    return number


def _tune_with_bar(experiment: Experiment, space: Space, out: Path, options: SearchOptions, resume: bool) -> TuneResult:
    """Search with a progress bar that shows the round of the stage under way."""
    with TrainingBar("tune", experiment.rounds) as bar:
        return tune(experiment, space, out, options, resume, bar.update)


def print_tune(result: TuneResult) -> None:
    """Print the trials, the best first; then the best point, its test accuracy and a command that trains it."""
    best, names = result.trials[0], list(result.trials[0].values)
    rows = [
        [*(" ".join(value_words(v)) for v in t.values.values()), str(t.rounds), _text(t.value, result.metric)]
        for t in result.trials
    ]
    print_columns([[*names, "rounds", f"validation {result.metric.name}"], *rows])
    if best.value is None:
        print("no best trial: every one of the last stage diverged, for at least one seed")
        return
    print(f"best: {' '.join(option_words(best.values))}")
    (mean, std), form = mean_std(result.test_values), result.metric.form
    print(f"test {result.metric.name} of the best: {mean:{form}} ± {std:{form}} (trained without the held-out samples)")
    print(f"train it on all samples: {command_of(best.experiment, best.values)}")


def _text(value: float | None, metric: MainMetric) -> str:
    return "diverged" if value is None else f"{value:{metric.form}}"
