"""Charts as plain values, independent of how they are drawn.

The page draws them with plotly (assets/*.js), matplotlib_*.py draw them with matplotlib for papers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fedflat.runs.result import mean_std

# Seven colours that colour-blind readers can tell apart, with a contrast of at least 3 : 1 to the page's background.
COLOURS = ("#0077bb", "#c85200", "#00806f", "#d4246c", "#7a4fb5", "#8c6d00", "#6b7280")  # on white
DARK_COLOURS = ("#4db2f0", "#ff9350", "#33c9b5", "#ff7fab", "#bb9af0", "#e0bd4a", "#a3abb5")  # in the dark theme

DASHES = (  # lengths of strokes and gaps in turn, as multiples of the line's width; () is a solid line
    (),
    (3.7, 1.6),
    (1, 1.7),
    (6.4, 1.6, 1, 1.6),
    (9, 2),
    (6, 1.6, 1, 1.6, 1, 1.6),
    (1, 4),
    (9, 2, 3, 2),
)


class Symbol(NamedTuple):
    """A marker: its name in plotly, its name in matplotlib, and the character that stands for it in a legend."""

    plotly: str
    matplotlib: str
    text: str


SYMBOLS = (
    Symbol("circle", "o", "●"),
    Symbol("square", "s", "■"),
    Symbol("diamond", "D", "◆"),
    Symbol("triangle-up", "^", "▲"),
    Symbol("cross", "P", "✚"),
    Symbol("x", "X", "✖"),
    Symbol("star", "*", "★"),
    Symbol("triangle-down", "v", "▼"),
)


@dataclass(frozen=True)
class Axis:
    """The label of an axis, the format of its numbers, and whether it is logarithmic."""

    label: str
    form: Literal["number", "percent", "bytes", "round"] = "number"
    log: bool = False


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart, or the points of a scatter plot.

    Args:
        name: the text in the legend.
        run: number of the run in the report, which gives the colour: an index into COLOURS modulo their number.
        x: where the points are, in ascending order for a line.
        y: one value for each x; None leaves a gap.
        low: lower edge of the band around the line, one value for each x; empty for no band.
        high: upper edge of the band.
        dash: index into DASHES, or into SYMBOLS for markers, modulo their number.
        marks: draw markers instead of a line.
        seeds: the values of each seed, one for each x; None where a seed has none.
        lost: round and value at which a seed's loss stopped being finite; the value is None if it was never finite.
    """

    name: str
    run: int
    x: list[float]
    y: list[float | None]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    dash: int = 0
    marks: bool = False
    seeds: dict[str, list[float | None]] = field(default_factory=dict)
    lost: tuple[float, float | None] | None = None


@dataclass(frozen=True)
class Curves:
    """A chart of lines over common axes.

    Args:
        key: name of the chart's HTML element and of its files.
        title: the heading.
        caption: what the chart shows and how to read it.
        x: the horizontal axis.
        y: the vertical axis.
        lines: at least one.
        smooth: the page offers a slider for a moving average.
        diagonal: draw the line y = x.
        correlated: the caption ends with the rank correlation of the points, which the page computes of selected runs.
        frontier: which values are better, if the line of no run is the Pareto frontier of the others' points.
    """

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    lines: list[ChartLine]
    smooth: bool = False
    diagonal: bool = False
    correlated: bool = False
    frontier: Literal["", "highest", "lowest"] = ""


@dataclass(frozen=True)
class Trajectory:
    """Where a run's server and its clients went, in the coordinates of a panel.

    Args:
        name: the run's name.
        run: the run's number.
        rounds: the recorded rounds in ascending order; the first is 0, before training.
        server: (x, y) of the server's model after each of them.
        starts: (x, y) of the server's model before each of them.
        clients: (x, y) of every client's model at the end of each of them; nobody trains in round 0.
        losses: the loss of the server's model after each of them, which lies outside the plane.
    """

    name: str
    run: int
    rounds: list[int]
    server: list[tuple[float, float]]
    starts: list[tuple[float, float]]
    clients: list[list[tuple[float, float]]]
    losses: list[float | None]


