"""Search for good options: random or grid search with successive halving on held-out training samples.

All trials train for a few rounds; the best third of them goes on, then the best third of those, until the last ones
have trained all rounds. A trial that goes on continues from its checkpoint, and its learning rates are those of the
whole run from the start. Trials train side by side as the points of a sweep do.

Points and decisions are functions of the options and of the metrics that are stored in the trials' folders. So a search
that was killed decides the same when it continues.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedflat.core.metric import MainMetric
from fedflat.engine.rounds import evaluation_task, main_metric
from fedflat.options import check
from fedflat.runs.build import build_run
from fedflat.runs.checkpoint import trained_rounds
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import write_atomically
from fedflat.runs.metrics import read_metrics
from fedflat.runs.optuna_search import propose_points
from fedflat.runs.read import finished_result, read_trained_run
from fedflat.runs.result import finite_or_none
from fedflat.runs.search_space import SearchOptions, Space, checked_space, search_points
from fedflat.runs.sweep import (
    check_holds_out,
    group_experiments,
    point_name,
    refuse_used_folders,
    with_options,
)
from fedflat.runs.train import Watcher
from fedflat.runs.train_together import run_together, train_until

WORST = -1e300  # the score of a trial that diverged


class TuneTrial(NamedTuple):
    """One point of a search.

    Args:
        values: the options of the point by name.
        experiment: the experiment with these options.
        folder: its run folder.
        rounds: the stage that it reached, in rounds.
        value: its main metric on the held-out samples there, mean over seeds; None if a seed diverged.
    """

    values: dict[str, Any]
    experiment: Experiment
    folder: Path
    rounds: int = 0
    value: float | None = None


class TuneResult(NamedTuple):
    """The outcome of a search.

    Args:
        trials: all trials, the best first: by the stage that they reached, then by the metric.
        test_values: the main metric of the best trial's models on the test set, per seed. They were trained without the
            held-out samples. Empty if all trials of the last stage diverged.
        metric: the main metric.
    """

    trials: list[TuneTrial]
    test_values: list[float]
    metric: MainMetric


def tune(
    experiment: Experiment,
    space: Space,
    out: str | Path,
    options: SearchOptions | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
) -> TuneResult:
    """Search for the options with the best metric on held-out training samples.

    Args:
        experiment: the experiment whose options are searched; `validation` must be set.
        space: for each option, a SearchRange or a list of values.
        out: the folder for a run folder of each trial and tune.json.
        options: how to search.
        resume: whether to continue a search in `out`.
        watch: called after each round with its number and the rows of the last evaluation of one trial.

    Raises:
        UserError: an option cannot be used, or a folder belongs to another run.
    """
    options = options or SearchOptions()
    check(options)
    check_holds_out(experiment)
    points = search_points(experiment, space, options)
    metric = build_run(experiment).task.main_metric()
    if not resume:
        refuse_used_folders([Path(out) / point_name(point) for point in points] or list(Path(out).glob("*")))

    def make_trials(points: list[dict[str, Any]]) -> list[TuneTrial]:
        trials = [TuneTrial(v, with_options(experiment, v), Path(out) / point_name(v)) for v in points]
        for trial in trials:
            trial.experiment.check()
        return trials

    trials = make_trials(points)

    def first_stage(points: list[dict[str, Any]]) -> list[float]:
        proposed, round = make_trials(points), stage_rounds(experiment, options.trials, options)[0]
        _train_stage(round, list({t.folder: t for t in proposed}.values()), options.at_once, watch)
        return [_score(_value_at(trial, round, metric), metric) for trial in proposed]

    if options.sampler == "optuna":
        points = propose_points(checked_space(experiment, space), options, first_stage)
        trials = make_trials(list({point_name(point): point for point in points}.values()))
    alive = list(range(len(trials)))
    for round in stage_rounds(experiment, len(trials), options):
        _train_stage(round, [trials[n] for n in alive], options.at_once, watch)
        for n in alive:
            trials[n] = trials[n]._replace(rounds=round, value=_value_at(trials[n], round, metric))
        ranked = sorted(alive, key=lambda n: -_score(trials[n].value, metric))
        alive = ranked[: max(1, math.ceil(options.keep * len(ranked)))]
    trials = sorted(trials, key=lambda trial: (-trial.rounds, -_score(trial.value, metric)))
    result = TuneResult(trials, [] if trials[0].value is None else evaluate_on_test_set(trials[0]), metric)
    write_atomically(Path(out) / "tune.json", json.dumps(_summary(result), indent=1))
    return result


def stage_rounds(experiment: Experiment, trials: int, options: SearchOptions) -> list[int]:
    """Return the rounds after which trials are compared; the last is the experiment's number of rounds.

    Args:
        experiment: the experiment.
        trials: the number of trials in the first stage.
        options: how many trials go on, and the rounds of the first stage.
    """
    rounds, every, left = [experiment.rounds], experiment.eval_every, trials
    shorter = experiment.rounds * options.keep
    while left > 1 and shorter >= options.min_rounds:
        rounds.append(min(experiment.rounds, every * math.ceil(shorter / every)))
        left, shorter = math.ceil(options.keep * left), shorter * options.keep
    return sorted(set(rounds))


def _train_stage(round: int, trials: Sequence[TuneTrial], at_once: int, watch: Watcher | None) -> None:
    """Train trials up to a round, in the same groups whether or not some of them are there already."""
    experiments = [trial.experiment for trial in trials]
    for group in group_experiments(experiments, at_once):
        own = [trials[n] for n in group]
        complete = [trial for trial in own if finished_result(trial.folder, trial.experiment)]
        left = [trial for trial in own if trial not in complete]
        todo = [trial.experiment for trial in left], [trial.folder for trial in left]
        beside = [trial.experiment for trial in complete]
        if left and round == experiments[0].rounds:
            run_together(*todo, True, watch, beside)
        elif any(trained_rounds(trial.folder / "checkpoint" / "state.safetensors") < round for trial in left):
            train_until(round, *todo, watch, beside)


def _score(value: float | None, metric: MainMetric) -> float:
    """Return a number that is larger for a better value, the smallest for a trial that diverged."""
    return WORST if value is None else metric.score(value)


def _value_at(trial: TuneTrial, round: int, metric: MainMetric) -> float | None:
    """Return a trial's mean metric over seeds after a round, None if a seed diverged."""
    rows = [row for row in read_metrics(trial.folder / "metrics.jsonl") if row["round"] == round]
    if len(rows) < len(trial.experiment.seeds) or any(row["loss"] is None for row in rows):
        return None
    return fmean(row[metric.name] for row in rows)


def evaluate_on_test_set(trial: TuneTrial) -> list[float]:
    """Return the main metric of a complete trial's models on the test set, for each seed."""
    run = read_trained_run(trial.folder, trial.experiment)
    built = build_run(dataclasses.replace(trial.experiment, validation=0.0))
    test = built.client_data.test()
    task = evaluation_task(built.task, test.y.device)
    return [main_metric(task, each.server.params, test) for each in run.trials]


def _summary(result: TuneResult) -> dict[str, Any]:
    """Return the content of tune.json."""
    trials = [
        {"options": t.values, "rounds": t.rounds, f"validation_{result.metric.name}": t.value, "folder": t.folder.name}
        for t in result.trials
    ]
    return {
        "best": None if result.trials[0].value is None else trials[0]["options"],
        f"test_{result.metric.name}": finite_or_none(result.test_values),
        "trials": trials,
    }
