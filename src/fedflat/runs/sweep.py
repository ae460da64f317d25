"""Train an experiment at every point of a grid of options, many points side by side, and choose the best.

Points that differ only in learning rates, momentum, weight decay or real-valued hyper-parameters of the method are
lanes of one engine: its step is traced, and on a GPU compiled, once for all of them. What changes the step's operations
(whole numbers, choices, momentum 0 against not 0) makes another group, trained after the first.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from fedflat.core.method import Method, hyper_parameters, with_hyper_parameters
from fedflat.engine.batched import takes_lane_values
from fedflat.engine.sequential import client_batches
from fedflat.errors import NOT_SHOWN, UserError, mention, near_miss
from fedflat.options import Count, normalised_list, value_problem
from fedflat.runs.build import build_run
from fedflat.runs.callbacks import check_callbacks
from fedflat.runs.experiment import Experiment, Setting
from fedflat.runs.folder import write_atomically
from fedflat.runs.read import finished_result
from fedflat.runs.result import Result, finite_or_none
from fedflat.runs.train import Watcher
from fedflat.runs.train_together import differing_fields, run_together, shared_step

AT_ONCE = 16  # points trained side by side, unless another number is given
SHARED = {  # what no grid may hold, and what to do instead
    "method": "fedflat compare trains several methods",
    "seeds": f"give {mention('seeds', [0, 1])} beside them",
    "probes": f"give {mention('probes', ['drift'])} beside them",
    "validation": f"give {mention('validation', 0.1)} beside them",
}
Grid = Mapping[str, Sequence[Any]]
PointCallbacks = Callable[[dict[str, Any]], Sequence[Any]]  # takes the options of a point, returns its callbacks


class SweepPoint(NamedTuple):
    """One point of a grid.

    Args:
        values: the options of the point by name.
        experiment: the experiment with these options.
        result: its result.
        folder: its run folder, None if nothing was written.
    """

    values: dict[str, Any]
    experiment: Experiment
    result: Result
    folder: Path | None

    @property
    def score(self) -> float:
        """A number that is larger for a better metric on the held-out samples; −∞ if a seed diverged."""
        return -math.inf if self.result.diverged_seeds else self.result.main_metric.score(self.result.final)


def sweep(
    experiment: Experiment,
    grid: Grid,
    out: str | Path | None = None,
    resume: bool = False,
    at_once: int = AT_ONCE,
    watch: Watcher | None = None,
    callbacks: PointCallbacks | None = None,
) -> list[SweepPoint]:
    """Train an experiment at every point of a grid and return the points, the best first.

    Points are compared by their accuracy on held-out training samples, so `validation` must be set. Each point learns
    what it would learn alone.

    Args:
        experiment: the experiment whose options the grid changes.
        grid: values by name: options of Experiment, or hyper-parameters of its method.
        out: the folder for a run folder of each point and sweep.json; nothing is written if None.
        resume: whether to continue a sweep in `out`. Finished points are not trained again.
        at_once: how many points are trained side by side.
        watch: called after each round with the number of rounds that all points have trained, in sum, and the rows of
            the last evaluation of one point.
        callbacks: called with the options of each point that is trained; returns the callbacks of this point, such as
            [EarlyStopping(patience=20)]. A point that they stop is complete, and the others go on.

    Raises:
        UserError: a name or a value of the grid cannot be used, or a folder belongs to another run.
        CallbackError: a callback raised an exception; the points under way are saved.
    """
    if problem := value_problem(Count, at_once):
        raise UserError("at_once", at_once, problem)
    check_holds_out(experiment)
    points = grid_points(experiment, grid)
    own_callbacks = [_point_callbacks(callbacks, values) for values, _ in points]
    experiments = [each for _, each in points]
    for each in experiments:
        each.check()
    folders = None if out is None else [Path(out) / point_name(values) for values, _ in points]
    results = _stored_results(experiments, folders, resume) if folders else {}
    for group in group_experiments(experiments, at_once):
        done, left = len(results), [n for n in group if n not in results]
        if not left:
            continue

        def watch_group(round: int, rows: list[dict[str, Any]], done: int = done, own: int = len(left)) -> None:
            if watch:
                watch(done * experiment.rounds + own * round, rows)

        paths = None if folders is None else [folders[n] for n in left]
        complete = [experiments[n] for n in group if n in results]
        own = [own_callbacks[n] for n in left]
        trained = run_together([experiments[n] for n in left], paths, resume, watch_group, complete, own)
        results |= zip(left, trained, strict=True)
    swept = [
        SweepPoint(values, each, results[n], folders[n] if folders else None) for n, (values, each) in enumerate(points)
    ]
    ranked = sorted(swept, key=lambda point: -point.score)
    if out is not None:
        write_atomically(Path(out) / "sweep.json", json.dumps([_summary(point) for point in ranked], indent=1))
    return ranked


def _point_callbacks(callbacks: PointCallbacks | None, values: dict[str, Any]) -> list[Any]:
    """Return the callbacks of a point; raise UserError if one is not a callback."""
    if callbacks is None:
        return []
    if not callable(callbacks):
        problem = "points train side by side; give a function that returns the callbacks of each: lambda options: [...]"
        raise UserError("callbacks", NOT_SHOWN, problem)
    return check_callbacks(callbacks(dict(values)))


def check_holds_out(experiment: Experiment) -> None:
    """Raise UserError if no training samples are held out by which points could be compared."""
    if not experiment.validation:
        problem = f"points are compared on held-out training samples; give {mention('validation', 0.1)}"
        raise UserError("validation", NOT_SHOWN, problem)


def grid_points(experiment: Experiment, grid: Grid) -> list[tuple[dict[str, Any], Experiment]]:
    """Return the options of every point of a grid, and the experiment with them.

    Args:
        experiment: the experiment whose options change.
        grid: values by name.
    """
    lists = {name: value_list(experiment.method, name, values) for name, values in grid.items()}
    for name, values in lists.items():
        if any(value in values[:n] for n, value in enumerate(values)):
            raise UserError(name, list(values), "every value may appear once")
    points = [dict(zip(grid, values, strict=True)) for values in product(*lists.values())]
    return [(point, with_options(experiment, point)) for point in points]


def value_list(method: Method, name: str, values: Any) -> tuple[Any, ...]:
    """Return the values of an option of a grid, arrays and numpy's numbers as Python's; raise UserError for no list.

    Args:
        method: the method, whose hyper-parameters are options too.
        name: the name of the option.
        values: a list, tuple, range or array of values.
    """
    found = normalised_list(option_type(method, name), values)
    if not isinstance(found, tuple) or not found:
        raise UserError(name, values, "must be a list of values; a search also takes a SearchRange")
    return found


def option_type(method: Method, name: str) -> Any:
    """Return the type of an option of a grid; raise UserError if there is none of this name.

    Args:
        method: the method, whose hyper-parameters are options too; those of a wrapped method count as well.
        name: the name, such as lr or rho.
    """
    settings = {f.name for f in dataclasses.fields(Setting)} - SHARED.keys()
    if name in SHARED:
        raise UserError(name, NOT_SHOWN, f"is the same for all points; {SHARED[name]}")
    if name in settings and _method_with(method, name):
        raise UserError(name, NOT_SHOWN, "is an option of the run and of the method alike; rename the method's")
    if name in settings:
        return get_type_hints(Setting, include_extras=True)[name]
    if (found := _method_with(method, name)) is None:
        known = [*settings, *(path.rpartition(".")[2] for path in hyper_parameters(method))]
        problem = f"unknown option{near_miss(name, known)}; use one of the method's or one of fedflat run"
        raise UserError(name, NOT_SHOWN, problem)
    return get_type_hints(type(found), include_extras=True)[name]


def _method_with(method: Method, name: str) -> Method | None:
    """Return the method, or the outermost method wrapped in it, that has this hyper-parameter."""
    inner = getattr(method, "inner", None)
    if name != "inner" and name in {f.name for f in dataclasses.fields(method)}:
        return method
    return _method_with(inner, name) if isinstance(inner, Method) else None


def with_options(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return the experiment with other values of options and hyper-parameters.

    Args:
        experiment: the experiment.
        values: the values by name, as in a grid.
    """
    options = {f.name for f in dataclasses.fields(Setting)}
    settings = {name: value for name, value in values.items() if name in options}
    deepest_first = sorted(hyper_parameters(experiment.method), key=lambda path: -path.count("."))
    paths = {path.rpartition(".")[2]: path for path in deepest_first}
    own = {paths[name]: value for name, value in values.items() if name not in settings}
    return dataclasses.replace(experiment, method=with_hyper_parameters(experiment.method, own), **settings)


