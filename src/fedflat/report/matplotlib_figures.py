"""The page's figures for a paper: PDF and PNG, one column wide, in type that can be read and searched."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from fedflat.errors import UserError
from fedflat.report.charts import COLOURS, DASHES, SYMBOLS, Axis, Chart, ChartLine, Curves, Grid, Grids

WIDTH = 3.3  # inches


STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_figures(charts: Sequence[Chart], folder: Path) -> None:
    """Write KEY.pdf and KEY.png of every chart; landscapes also as KEY-3d."""
    for chart in charts:
        with matplotlib.rc_context(STYLE):
            figures = {chart.key: _curves(chart) if isinstance(chart, Curves) else _grids(chart)}
            if isinstance(chart, Grids) and chart.relief:
                figures[f"{chart.key}-3d"] = _surfaces(chart)
            for name, figure in figures.items():
                _save(figure, folder, name)


def _save(figure: Figure, folder: Path, name: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("pdf", "png"):
            temporary = folder / f".{name}.{kind}"
            figure.savefig(temporary, format=kind, dpi=300)
            os.replace(temporary, folder / f"{name}.{kind}")
    except OSError as error:
        raise UserError(f"--figures {folder}: cannot be written ({error.strerror or error})") from None


def _curves(chart: Curves) -> Figure:
    columns = 2 if max(len(line.name) for line in chart.lines) <= 24 else 1
    figure = Figure(figsize=(WIDTH, 2.2 + 0.16 * math.ceil(len(chart.lines) / columns)), layout="constrained")
    axes = figure.add_subplot()
    for line in chart.lines:
        y = np.array(line.y, dtype=float)  # None is not a number
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=_colour(line), alpha=0.17, linewidth=0)
        axes.plot(line.x, y, color=_colour(line), label=_without_math(line.name), **_style(line))
    if chart.diagonal:
        axes.axline((1, 1), (10, 10), color="grey", linewidth=0.6, linestyle=":")
    _label(axes, chart.x, chart.y)
    axes.grid(linewidth=0.3, alpha=0.6)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=1.8)
    return figure


def _colour(line: ChartLine) -> str:
    return COLOURS[line.colour % len(COLOURS)]


def _style(line: ChartLine) -> dict[str, Any]:
    """The dashes of a line, or the symbols of its points."""
    if line.marks:
        symbol = SYMBOLS[line.dash % len(SYMBOLS)].matplotlib
        return {"marker": symbol, "linestyle": "none", "markersize": 3.5, "alpha": 0.8}
    return {"linestyle": (0, DASHES[line.dash % len(DASHES)] or None)}


def _without_math(name: str) -> str:
    """A name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")


def _label(axes: Axes, x: Axis, y: Axis) -> None:
    axes.set(
        xlabel=_without_math(x.label),
        ylabel=_without_math(y.label),
        xscale="log" if x.log else "linear",
        yscale="log" if y.log else "linear",
    )
    for axis, drawn in ((x, axes.xaxis), (y, axes.yaxis)):
        if axis.form != "number":
            drawn.set_major_formatter(_formatter(axis))


def _formatter(axis: Axis) -> Any:
    return PercentFormatter(1.0) if axis.form == "percent" else EngFormatter("B", sep="")


def _places(chart: Grids) -> tuple[int, int]:
    """Rows and columns of the panels."""
    columns = min(len(chart.grids), 2)
    return math.ceil(len(chart.grids) / columns), columns


def _grids(chart: Grids) -> Figure:
    """Contours of landscapes, heat maps of everything else, with one scale for all."""
    rows, columns = _places(chart)
    figure = Figure(figsize=(WIDTH, 0.3 + (1.75 if columns > 1 else 2.2) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    drawn = [(_contours if chart.relief else _heat)(axes, grid, chart) for axes, grid in _pairs(panels, chart)]
    figure.supxlabel(chart.x.label, fontsize=8)
    figure.supylabel(_without_math(chart.y.label), fontsize=8)
    shown = {} if chart.z.form == "number" else {"format": _formatter(chart.z)}
    bar = figure.colorbar(drawn[0], ax=panels, label=_without_math(chart.z.label), location="top", aspect=40, **shown)
    bar.locator = MaxNLocator(4)
    bar.update_ticks()
    return figure


def _pairs(panels: Any, chart: Grids) -> list[tuple[Any, Grid]]:
    """Panels with their grids; a panel to spare is hidden, and the one above it shows the ticks."""
    for number in range(len(chart.grids), panels.size):
        panels.flat[number].set_axis_off()
        panels.flat[number - panels.shape[1]].tick_params(labelbottom=True)
    named = list(zip(panels.flat, chart.grids, strict=False))
    for axes, grid in named if len(named) > 1 else []:
        axes.set_title(textwrap.fill(_without_math(grid.name), 24), fontsize=8)
    return named


def _values(grid: Grid) -> np.ndarray:
    return np.array(grid.z, dtype=float)


def _heat(axes: Axes, grid: Grid, chart: Grids) -> Any:
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    x, y = _edges(grid.x), _edges(grid.y)
    return axes.pcolormesh(x, y, _values(grid), cmap="Blues", vmin=chart.low, vmax=chart.high)


def _edges(centres: Sequence[float]) -> np.ndarray:
    """Where the cells around these centres meet, which is half way; a cell without a neighbour is one wide."""
    places = np.array(centres, dtype=float)
    steps = np.diff(places) if len(places) > 1 else np.ones(1)
    return np.array([places[0] - steps[0] / 2, *(places[1:] - np.diff(places) / 2), places[-1] + steps[-1] / 2])


def _contours(axes: Axes, grid: Grid, chart: Grids) -> Any:
    levels = [chart.low + n * (chart.high - chart.low) / 16 for n in range(17)]
    drawn = axes.contourf(grid.x, grid.y, _values(grid), levels=levels, cmap="viridis", extend="max")
    axes.contour(grid.x, grid.y, _values(grid), levels=levels, colors="white", linewidths=0.3, alpha=0.6)
    row, column = np.unravel_index(np.nanargmin(_values(grid)), (len(grid.y), len(grid.x)))
    look: Any = {"color": "white", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.9}
    axes.plot(0, 0, "x", grid.x[column], grid.y[row], "o", **look)
    axes.set_aspect("equal")
    return drawn


def _ends(places: Sequence[float]) -> list[float]:
    """The ends of an axis and its middle."""
    return [places[0], (places[0] + places[-1]) / 2, places[-1]]


def _surfaces(chart: Grids) -> Figure:
    rows, columns = _places(chart)
    figure = Figure(figsize=(WIDTH, 1.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "3d"})
    for axes, grid in _pairs(panels, chart):
        x, y = np.meshgrid(grid.x, grid.y)
        z = np.minimum(_values(grid), chart.high)
        axes.plot_surface(x, y, z, cmap="viridis", vmin=chart.low, vmax=chart.high, linewidth=0)
        axes.set_zlim(chart.low, chart.high)
        for places, set_ticks, side in ((grid.x, axes.set_xticks, "left"), (grid.y, axes.set_yticks, "right")):
            set_ticks(ends := _ends(places), [f"{end:g}" for end in ends], horizontalalignment=side)
        axes.view_init(elev=38, azim=35)
        axes.tick_params(pad=-4)
    return figure
