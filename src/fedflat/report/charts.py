"""Charts as plain values, independent of how they are drawn.

The page draws them with plotly (assets/*.js), matplotlib_figures.py draws them with matplotlib for papers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedflat.runs.result import mean_std

# Seven colours that colour-blind readers can tell apart.
COLOURS = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#33bbee", "#cc3311", "#999999")

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
    form: Literal["number", "percent", "bytes"] = "number"
    log: bool = False


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart, or the points of a scatter plot.

    Args:
        name: the text in the legend.
        colour: index into COLOURS, taken modulo their number.
        x: where the points are, in ascending order for a line.
        y: one value for each x; None leaves a gap.
        low: lower edge of the band around the line, one value for each x; empty for no band.
        high: upper edge of the band.
        dash: index into DASHES, or into SYMBOLS for markers, modulo their number.
        marks: draw markers instead of a line.
    """

    name: str
    colour: int
    x: list[float]
    y: list[float | None]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    dash: int = 0
    marks: bool = False


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
    """

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    lines: list[ChartLine]
    smooth: bool = False
    diagonal: bool = False


@dataclass(frozen=True)
class Grid:
    """One panel of a heat map or landscape: the value z[i][j] at (x[j], y[i]); None is left empty."""

    name: str
    x: list[float]
    y: list[float]
    z: list[list[float | None]]


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


Chart = Curves | Grids


def dash_index(run: int, variant: int = 0, variants: int = 1) -> int:
    """Return the `dash` of a run's line such that no two lines of one colour get the same.

    Args:
        run: number of the run; runs share a colour when their numbers are equal modulo len(COLOURS).
        variant: number of the line among those that the chart has for each run.
        variants: how many lines the chart has for each run.
    """
    return run // len(COLOURS) * variants + variant


def mean_line(
    name: str,
    run: int,
    points: Iterable[tuple[float, float]],
    variant: int = 0,
    variants: int = 1,
    marks: bool = False,
) -> ChartLine:
    """Return the mean y at each x, with a band of ± one standard deviation if an x has several values.

    Args:
        name: the text in the legend.
        run: number of the run, which gives the colour.
        points: (x, y) of all seeds, in any order.
        variant: number of the line among the run's lines in this chart; see dash_index.
        variants: how many lines the chart has for each run.
        marks: draw markers instead of a line.
    """
    values: dict[float, list[float]] = {}
    for x, y in points:
        values.setdefault(x, []).append(y)
    xs = sorted(values)
    means_stds = [mean_std(values[x]) for x in xs]
    has_band = any(len(ys) > 1 for ys in values.values())
    low, high = ([mean + sign * std for mean, std in means_stds] if has_band else [] for sign in (-1, 1))
    means: list[float | None] = [mean for mean, _ in means_stds]
    return ChartLine(name, run, xs, means, low, high, dash_index(run, variant, variants), marks)
