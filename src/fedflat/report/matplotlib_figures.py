"""Draw the page's charts with matplotlib for a paper: PDF and PNG, one or two columns wide, embedded TrueType fonts."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from fedflat.core.tasks import TASKS
from fedflat.errors import UserError
from fedflat.report.charts import COLOURS, DASHES, SYMBOLS, Axis, Chart, ChartLine, Curves, Grid, Grids


@dataclass(frozen=True)
class FigureStyle:
    """How figures look.

    Args:
        widths: in inches, of a figure in one column and of one across both columns.
        font: matplotlib's rcParams for the type.
        markers: draw markers on lines, for prints without colours.
    """

    widths: tuple[float, float]
    font: Any
    markers: bool = False


SHOWN_ROUNDS = 4  # whose clients a printed trajectory shows
FIGURE_STYLES = {
    "plain": FigureStyle((3.3, 6.9), {"font.size": 8}),
    "cvpr": FigureStyle(  # Times at the size of captions, as in the LaTeX template of CVPR
        (3.25, 6.875),
        {"font.size": 8, "font.family": "serif", "font.serif": ["STIXGeneral"], "mathtext.fontset": "stix"},
        markers=True,
    ),
}
BASE_STYLE: Any = {  # matplotlib's rcParams of all styles
    "pdf.fonttype": 42,  # TrueType, so that text can be searched
    "axes.linewidth": 0.6,
    "axes.unicode_minus": True,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BASE_STYLE |= {f"{part}size": 8 for part in ("axes.label", "xtick.label", "ytick.label", "legend.font")}


def draw_figures(charts: Sequence[Chart], folder: Path, style: str = "plain", columns: int = 1) -> None:
    """Write KEY.pdf and KEY.png of every chart, and of loss landscapes also KEY-3d.pdf and KEY-3d.png.

    Accuracy and loss are also drawn side by side with one legend, across both columns (learning.pdf).

    Args:
        charts: what to draw; `key` names the files.
        folder: created if it does not exist.
        style: a key of FIGURE_STYLES.
        columns: how many columns of a paper a figure spans, 1 or 2.
    """
    look = FIGURE_STYLES[style]
    with matplotlib.rc_context({**BASE_STYLE, **look.font}):
        for chart in charts:
            width = look.widths[columns - 1]
            drawn = _curves([chart], width, look) if isinstance(chart, Curves) else _grids(chart, width)
            _save(drawn, folder, chart.key)
            if isinstance(chart, Grids) and chart.relief and not chart.rounds:
                _save(_surfaces(chart, width), folder, f"{chart.key}-3d")
        names = {"loss", *(task.metric for task in TASKS.values())}
        learning = [chart for chart in charts if isinstance(chart, Curves) and chart.key in names]
        if len(learning) == 2:
            _save(_curves(learning, look.widths[1], look), folder, "learning")


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


def _curves(charts: Sequence[Curves], width: float, look: FigureStyle) -> Figure:
    """Draw charts with the same lines side by side, with one legend below all."""
    names = [line.name for line in charts[0].lines]
    per_row = max(1, int(width / (0.55 + 0.062 * max(map(len, names)))))
    height = 2.1 if width > 5 or len(charts) > 1 else 2.2
    figure = Figure(figsize=(width, height + 0.16 * math.ceil(len(names) / per_row)), layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        _draw_curves(axes, chart, look)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=per_row, frameon=False, handlelength=2.2)
    return figure


def _draw_curves(axes: Axes, chart: Curves, look: FigureStyle) -> None:
    for line in chart.lines:
        y = np.array(line.y, dtype=float)  # None becomes NaN
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=_colour(line), alpha=0.17, linewidth=0)
        axes.plot(line.x, y, color=_colour(line), label=_escape(line.name), **_line_style(line, look))
        if line.lost and line.lost[1] is not None:
            axes.plot(
                line.lost[0],
                line.lost[1],
                marker="X",
                color=_colour(line),
                markersize=6,
                markeredgecolor="white",
                zorder=5,
            )
    if chart.diagonal:
        axes.axline((1, 1), (10, 10), color="grey", linewidth=0.6, linestyle=":")
    _set_axes(axes, chart.x, chart.y)
    axes.grid(linewidth=0.3, alpha=0.6)


def _colour(line: ChartLine) -> str:
    return "black" if line.run < 0 else COLOURS[line.run % len(COLOURS)]


def _line_style(line: ChartLine, look: FigureStyle) -> dict[str, Any]:
    """Return the dashes of a line, or the markers of its points, as arguments of Axes.plot."""
    symbol = SYMBOLS[line.dash % len(SYMBOLS)].matplotlib
    if line.marks:
        return {"marker": symbol, "linestyle": "none", "markersize": 3.5, "alpha": 0.8}
    dashes = {"linestyle": (0, DASHES[line.dash % len(DASHES)] or None)}
    if not look.markers:
        return dashes
    every = max(1, len(line.x) // 7)  # the first marker of each run is elsewhere, so that they do not hide each other
    return {**dashes, "marker": symbol, "markersize": 3.5, "markevery": (line.run % every, every)}


def _escape(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read a formula; write ₁, which few fonts have, as one."""
    return text.replace("$", r"\$").replace("₁", "$_1$")


