"""Draw the page's charts with matplotlib for a paper: PDF and PNG, one column wide, with embedded TrueType fonts."""

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

WIDTH = 3.3  # inches, one column of a paper
STYLE: Any = {  # matplotlib's rcParams; font sizes in points
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,  # TrueType, so that text can be searched
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_figures(charts: Sequence[Chart], folder: Path) -> None:
    """Write KEY.pdf and KEY.png of every chart, and of loss landscapes also KEY-3d.pdf and KEY-3d.png.

    Args:
        charts: what to draw; `key` names the files.
        folder: created if it does not exist.
    """
    for chart in charts:
        with matplotlib.rc_context(STYLE):
            figures = {chart.key: _curves(chart) if isinstance(chart, Curves) else _grids(chart)}
            if isinstance(chart, Grids) and chart.relief:
                figures[f"{chart.key}-3d"] = _surfaces(chart)
            for name, figure in figures.items():
                _save(figure, folder, name)


def _save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as PDF and PNG, each under a temporary name first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("pdf", "png"):
            temporary = folder / f".{name}.{kind}"
            figure.savefig(temporary, format=kind, dpi=300)
            os.replace(temporary, folder / f"{name}.{kind}")
    except OSError as error:
        raise UserError("figures", folder, f"cannot be written ({error.strerror or error})") from None


def _curves(chart: Curves) -> Figure:
    columns = 2 if max(len(line.name) for line in chart.lines) <= 24 else 1
    figure = Figure(figsize=(WIDTH, 2.2 + 0.16 * math.ceil(len(chart.lines) / columns)), layout="constrained")
    axes = figure.add_subplot()
    for line in chart.lines:
        y = np.array(line.y, dtype=float)  # None becomes NaN
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=_colour(line), alpha=0.17, linewidth=0)
        axes.plot(line.x, y, color=_colour(line), label=_escape(line.name), **_line_style(line))
    if chart.diagonal:
        axes.axline((1, 1), (10, 10), color="grey", linewidth=0.6, linestyle=":")
    _set_axes(axes, chart.x, chart.y)
    axes.grid(linewidth=0.3, alpha=0.6)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=1.8)
    return figure


def _colour(line: ChartLine) -> str:
    return COLOURS[line.colour % len(COLOURS)]


def _line_style(line: ChartLine) -> dict[str, Any]:
    """Return the dashes of a line, or the markers of its points, as arguments of Axes.plot."""
    if line.marks:
        symbol = SYMBOLS[line.dash % len(SYMBOLS)].matplotlib
        return {"marker": symbol, "linestyle": "none", "markersize": 3.5, "alpha": 0.8}
    return {"linestyle": (0, DASHES[line.dash % len(DASHES)] or None)}


