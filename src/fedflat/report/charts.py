"""What a figure shows, as plain values: prepared once, drawn by the page (assets/) and for papers (paper.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fedflat.experiments.result import mean_std

COLOURS = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#33bbee", "#cc3311", "#999999")  # apart for the colour-blind


@dataclass(frozen=True)
class Axis:
    """What an axis measures, and how its numbers are written."""

    label: str
    form: Literal["number", "percent", "bytes"] = "number"
    log: bool = False


@dataclass(frozen=True)
class Line:
    """Points of one name, joined unless `marks`, None a gap; `low` and `high` bound its band, empty without one."""

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
    lines: list[Line]
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


def band(name: str, colour: int, points: Iterable[tuple[float, float]], dash: int = 0, marks: bool = False) -> Line:
    """The mean of the values at each x, in a band of one standard deviation where there are several."""
    values: dict[float, list[float]] = {}
    for x, y in points:
        values.setdefault(x, []).append(y)
    xs = sorted(values)
    spread = [mean_std(values[x]) for x in xs]
    several = any(len(found) > 1 for found in values.values())
    low, high = ([mean + sign * std for mean, std in spread] if several else [] for sign in (-1, 1))
    return Line(name, colour, xs, [mean for mean, _ in spread], low, high, dash, marks)