def _set_axes(axes: Axes, x: Axis, y: Axis) -> None:
    """Set labels, scales and number formats."""
    axes.set(
        xlabel=_escape(x.label),
        ylabel=_escape(y.label),
        xscale="log" if x.log else "linear",
        yscale="log" if y.log else "linear",
    )
    for axis, matplotlib_axis in ((x, axes.xaxis), (y, axes.yaxis)):
        if axis.form in ("percent", "bytes"):
            matplotlib_axis.set_major_formatter(_formatter(axis))


def _formatter(axis: Axis) -> Any:
    return PercentFormatter(1.0) if axis.form == "percent" else EngFormatter("B", sep="")


def _rows_and_columns(chart: Grids, width: float) -> tuple[int, int]:
    """Return how the panels are arranged: at most two in a row of one column, four across two columns."""
    columns = min(len(chart.grids), 4 if width > 5 else 2)
    return math.ceil(len(chart.grids) / columns), columns


def _grids(chart: Grids, width: float) -> Figure:
    """Draw contours of loss landscapes and heat maps of everything else, with one colour scale for all panels."""
    rows, columns = _rows_and_columns(chart, width)
    panel = width / columns
    figure = Figure(figsize=(width, 0.3 + min(1.06 * panel, 2.4) * rows), layout="constrained")
    share = not chart.rounds  # every trajectory has a plane of its own
    panels = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    draw = _trajectory if chart.rounds else _contours if chart.relief else _heat_map
    images = [draw(axes, grid, chart) for axes, grid in _panels_with_grids(panels, chart)]
    if share:
        figure.supxlabel(chart.x.label, fontsize=8)
        figure.supylabel(_escape(chart.y.label), fontsize=8)
    form = {} if chart.z.form == "number" else {"format": _formatter(chart.z)}
    bar = figure.colorbar(images[0], ax=panels, label=_escape(chart.z.label), location="top", aspect=40, **form)
    bar.set_ticks(_scale_ticks(chart))
    return figure


def _scale_ticks(chart: Grids) -> list[float]:
    """Return about four round numbers within the scale; one outside of it would be drawn over the scale's end."""
    ticks = MaxNLocator(4).tick_values(chart.low, chart.high)
    return [tick for tick in ticks if chart.low <= tick <= chart.high]


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
    if grid.x_names:
        x_names, y_names = (
            [textwrap.fill(_escape(name), 16) for name in names] for names in (grid.x_names, grid.y_names)
        )
        axes.set_xticks(grid.x, x_names, rotation=35, ha="right", rotation_mode="anchor", fontsize=6)
        axes.set_yticks(grid.y, y_names, fontsize=6)
    for place, row in zip(grid.y, grid.text, strict=False):
        for column, text in zip(grid.x, row, strict=True):
            axes.text(column, place, text, ha="center", va="center", fontsize=6)
    colours = "RdBu" if chart.low < 0 else "Blues"
    return axes.pcolormesh(x, y, _values(grid), cmap=colours, vmin=chart.low, vmax=chart.high, alpha=0.7)