def point_name(values: Mapping[str, Any]) -> str:
    """Return the folder name of a point: rho=0.5,lr=0.01."""
    return re.sub(r"[^\w.+=,-]+", "-", ",".join(f"{name}={value}" for name, value in values.items())) or "point"


def refuse_used_folders(folders: Sequence[Path]) -> None:
    """Raise UserError if one of the folders holds a run."""
    for folder in folders:
        if (folder / "config.yaml").exists():
            problem = f"already holds {folder.name}; add {mention('resume')} or choose another folder"
            raise UserError("out", folder.parent, problem)


def _stored_results(experiments: Sequence[Experiment], folders: Sequence[Path], resume: bool) -> dict[int, Result]:
    """Return the results of the points that are complete; raise UserError for a folder in use if not `resume`."""
    if not resume:
        refuse_used_folders(folders)
    stored = [finished_result(*pair) for pair in zip(folders, experiments, strict=True)]
    return {n: result for n, result in enumerate(stored) if result}


def group_experiments(experiments: Sequence[Experiment], at_once: int) -> list[list[int]]:
    """Return the positions of experiments that can be trained together.

    Args:
        experiments: experiments with methods of one class.
        at_once: the largest size of a group.
    """
    fields = _lane_fields(experiments)
    alike: dict[str, list[int]] = {}
    for n, experiment in enumerate(experiments):
        alike.setdefault(json.dumps(shared_step(experiment, fields), default=str), []).append(n)
    at_once = 1 if experiments[0].attackers else at_once
    sizes = {key: math.ceil(len(own) / math.ceil(len(own) / at_once)) for key, own in alike.items()}
    return [own[i : i + sizes[key]] for key, own in alike.items() for i in range(0, len(own), sizes[key])]


def _lane_fields(experiments: Sequence[Experiment]) -> list[str]:
    """Return the hyper-parameters in which the experiments differ and over which a step can be vectorised."""
    differing = differing_fields([experiment.method for experiment in experiments])
    if not differing:
        return []
    built, method = build_run(experiments[0]), experiments[0].method
    batch = next(client_batches(built.client_data, 0, 0, 0, 0))
    return [f for f in differing if takes_lane_values(method, f, built.task, built.initial_params[0], batch)]


def _summary(point: SweepPoint) -> dict[str, Any]:
    """Return what sweep.json says of a point."""
    result = point.result
    return {
        "options": point.values,
        f"validation_{result.metric}": finite_or_none(result.final),
        "std": finite_or_none(result.final_std),
        "diverged_seeds": result.diverged_seeds,
        "folder": str(point.folder.name) if point.folder else None,
    }