def _escape(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read a formula."""
    return text.replace("$", r"\$")


def _set_axes(axes: Axes, x: Axis, y: Axis) -> None:
    """Set labels, scales and number formats."""
    axes.set(
        xlabel=_escape(x.label),
        ylabel=_escape(y.label),
        xscale="log" if x.log else "linear",
        yscale="log" if y.log else "linear",
    )
    for axis, matplotlib_axis in ((x, axes.xaxis), (y, axes.yaxis)):
        if axis.form != "number":
            matplotlib_axis.set_major_formatter(_formatter(axis))


def _formatter(axis: Axis) -> Any:
    return PercentFormatter(1.0) if axis.form == "percent" else EngFormatter("B", sep="")


def _rows_and_columns(chart: Grids) -> tuple[int, int]:
    """Return how the panels are arranged: at most two in a row."""
    columns = min(len(chart.grids), 2)
    return math.ceil(len(chart.grids) / columns), columns


def _grids(chart: Grids) -> Figure:
    """Draw contours of loss landscapes and heat maps of everything else, with one colour scale for all panels."""
    rows, columns = _rows_and_columns(chart)
    figure = Figure(figsize=(WIDTH, 0.3 + (1.75 if columns > 1 else 2.2) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    draw = _contours if chart.relief else _heat_map
    images = [draw(axes, grid, chart) for axes, grid in _panels_with_grids(panels, chart)]
    figure.supxlabel(chart.x.label, fontsize=8)
    figure.supylabel(_escape(chart.y.label), fontsize=8)
    form = {} if chart.z.form == "number" else {"format": _formatter(chart.z)}
    bar = figure.colorbar(images[0], ax=panels, label=_escape(chart.z.label), location="top", aspect=40, **form)
    bar.locator = MaxNLocator(4)
    bar.update_ticks()
    return figure


def _panels_with_grids(panels: Any, chart: Grids) -> list[tuple[Any, Grid]]:
    """Return each panel with its grid and set the titles; an unused panel is hidden, the one above it shows ticks."""
    for number in range(len(chart.grids), panels.size):
        panels.flat[number].set_axis_off()
        panels.flat[number - panels.shape[1]].tick_params(labelbottom=True)
    pairs = list(zip(panels.flat, chart.grids, strict=False))
    for axes, grid in pairs if len(pairs) > 1 else []:
        axes.set_title(textwrap.fill(_escape(grid.name), 24), fontsize=8)
    return pairs


def _values(grid: Grid) -> np.ndarray:
    return np.array(grid.z, dtype=float)


def _heat_map(axes: Axes, grid: Grid, chart: Grids) -> Any:
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    x, y = _edges(grid.x), _edges(grid.y)
    return axes.pcolormesh(x, y, _values(grid), cmap="Blues", vmin=chart.low, vmax=chart.high)


def _edges(centres: Sequence[float]) -> np.ndarray:
    """Return the edges of the cells around these centres, half way between neighbours; a single cell is 1 wide."""
    x = np.array(centres, dtype=float)
    steps = np.diff(x) if len(x) > 1 else np.ones(1)
    return np.array([x[0] - steps[0] / 2, *(x[1:] - np.diff(x) / 2), x[-1] + steps[-1] / 2])


def _contours(axes: Axes, grid: Grid, chart: Grids) -> Any:
    """Draw 16 levels, a cross at the model and a circle at the lowest point."""
    levels = [chart.low + n * (chart.high - chart.low) / 16 for n in range(17)]
    filled = axes.contourf(grid.x, grid.y, _values(grid), levels=levels, cmap="viridis", extend="max")
    axes.contour(grid.x, grid.y, _values(grid), levels=levels, colors="white", linewidths=0.3, alpha=0.6)
    row, column = np.unravel_index(np.nanargmin(_values(grid)), (len(grid.y), len(grid.x)))
    style: Any = {"color": "white", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.9}
    axes.plot(0, 0, "x", grid.x[column], grid.y[row], "o", **style)
    axes.set_aspect("equal")
    return filled


def _surfaces(chart: Grids) -> Figure:
    """Draw loss landscapes as surfaces, cut off at the upper end of the scale."""
    rows, columns = _rows_and_columns(chart)
    figure = Figure(figsize=(WIDTH, 1.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "3d"})
    for axes, grid in _panels_with_grids(panels, chart):
        x, y = np.meshgrid(grid.x, grid.y)
        z = np.minimum(_values(grid), chart.high)
        axes.plot_surface(x, y, z, cmap="viridis", vmin=chart.low, vmax=chart.high, linewidth=0)
        axes.set_zlim(chart.low, chart.high)
        for values, set_ticks, side in ((grid.x, axes.set_xticks, "left"), (grid.y, axes.set_yticks, "right")):
            ticks = [values[0], (values[0] + values[-1]) / 2, values[-1]]
            set_ticks(ticks, [f"{tick:g}" for tick in ticks], horizontalalignment=side)
        axes.view_init(elev=38, azim=35)
        axes.tick_params(pad=-4)
    return figure