def _edges(centres: Sequence[float]) -> np.ndarray:
    """Return the edges of the cells around these centres, half way between neighbours; a single cell is 1 wide."""
    x = np.array(centres, dtype=float)
    steps = np.diff(x) if len(x) > 1 else np.ones(1)
    return np.array([x[0] - steps[0] / 2, *(x[1:] - np.diff(x) / 2), x[-1] + steps[-1] / 2])


def _levels(axes: Axes, grid: Grid, chart: Grids) -> Any:
    """Draw 16 levels of a landscape."""
    levels = [chart.low + n * (chart.high - chart.low) / 16 for n in range(17)]
    filled = axes.contourf(grid.x, grid.y, _values(grid), levels=levels, cmap="viridis", extend="max")
    axes.contour(grid.x, grid.y, _values(grid), levels=levels, colors="white", linewidths=0.3, alpha=0.6)
    return filled


def _trajectory(axes: Axes, grid: Grid, chart: Grids) -> Any:
    """Draw the server's path on its landscape, and the clients of a few rounds: thin lines to their last models."""
    assert grid.trajectory
    filled, path, last = _levels(axes, grid, chart), grid.trajectory, len(grid.trajectory.rounds) - 1
    for n in sorted({round(part * last / SHOWN_ROUNDS) for part in range(1, SHOWN_ROUNDS + 1)}):
        for end in path.clients[n]:
            axes.plot(*zip(path.starts[n], end, strict=True), color="white", linewidth=0.4, alpha=0.8)
            axes.plot(*end, "o", color="#ff7a45", markersize=2, markeredgecolor="white", markeredgewidth=0.3)
    x, y = zip(*path.server, strict=True)
    axes.plot(x, y, color="black", linewidth=1.8)
    axes.plot(
        x, y, color="white", linewidth=0.9, marker="o", markersize=2, markeredgecolor="black", markeredgewidth=0.3
    )
    axes.plot(0, 0, "x", color="black", markersize=4, markeredgewidth=0.9)
    axes.set_xlabel(_escape(grid.x_label), fontsize=7)
    axes.set_ylabel(_escape(grid.y_label), fontsize=7)
    return filled


def _contours(axes: Axes, grid: Grid, chart: Grids) -> Any:
    """Draw 16 levels, a cross at the model and a circle at the lowest point."""
    filled = _levels(axes, grid, chart)
    row, column = np.unravel_index(np.nanargmin(_values(grid)), (len(grid.y), len(grid.x)))
    style: Any = {"color": "white", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.9}
    axes.plot(0, 0, "x", grid.x[column], grid.y[row], "o", **style)
    axes.set_aspect("equal")
    return filled


def _surfaces(chart: Grids, width: float) -> Figure:
    """Draw loss landscapes as surfaces, cut off at the upper end of the scale, with one colour bar for all."""
    rows, columns = _rows_and_columns(chart, width)
    figure = Figure(figsize=(width, 0.45 + min(width / columns, 2.2) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "3d"})
    for axes, grid in _panels_with_grids(panels, chart):
        x, y = np.meshgrid(grid.x, grid.y)
        z = np.minimum(_values(grid), chart.high)
        drawn = axes.plot_surface(x, y, z, cmap="viridis", vmin=chart.low, vmax=chart.high, linewidth=0)
        axes.set_zlim(chart.low, chart.high)
        for values, set_ticks, side in ((grid.x, axes.set_xticks, "left"), (grid.y, axes.set_yticks, "right")):
            ticks = [values[0], (values[0] + values[-1]) / 2, values[-1]]
            set_ticks(ticks, [f"{tick:g}" for tick in ticks], horizontalalignment=side)
        axes.zaxis.set_major_locator(MaxNLocator(3))
        axes.set_xlabel(_escape(chart.x.label), fontsize=6, labelpad=-8)
        axes.set_ylabel(_escape(chart.y.label), fontsize=6, labelpad=-8)
        axes.set_zlabel(_escape(chart.z.label), fontsize=6, labelpad=-10)
        axes.view_init(elev=38, azim=35)
        axes.tick_params(pad=-4, labelsize=6)
        axes.set_box_aspect(None, zoom=0.82)
    bar = figure.colorbar(drawn, ax=panels, label=_escape(chart.z.label), location="top", aspect=40)
    bar.set_ticks(_scale_ticks(chart))
    return figure
