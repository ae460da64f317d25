"""Charts with one point or one cell per run: sharpness against accuracy, cost against accuracy, wins, barriers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fedflat.core.metric import MainMetric, common_metric
from fedflat.report.charts import Axis, ChartLine, Curves, Grid, Grids, dash_index
from fedflat.report.comparison import (
    AnalysisDocuments,
    RunSettings,
    analysed_seeds,
    are_comparable,
    comparable_groups,
    folder_name,
)
from fedflat.report.run_labels import method_labels
from fedflat.report.significance import LEVEL, difference_p_value
from fedflat.report.training_charts import metric_axis
from fedflat.runs.read import StoredRun, evaluated_on
from fedflat.runs.result import Result, bytes_per_round

SHARPNESS_MEASURES = {  # key of the chart: measurement, number, label of the axis
    "lambda1": ("hessian", "lambda1", "λ₁ of the Hessian"),
    "trace": ("hessian", "trace", "trace of the Hessian"),
    "lpf": ("lpf", "lpf", "LPF"),
    "discrepancy": ("discrepancy", "discrepancy", "Δ_F"),
    "worst-case": ("discrepancy", "global_rise", "worst-case sharpness"),
}
LEAST_POINTS = 5  # of a rank correlation


def sharpness_charts(runs: Sequence[StoredRun], documents: Sequence[AnalysisDocuments]) -> Iterator[Curves]:
    """Yield charts of each measure of sharpness against accuracy and against the train-test gap, a point per seed.

    Args:
        runs: the runs that are shown together.
        documents: their analyses.
    """
    test, metric = evaluated_on(runs), common_metric(run.main_metric for run in runs)
    axis = metric_axis(runs, metric)
    accuracies = [_accuracies(run) for run in runs]
    gaps = [_gaps(of_run, documents[n], metric.name) for n, of_run in enumerate(accuracies)]
    for key, (what, number, label) in SHARPNESS_MEASURES.items():
        sharpness = [analysed_seeds(of_run, what, number) for of_run in documents]
        for name, values, y in (
            ("accuracy", accuracies, axis),
            ("gap", gaps, dataclasses.replace(axis, label=f"train − {test} {metric.name}")),
        ):
            lines = _seed_points(runs, sharpness, values)
            if sum(len(line.x) for line in lines) > 1:
                title = f"{metric.name.capitalize() if name == 'accuracy' else 'Generalisation gap'} and {label}"
                caption = f"One point per run and seed. {rank_correlation_text(lines)}"
                x = Axis(label, log=_is_wide(lines))
                yield Curves(f"sharpness-{key}-{name}", title, caption, x, y, lines, correlated=True)


def _accuracies(run: StoredRun) -> dict[int, float]:
    result = run.result
    finite = [] if not result or result.diverged else zip(result.seeds, result.final_per_seed, strict=False)
    return dict(finite)


def _gaps(accuracies: Mapping[int, float], documents: AnalysisDocuments, metric: str) -> dict[int, float]:
    """Return the metric on training samples minus that of the evaluation, of seeds for which both are known.

    The discrepancy of some clients does not have the metric on all training samples.
    """
    some = documents.get("discrepancy", {}).get("settings", {}).get("clients")
    train = analysed_seeds(documents, "local" if some else "discrepancy", f"model_{metric}")
    train = train or analysed_seeds(documents, "local", f"model_{metric}")
    return {seed: train[seed] - accuracies[seed] for seed in train if seed in accuracies}


def _seed_points(
    runs: Sequence[StoredRun], xs: Sequence[Mapping[int, float]], ys: Sequence[Mapping[int, float]]
) -> list[ChartLine]:
    lines = []
    for n, run in enumerate(runs):
        seeds = [seed for seed in xs[n] if seed in ys[n]]
        x, y = [xs[n][seed] for seed in seeds], [ys[n][seed] for seed in seeds]
        if seeds:
            lines.append(ChartLine(run.name, n, x, [*y], dash=dash_index(n), marks=True))
    return lines


def _is_wide(lines: Sequence[ChartLine]) -> bool:
    """Return whether a logarithmic axis suits the values: all positive, over more than a factor of ten."""
    xs = [x for line in lines for x in line.x]
    return min(xs) > 0 and max(xs) > 10 * min(xs)


def rank_correlation_text(lines: Sequence[ChartLine]) -> str:
    """Return Spearman's rank correlation of all points with its 95 % interval, in words.

    tanh(artanh ρ ± 1.96 √((1 + ρ²/2) / (n − 3))), the interval of Bonett and Wright (2000)

    Args:
        lines: the points.
    """
    from scipy import stats  # slow to import

    x, y = [x for line in lines for x in line.x], [y for line in lines for y in line.y]
    count = len(x)
    if count < LEAST_POINTS:
        return f"{count} points are too few for a rank correlation."
    if len({*x}) == 1 or len({*y}) == 1:
        return "There is no rank correlation: all values are equal."
    rho = float(stats.spearmanr(x, y).statistic)
    if abs(rho) > 1 - 1e-12:
        return f"Spearman's rank correlation of all {count} points is {rho:+.2f}."
    half = 1.96 * math.sqrt((1 + rho**2 / 2) / (count - 3))
    low, high = (math.tanh(math.atanh(rho) + sign * half) for sign in (-1, 1))
    interval = f"95 % interval {low:+.2f} to {high:+.2f}"
    found = f"Spearman's rank correlation of all {count} points is {rho:+.2f} ({interval})."
    return f"{found} Seeds of a run are not independent."


def pareto_charts(runs: Sequence[StoredRun]) -> Iterator[Curves]:
    """Yield the charts of final accuracy against bytes and against seconds, with the Pareto frontier.

    Args:
        runs: the runs that are shown together.
    """
    finished = {n: run.result for n, run in enumerate(runs) if run.result and not run.result.diverged}
    costs = {
        "bytes": (
            Axis("sent in total", "bytes"),
            lambda n, r: bytes_per_round(r, int(runs[n].config["cohort"])) * r.rounds,
        ),
        "seconds": (Axis("seconds of training"), lambda n, r: r.seconds),
    }
    metric = common_metric(run.main_metric for run in runs)
    if metric not in {run.main_metric for run in runs}:
        return
    for key, (x, cost) in costs.items():
        points = {n: (float(cost(n, result)), result.final) for n, result in finished.items()}
        if len(points) > 1:
            lines = [
                ChartLine(runs[n].name, n, [point[0]], [point[1]], dash=dash_index(n), marks=True)
                for n, point in points.items()
            ]
            caption = f"The last {metric.name} and all {key} of a run. No run beats the dashed frontier in both."
            title, y = f"{metric.name.capitalize()} for {key}", metric_axis(runs, metric)
            frontier = _frontier([*points.values()], metric)
            better: Any = "highest" if metric.higher_is_better else "lowest"
            yield Curves(f"pareto-{key}", title, caption, x, y, [frontier, *lines], frontier=better)


def _frontier(points: Sequence[tuple[float, float]], metric: MainMetric) -> ChartLine:
    """Return the points that no other beats in both cost and metric."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -metric.score(point[1]))):
        if not best or metric.score(y) > metric.score(best[-1][1]):
            best.append((x, y))
    return ChartLine("Pareto frontier", -1, [x for x, _ in best], [y for _, y in best], dash=1)