@dataclass(frozen=True)
class Grid:
    """One panel of a heat map or landscape: the value z[i][j] at (x[j], y[i]); None is left empty.

    Args:
        name: the panel's title.
        x: where the columns are.
        y: where the rows are.
        z: the values, row by row.
        run: the number of the run it belongs to, None if it belongs to none or several.
        x_names: names of the columns instead of numbers.
        y_names: names of the rows.
        text: what the cells say, row by row; empty for nothing.
        x_label: the label of the horizontal axis, where it is not that of the other panels.
        y_label: the label of the vertical axis, likewise.
        trajectories: the paths of trainings on a loss landscape; its `run` is None if there are several.
        members: the number of the run of each row and column, of a matrix of runs.
    """

    name: str
    x: list[float]
    y: list[float]
    z: list[list[float | None]]
    run: int | None = None
    x_names: list[str] = field(default_factory=list)
    y_names: list[str] = field(default_factory=list)
    text: list[list[str]] = field(default_factory=list)
    x_label: str = ""
    y_label: str = ""
    trajectories: list[Trajectory] = field(default_factory=list)
    members: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Grids:
    """A chart of panels side by side, with one scale for the values of all.

    Args:
        key: name of the chart's HTML element and of its files.
        title: the heading.
        caption: what the chart shows and how to read it.
        x: the horizontal axis of every panel.
        y: the vertical axis of every panel.
        z: what the colour stands for.
        grids: the panels, at least one.
        low: the value at the lower end of the scale.
        high: the value at its upper end.
        relief: draw surfaces and contours (loss landscapes) instead of heat maps.
    """

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    z: Axis
    grids: list[Grid]
    low: float
    high: float
    relief: bool = False

    @property
    def rounds(self) -> list[int]:
        """Return the rounds that the trajectories of any panel have recorded."""
        return sorted({round for grid in self.grids for path in grid.trajectories for round in path.rounds})


Chart = Curves | Grids


def dash_index(run: int, variant: int = 0) -> int:
    """Return the `dash` of a run's line. Up to 28 runs no two lines of a chart share colour and dashes.

    Colours repeat after seven runs and dashes after eight.

    Args:
        run: number of the run.
        variant: 0 or 1, the number of the line among those that the chart has for each run.
    """
    return run + len(DASHES) // 2 * variant


def thin_line(line: ChartLine, limit: int) -> ChartLine:
    """Return the line with about `limit` points: the lowest and the highest of each stretch, the first and the last.

    Args:
        line: the line; it is returned as it is if it has no more points.
        limit: how many points a screen can show.
    """
    count = len(line.x)
    if count <= limit:
        return line
    length, heights = 2 * count // limit, [math.inf if y is None else y for y in line.y]
    ends = set()
    for start in range(0, count, length):
        known = [n for n in range(start, min(start + length, count)) if heights[n] < math.inf]
        ends |= {min(known, key=heights.__getitem__), max(known, key=heights.__getitem__)} if known else set()
    kept = sorted({0, count - 1, *ends})
    picked: dict[str, Any] = {key: [values[n] for n in kept] if values else [] for key, values in _arrays(line).items()}
    return replace(line, **picked, seeds={seed: [ys[n] for n in kept] for seed, ys in line.seeds.items()})


def _arrays(line: ChartLine) -> dict[str, list[Any]]:
    return {"x": line.x, "y": line.y, "low": line.low, "high": line.high}


def mean_line(
    name: str,
    run: int,
    points: Iterable[tuple[float, float]],
    variant: int = 0,
    marks: bool = False,
) -> ChartLine:
    """Return the mean y at each x, with a band of ± one standard deviation if an x has several values.

    Args:
        name: the text in the legend.
        run: number of the run, which gives the colour.
        points: (x, y) of all seeds, in any order.
        variant: number of the line among the run's lines in this chart; see dash_index.
        marks: draw markers instead of a line.
    """
    values: dict[float, list[float]] = {}
    for x, y in points:
        values.setdefault(x, []).append(y)
    xs = sorted(values)
    has_band = any(len(ys) > 1 for ys in values.values())
    means_stds = _means_and_stds([values[x] for x in xs])
    low, high = ([mean + sign * std for mean, std in means_stds] if has_band else [] for sign in (-1, 1))
    means: list[float | None] = [mean for mean, _ in means_stds]
    return ChartLine(name, run, xs, means, low, high, dash_index(run, variant), marks)


def _means_and_stds(groups: list[list[float]]) -> list[tuple[float, float]]:
    """Return mean_std of every group; at once if all groups have the same size, as thousands of evaluations have."""
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or sizes == {1}:
        return [mean_std(group) for group in groups]
    array = np.array(groups, dtype=float)
    return [*zip(array.mean(1).tolist(), array.std(1, ddof=1).tolist(), strict=True)]
