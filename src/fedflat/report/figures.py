"""Figures as plotly descriptions (plain dicts; the page draws them)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fedflat.report.runs import Run

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")


def colour(number: int) -> str:
    """The colour of the number-th method, the same in every figure."""
    return COLOURS[number % len(COLOURS)]


def learning_curves(runs: Sequence[Run], key: str, title: str) -> dict[str, Any]:
    """Mean over seeds of `key` against the round, with a band of one standard deviation."""
    drawn = [_curve(run, key, colour(number)) for number, run in enumerate(runs)]
    traces = [band for band, _ in drawn] + [line for _, line in drawn]  # no line disappears behind a band
    axes: dict[str, dict[str, Any]] = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": title}}}
    if key == "accuracy":
        axes["yaxis"] |= {"tickformat": ".0%", "hoverformat": ".2%"}
    return {"data": traces, "layout": axes}


def _curve(run: Run, key: str, colour: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run's band and line."""
    rounds, means, stds = seed_band(run, key)
    edges = [m + s for m, s in zip(means, stds, strict=True)] + [m - s for m, s in zip(means, stds, strict=True)][::-1]
    band = {
        "x": rounds + rounds[::-1],
        "y": [min(edge, 1.0) for edge in edges] if key == "accuracy" else edges,
        "fill": "toself",
        "fillcolor": colour + "30",
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": run.name,
    }
    line = {"x": rounds, "y": means, "name": run.name, "mode": "lines", "line": {"color": colour, "width": 2}}
    return band, line | {"legendgroup": run.name}


def seed_band(run: Run, key: str) -> tuple[list[int], list[float], list[float]]:
    """Rounds, and mean and standard deviation of `key` over the seeds that have it there."""
    values: dict[int, list[float]] = {}
    for row in run.rows:
        if row.get(key) is not None:
            values.setdefault(row["round"], []).append(row[key])
    rounds = sorted(values)
    means = [statistics.fmean(values[r]) for r in rounds]
    return rounds, means, [statistics.stdev(values[r]) if len(values[r]) > 1 else 0.0 for r in rounds]