class PairRecord(NamedTuple):
    """In how many settings one method was significantly better than another, not different, and worse."""

    won: int
    tied: int
    lost: int


def win_chart(runs: Sequence[StoredRun], settings: Sequence[RunSettings]) -> Iterator[Grids]:
    """Yield the matrix of methods: in how many settings each is significantly better than each other one.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
    """
    labels = method_labels(runs)
    methods = [*dict.fromkeys(label for label, run in zip(labels, runs, strict=True) if len(_last_accuracies(run)) > 1)]
    records = {(a, b): _record(runs, settings, labels, a, b) for a in methods for b in methods if a != b}
    if not any(sum(record) for record in records.values()):
        return
    z = [[_balance(records.get((a, b))) for b in methods] for a in methods]
    text = [
        ["–".join(map(str, records[a, b])) if sum(records.get((a, b), ())) else "" for b in methods] for a in methods
    ]
    caption = (
        "Settings in which the method of the row is significantly better than that of the column – not different – "
        "worse, in the main metric over the last tenth of evaluations (t-test over seeds, p < 0.05). Runs that "
        "diverged count as worse than runs that did not."
    )
    places = [*map(float, range(len(methods)))]
    grid = Grid("all settings", places, places, z, x_names=methods, y_names=methods, text=text)
    axes = Axis("method"), Axis("method"), Axis("share won − lost")
    yield Grids("wins", "Which method wins", caption, *axes, [grid], -1.0, 1.0)


