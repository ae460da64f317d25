"""Points of a search that Optuna's tree-structured Parzen estimator proposes from the results of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fedflat.errors import UserError
from fedflat.runs.search_space import SearchOptions, SearchRange, Space

BATCHES = 5  # in which points are proposed: each batch knows the results of those before it


def propose_points(
    space: Space, options: SearchOptions, measure: Callable[[list[dict[str, Any]]], list[float]]
) -> list[dict[str, Any]]:
    """Return the points to try, in the order in which they were proposed.

    The proposals depend on the seed and on the measured numbers alone, so that a search that continues after a crash
    proposes the same points.

    Args:
        space: for each option, a range or a list of values.
        options: the number of trials and the seed.
        measure: trains points for the first stage and returns their scores, larger for better ones.

    Raises:
        UserError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise UserError("sampler", "optuna", "the package is not installed; install fedflat[optuna]") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=options.search_seed, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    points: list[dict[str, Any]] = []
    size = math.ceil(options.trials / BATCHES)
    while len(points) < options.trials:
        asked = [study.ask() for _ in range(min(size, options.trials - len(points)))]
        batch = [{name: _suggest(trial, name, choices) for name, choices in space.items()} for trial in asked]
        for trial, score in zip(asked, measure(batch), strict=True):
            study.tell(trial, score)
        points += batch
    return points


def _suggest(trial: Any, name: str, choices: Any) -> Any:
    """Return the value that Optuna proposes for one option."""
    if not isinstance(choices, SearchRange):
        return choices[trial.suggest_categorical(name, list(range(len(choices))))]
    return choices.at(trial.suggest_float(name, 0.0, 1.0))
