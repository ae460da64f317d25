"""What a search tries: ranges and values of options, and points drawn from them at random or as a grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

from fedflat.core.random import hash_words, purpose_key, uniform_from
from fedflat.errors import UserError
from fedflat.options import Count, Index, Range, member_types, value_problem
from fedflat.runs.experiment import Experiment
from fedflat.runs.sweep import AT_ONCE, option_type, point_name, value_list


class SearchRange(NamedTuple):
    """The numbers between two others.

    Args:
        low: the smallest.
        high: the largest.
        log: whether their logarithms are spread evenly, instead of the numbers themselves.
        whole: whether they are whole numbers.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> float:
        """Return the number at a share of the way from low to high, with four digits or rounded to a whole one."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return round(value) if self.whole else float(f"{value:.4g}")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + ":log" * self.log


Space = Mapping[str, SearchRange | Sequence[Any]]  # by option: a range, or the values themselves


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How points are drawn and when trials end."""

    trials: Count = 27
    """Points that are tried."""
    sampler: Literal["random", "grid", "optuna"] = "random"
    """How points are chosen: at random, evenly spaced in every option, or by Optuna from the first results."""
    keep: Annotated[float, Range(0, 0.9, open=True)] = 1 / 3
    """Share of the trials that go on after each stage."""
    min_rounds: Count = 5
    """Rounds of the first stage at least."""
    search_seed: Index = 0
    """Seed of the random points."""
    at_once: Count = AT_ONCE
    """Trials that are trained side by side; fewer need less memory."""


def search_points(experiment: Experiment, space: Space, options: SearchOptions) -> list[dict[str, Any]]:
    """Return the points to try, without repetitions; none for Optuna, which proposes them as results arrive.

    Random points are hashes of the seed, the trial and the option. A grid takes as many values of every range as fit
    into the number of trials.

    Args:
        experiment: the experiment whose options are searched.
        space: for each option, a range or a list of values.
        options: how to search.
    """
    space = checked_space(experiment, space)
    if options.sampler == "optuna":
        return []
    drawn = _random_points(space, options) if options.sampler == "random" else _grid(space, options.trials)
    return list({point_name(point): point for point in drawn}.values())


def checked_space(experiment: Experiment, space: Space) -> Space:
    """Return a search space with its lists as tuples of Python's numbers; raise UserError for a range that is none.

    Args:
        experiment: the experiment whose options are searched.
        space: for each option, a range or a list of values.
    """
    for name, choices in space.items():
        if isinstance(choices, SearchRange):
            _check_range(name, choices, option_type(experiment.method, name))
    lists = {n: c for n, c in space.items() if not isinstance(c, SearchRange)}
    return {**space, **{n: value_list(experiment.method, n, choices) for n, choices in lists.items()}}


def _check_range(name: str, choices: SearchRange, hint: Any) -> None:
    """Raise UserError if a range is empty, or if one of its ends is not a value of the option, whose type is `hint`."""
    for end in (choices.low, choices.high):
        if problem := value_problem(hint, end):
            raise UserError(name, end, problem)
    if not choices.low < choices.high:
        raise UserError(name, str(choices), "must go from a smaller to a larger number")
    if choices.log and choices.low <= 0:
        raise UserError(name, str(choices), "must begin above 0: the logarithms of its numbers are spread evenly")
    if not choices.whole and float not in member_types(hint):
        raise UserError(name, str(choices), f"must be whole numbers; give {choices._replace(whole=True)!r}")


def _random_points(space: Space, options: SearchOptions) -> list[dict[str, Any]]:
    def draw(trial: int, name: str) -> Any:
        words = (purpose_key("tune"), trial, purpose_key(name))
        share = float(uniform_from(hash_words(options.search_seed, *words)))
        choices = space[name]
        return choices.at(share) if isinstance(choices, SearchRange) else choices[int(share * len(choices))]

    return [{name: draw(trial, name) for name in space} for trial in range(options.trials)]


def _grid(space: Space, trials: int) -> list[dict[str, Any]]:
    lists = {name: list(choices) for name, choices in space.items() if not isinstance(choices, SearchRange)}
    ranges = {name: choices for name, choices in space.items() if isinstance(choices, SearchRange)}
    left = trials // math.prod(map(len, lists.values()))
    each = int(left ** (1 / len(ranges)) + 1e-9) if ranges else 1
    if not left or each < (2 if ranges else 1):
        raise UserError("trials", trials, "are too few for a grid of these options; use more, or another sampler")
    values = lists | {name: [r.at(n / (each - 1)) for n in range(each)] for name, r in ranges.items()}
    return [dict(zip(space, point, strict=True)) for point in product(*(values[name] for name in space))]
