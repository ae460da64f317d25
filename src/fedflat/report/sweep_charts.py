"""A sweep for papers: the metric against the settings in which runs differ, and these settings as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedflat.core.metric import common_metric
from fedflat.errors import UserError
from fedflat.report.charts import Axis, Chart, ChartLine, Curves, Grid, Grids, mean_line
from fedflat.report.comparison import RunSettings, method_settings, plain_number, setting_name, setting_text
from fedflat.report.run_labels import natural_key
from fedflat.report.training_charts import metric_axis
from fedflat.runs.folder import write_atomically
from fedflat.runs.read import StoredRun

NOT_SWEPT = ("seeds", "engine", "device", "precision", "threads")
MOST_LINES = 12  # of a chart; a paper has no room for more names


def differing_values(runs: Sequence[StoredRun], settings: Sequence[RunSettings]) -> dict[str, list[Any]]:
    """Return each setting and hyper-parameter in which runs differ, with its value in every run; None if it has none.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
    """
    found = [method_settings(run) | of_run for run, of_run in zip(runs, settings, strict=True)]
    values = {
        key: [of_run.get(key) for of_run in found] for key in dict.fromkeys(key for each in found for key in each)
    }
    return {key: of_key for key, of_key in values.items() if len({*map(str, of_key)}) > 1}


def sweep_charts(runs: Sequence[StoredRun], settings: Sequence[RunSettings]) -> Iterator[Chart]:
    """Yield the metric of finished runs against each number in which they differ, and over the first two settings.

    Points and cells are means over seeds, and over runs that differ in further settings. Diverged runs are left out.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
    """
    kept = [n for n, run in enumerate(runs) if run.result and not run.result.diverged]
    swept, metric = [runs[n] for n in kept], common_metric(run.main_metric for run in runs)
    if not swept or any(run.main_metric != metric for run in swept):
        return
    differing = differing_values(swept, [settings[n] for n in kept])
    values = {key: of_key for key, of_key in differing.items() if _is_swept(key, of_key, swept)}
    values |= {"method": differing["method"]} if values and "method" in differing else {}
    names = sorted(values, key=lambda key: not _is_numeric(values[key]))
    axis = metric_axis(swept, metric)
    axis = Axis(f"{axis.label}, last 10 %", axis.form)
    scores = [run.result.last10_per_seed for run in swept if run.result]
    for name in names:
        if _is_numeric(values[name]):
            yield _against(name, next((other for other in names if other != name), None), values, scores, axis)
    if len(names) > 1:
        yield _heat_map(names[0], names[1], values, scores, axis)


def _is_swept(key: str, values: Sequence[Any], runs: Sequence[StoredRun]) -> bool:
    """Return whether runs of one method differ in a setting: other methods have other hyper-parameters anyway."""
    pairs = {(method_settings(run)["method"], str(value)) for run, value in zip(runs, values, strict=True)}
    return key not in NOT_SWEPT and len(pairs) > len({method for method, _ in pairs})


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values if value is not None)


def _against(
    name: str, other: str | None, values: dict[str, list[Any]], scores: Sequence[Sequence[float]], y: Axis
) -> Curves:
    """Return the metric against a setting, with a line for each value of another one."""
    groups = _distinct(values[other]) if other else [None]
    other_values = values[other] if other and len(groups) <= MOST_LINES else [None] * len(scores)
    lines: list[ChartLine] = []
    for number, group in enumerate(_distinct(other_values)):
        points = [
            (float(x), score)
            for x, value, of_run in zip(values[name], other_values, scores, strict=True)
            for score in of_run
            if x is not None and value == group
        ]
        label = "all runs" if group is None else f"{setting_name(str(other))} = {_text(group)}"
        marks = len({x for x, _ in points}) == 1
        if points:
            lines.append(mean_line(label, number, points, marks=marks))
    xs = [x for line in lines for x in line.x]
    x_axis = Axis(setting_name(name), log=min(xs) > 0 and max(xs) > 20 * min(xs))
    return Curves(_key(name), f"Sweep over {setting_name(name)}", "", x_axis, y, lines)


def _heat_map(
    first: str, second: str, values: dict[str, list[Any]], scores: Sequence[Sequence[float]], axis: Axis
) -> Grids:
    """Return the mean metric of each pair of values of two settings."""
    xs, ys = _distinct(values[first]), _distinct(values[second])
    cells: dict[tuple[str, str], list[float]] = {}
    for x, y, of_run in zip(values[first], values[second], scores, strict=True):
        cells.setdefault((str(x), str(y)), []).extend(of_run)
    z = [[fmean(cells[str(x), str(y)]) if (str(x), str(y)) in cells else None for x in xs] for y in ys]
    found = [value for row in z for value in row if value is not None]
    text = [["" if value is None else _cell_text(value, axis) for value in row] for row in z]
    columns, rows = ([*map(float, range(len(each)))] for each in (xs, ys))
    grid = Grid("sweep", columns, rows, z, x_names=[*map(_text, xs)], y_names=[*map(_text, ys)], text=text)
    axes = Axis(setting_name(first)), Axis(setting_name(second)), axis
    return Grids("sweep", "Sweep", "", *axes, [grid], min(found), max(max(found), min(found) + 1e-9))


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Return the different values in natural order; numbers in theirs."""
    return sorted({str(value): value for value in values}.values(), key=lambda value: natural_key(_text(value)))


def _text(value: Any) -> str:
    return "–" if value is None else plain_number(value)


def _cell_text(value: float, axis: Axis) -> str:
    return f"{100 * value:.1f}" if axis.form == "percent" else f"{value:.3g}"


def _key(name: str) -> str:
    return "sweep-" + re.sub(r"[^\w-]+", "-", name)


def write_differences(runs: Sequence[StoredRun], settings: Sequence[RunSettings], folder: Path) -> None:
    """Write the settings in which runs differ to differences.csv and differences.tex, one column for each run.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
        folder: created if it does not exist.
    """
    values = differing_values(runs, settings)
    rows = [["setting", *(run.name for run in runs)]]
    rows += [
        [setting_name(key), *(setting_text({key: value}, key) for value in of_key)] for key, of_key in values.items()
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "differences.csv", text.getvalue())
        write_atomically(folder / "differences.tex", latex_table(rows))
    except OSError as error:
        raise UserError("figures", folder, f"cannot be written ({error.strerror or error})") from None


LATEX_CHARACTERS = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\epsilon$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "₁": "$_1$",
}


def latex_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a LaTeX tabular that needs no package.

    Args:
        rows: the texts of the cells; the first row is the head.
    """
    escaped = [["".join(LATEX_CHARACTERS.get(each, each) for each in cell) for cell in row] for row in rows]
    head, *body = (" & ".join(row) + r" \\" for row in escaped)
    columns = "l" + "r" * (len(rows[0]) - 1)
    return "\n".join(
        [f"\\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", ""]
    )