def rivalries(runs: Sequence[StoredRun], settings: Sequence[RunSettings]) -> list[dict[str, Any]]:
    """Return what the page needs of each run to count the wins of selected runs.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
    """
    groups = comparable_groups(range(len(runs)), lambda n, m: are_comparable(settings[n], settings[m]))
    numbers = {n: number for number, group in enumerate(groups) for n in group}
    return [
        {
            "method": label,
            "group": numbers[n],
            "values": {seed: v if math.isfinite(v) else None for seed, v in _last_accuracies(run).items()},
            "diverged": bool(run.result and run.result.diverged),
            "sign": 1 if run.main_metric.higher_is_better else -1,
        }
        for n, (run, label) in enumerate(zip(runs, method_labels(runs), strict=True))
    ]


def _last_accuracies(run: StoredRun) -> dict[int, float]:
    result: Result | None = run.result
    return dict(zip(result.seeds, result.last10_per_seed, strict=False)) if result else {}


def _balance(record: PairRecord | None) -> float | None:
    return (record.won - record.lost) / sum(record) if record and sum(record) else None


def _record(
    runs: Sequence[StoredRun], settings: Sequence[RunSettings], labels: Sequence[str], one: str, other: str
) -> PairRecord:
    """Compare two methods in every setting that both have."""
    outcomes = [
        _outcome(runs[n], runs[m])
        for n in range(len(runs))
        for m in range(len(runs))
        if labels[n] == one and labels[m] == other and are_comparable(settings[n], settings[m])
    ]
    return PairRecord(outcomes.count(1), outcomes.count(0), outcomes.count(-1))


def _outcome(run: StoredRun, other: StoredRun) -> int | None:
    """Return 1 if `run` is significantly better, -1 if it is worse, 0 if neither, None if nobody can tell."""
    a, b = _last_accuracies(run), _last_accuracies(other)
    if len(a) < 2 or len(b) < 2 or not run.result or not other.result:
        return None
    if run.result.diverged or other.result.diverged:
        return int(other.result.diverged) - int(run.result.diverged)
    score = run.result.main_metric.score
    difference = score(fmean(a.values())) - score(fmean(b.values()))
    return 0 if difference_p_value(a, b) >= LEVEL else 1 if difference > 0 else -1


def barrier_matrix(runs: Sequence[StoredRun], documents: Sequence[AnalysisDocuments]) -> Iterator[Grids]:
    """Yield the matrix of loss barriers between all pairs of models that `fedflat analyse --what barriers` measured.

    Args:
        runs: the runs that are shown together.
        documents: their analyses.
    """
    places = {folder_name(run): n for n, run in enumerate(runs)}
    found: dict[tuple[int, int], list[float]] = {}
    for n, of_run in enumerate(documents):
        for seed in of_run.get("barriers", {}).get("seeds", {}).values():
            for to, height in zip(seed["to"], seed["barrier"], strict=True):
                if to in places and height is not None:
                    found.setdefault((n, places[to]), []).append(height)
                    found.setdefault((places[to], n), []).append(height)
    members = sorted({n for pair in found for n in pair})
    if not members:
        return
    z: list[list[Any]] = [[fmean(found[a, b]) if (a, b) in found else None for b in members] for a in members]
    text = [["" if value is None else f"{value:.3g}" for value in row] for row in z]
    names, axis = [runs[n].name for n in members], [*map(float, range(len(members)))]
    grid = Grid("mean over seeds", axis, axis, z, x_names=names, y_names=names, text=text, members=members)
    caption = (
        "How far the loss rises on the straight line between two models of the same seed. Near 0 the two lie in one "
        "basin."
    )
    highest = max(value for row in z for value in row if value is not None)
    axes = Axis("to"), Axis("from"), Axis("barrier")
    yield Grids("barriers", "Barriers between all models", caption, *axes, [grid], 0.0, max(highest, 1e-9))
