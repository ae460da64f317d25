"""What a figure shows, as plain values: prepared once, drawn by the page (assets/) and for papers (paper.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedflat.runs.result import mean_std

COLOURS = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#33bbee", "#cc3311", "#999999")  # apart for the colour-blind


DASHES = (  # lengths of strokes and gaps, in widths of the line
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
    """A mark as plotly, matplotlib and a line of text have it."""

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
    """What an axis measures, and how its numbers are written."""

    label: str
    form: Literal["number", "percent", "bytes"] = "number"
    log: bool = False


@dataclass(frozen=True)
class ChartLine:
    """Points of one name, joined unless `marks`, None a gap; `low` and `high` bound its band, empty without one.

    `colour` is a place in COLOURS, `dash` in DASHES or, of marks, in SYMBOLS; both begin again at their ends.
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
    """Lines over a common axis; `smooth` offers a moving average, `diagonal` draws y = x."""

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
    """z[i][j] at (x[j], y[i])."""

    name: str
    x: list[float]
    y: list[float]
    z: list[list[float | None]]


@dataclass(frozen=True)
class Grids:
    """Pictures side by side on one scale from `low` to `high`; `relief` also shows them as surfaces."""

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


def dash(number: int, way: int = 0, ways: int = 1) -> int:
    """Of the way-th of `ways` lines of the number-th run: no two lines of one colour share it."""
    return number // len(COLOURS) * ways + way


def band(
    name: str, number: int, points: Iterable[tuple[float, float]], way: int = 0, ways: int = 1, marks: bool = False
) -> ChartLine:
    """A line of the number-th run: the mean at each x, in a band of one standard deviation where there are several."""
    values: dict[float, list[float]] = {}
    for x, y in points:
        values.setdefault(x, []).append(y)
    xs = sorted(values)
    spread = [mean_std(values[x]) for x in xs]
    several = any(len(found) > 1 for found in values.values())
    low, high = ([mean + sign * std for mean, std in spread] if several else [] for sign in (-1, 1))
    return ChartLine(name, number, xs, [mean for mean, _ in spread], low, high, dash(number, way, ways), marks)
