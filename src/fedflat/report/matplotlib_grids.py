"""Draw heat maps and loss landscapes with matplotlib: as contours, with trajectories, and as surfaces in 3-D."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

from fedflat.report.charts import Grid, Grids, Trajectory
from fedflat.report.matplotlib_axes import axis_formatter, escape_formulas, legend_columns, run_colour

SHOWN_ROUNDS = 4  # whose clients a printed trajectory shows


def _rows_and_columns(chart: Grids, width: float) -> tuple[int, int]:
    """Return how the panels are arranged: at most two in a row of one column, four across two columns."""
    columns = min(len(chart.grids), 4 if width > 5 else 2)
    return math.ceil(len(chart.grids) / columns), columns


def draw_grids(chart: Grids, width: float) -> Figure:
    """Draw contours of loss landscapes and heat maps of everything else, with one colour scale for all panels.

    Args:
        chart: the panels.
        width: of the figure, in inches.
    """
    rows, columns = _rows_and_columns(chart, width)
    panel = width / columns
    figure = Figure(figsize=(width, 0.3 + min(1.06 * panel, 2.4) * rows), layout="constrained")
    share = not chart.rounds  # every trajectory has a plane of its own
    panels = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    draw = _trajectories if chart.rounds else _contours if chart.relief else _heat_map
    images = [draw(axes, grid, chart) for axes, grid in _panels_with_grids(panels, chart)]
    if share:
        figure.supxlabel(chart.x.label, fontsize=8)
        figure.supylabel(escape_formulas(chart.y.label), fontsize=8)
    form = {} if chart.z.form == "number" else {"format": axis_formatter(chart.z)}
    bar = figure.colorbar(images[0], ax=panels, label=escape_formulas(chart.z.label), location="top", aspect=40, **form)
    bar.set_ticks(_scale_ticks(chart))
    _legend_of_paths(figure, chart, width)
    return figure


def _legend_of_paths(figure: Figure, chart: Grids, width: float) -> None:
    """Name the paths of panels that have several."""
    paths = {path.run: path.name for grid in chart.grids if len(grid.trajectories) > 1 for path in grid.trajectories}
    handles = [Line2D([], [], color=run_colour(run), label=escape_formulas(name)) for run, name in paths.items()]
    if handles:
        per_row = legend_columns([*paths.values()], width)
        figure.set_figheight(figure.get_figheight() + 0.16 * math.ceil(len(paths) / per_row))
        figure.legend(handles=handles, loc="outside lower center", ncols=per_row, frameon=False, fontsize=7)


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
        axes.set_title(textwrap.fill(escape_formulas(grid.name), 24), fontsize=8)
    return pairs


def _values(grid: Grid) -> np.ndarray:
    return np.array(grid.z, dtype=float)


def _heat_map(axes: Axes, grid: Grid, chart: Grids) -> Any:
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    x, y = _edges(grid.x), _edges(grid.y)
    if grid.x_names:
        x_names, y_names = (
            [textwrap.fill(escape_formulas(name), 16) for name in names] for names in (grid.x_names, grid.y_names)
        )
        axes.set_xticks(grid.x, x_names, rotation=35, ha="right", rotation_mode="anchor", fontsize=6)
        axes.set_yticks(grid.y, y_names, fontsize=6)
    if grid.x_names and grid.x_names == grid.y_names:  # a matrix begins at the top
        axes.invert_yaxis()
    middle, half = (chart.low + chart.high) / 2, (chart.high - chart.low) / 2
    for place, row, values in zip(grid.y, grid.text, grid.z, strict=False):
        for column, text, value in zip(grid.x, row, values, strict=True):
            part = 0.0 if value is None else (value - middle) / half
            dark = part > 0.4 or (chart.low < 0 and part < -0.4)
            axes.text(column, place, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    colours = "RdBu" if chart.low < 0 else "Blues"
    return axes.pcolormesh(x, y, _values(grid), cmap=colours, vmin=chart.low, vmax=chart.high, alpha=0.85)


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


def _trajectories(axes: Axes, grid: Grid, chart: Grids) -> Any:
    """Draw the servers' paths on a landscape, one in white, several in the colours of their runs with a legend."""
    filled = _levels(axes, grid, chart)
    several = len(grid.trajectories) > 1
    for path in grid.trajectories:
        _path(axes, path, run_colour(path.run) if several else "white", "white" if several else "black")
    axes.set_xlabel(escape_formulas(grid.x_label), fontsize=7)
    axes.set_ylabel(escape_formulas(grid.y_label), fontsize=7)
    return filled


def _path(axes: Axes, path: Trajectory, colour: str, halo: str) -> None:
    """Draw a server's path, and the clients of a few rounds: thin lines to their last models."""
    last, client = len(path.rounds) - 1, "#ff7a45" if colour == "white" else colour
    for n in sorted({round(part * last / SHOWN_ROUNDS) for part in range(1, SHOWN_ROUNDS + 1)}):
        for end in path.clients[n]:
            axes.plot(*zip(path.starts[n], end, strict=True), color="white", linewidth=0.4, alpha=0.8)
            axes.plot(*end, "o", color=client, markersize=2, markeredgecolor="white", markeredgewidth=0.3)
    x, y = zip(*path.server, strict=True)
    dots: Any = {"marker": "o", "markersize": 2, "markeredgecolor": halo, "markeredgewidth": 0.3}
    axes.plot(x, y, color=halo, linewidth=1.8)
    axes.plot(x, y, color=colour, linewidth=0.9, **dots)
    axes.plot(x[-1], y[-1], "x", color="black", markersize=4, markeredgewidth=0.9)


def _contours(axes: Axes, grid: Grid, chart: Grids) -> Any:
    """Draw 16 levels, a cross at the model and a circle at the lowest point."""
    filled = _levels(axes, grid, chart)
    row, column = np.unravel_index(np.nanargmin(_values(grid)), (len(grid.y), len(grid.x)))
    style: Any = {"color": "white", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.9}
    axes.plot(0, 0, "x", grid.x[column], grid.y[row], "o", **style)
    axes.set_aspect("equal")
    return filled


def draw_surfaces(chart: Grids, width: float) -> Figure:
    """Draw loss landscapes as surfaces, cut off at the upper end of the scale, with one colour bar for all.

    Args:
        chart: the landscapes.
        width: of the figure, in inches.
    """
    rows, columns = _rows_and_columns(chart, width)
    figure = Figure(figsize=(width, 0.45 + min(width / columns, 2.2) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "3d"})
    for axes, grid in _panels_with_grids(panels, chart):
        x, y = np.meshgrid(grid.x, grid.y)
        z = np.minimum(_values(grid), chart.high)
        drawn = axes.plot_surface(x, y, z, cmap="viridis", vmin=chart.low, vmax=chart.high, linewidth=0)
        _set_scene(axes, chart, grid)
    bar = figure.colorbar(drawn, ax=panels, label=escape_formulas(chart.z.label), location="top", aspect=40)
    bar.set_ticks(_scale_ticks(chart))
    return figure


def _set_scene(axes: Any, chart: Grids, grid: Grid) -> None:
    """Set ticks, labels and the viewpoint of surfaces."""
    axes.set_zlim(chart.low, chart.high)
    for values, set_ticks, side in ((grid.x, axes.set_xticks, "left"), (grid.y, axes.set_yticks, "right")):
        ticks = [values[0], (values[0] + values[-1]) / 2, values[-1]]
        set_ticks(ticks, [f"{tick:g}" for tick in ticks], horizontalalignment=side)
    axes.zaxis.set_major_locator(MaxNLocator(3))
    axes.set_xlabel(escape_formulas(chart.x.label), fontsize=6, labelpad=-8)
    axes.set_ylabel(escape_formulas(chart.y.label), fontsize=6, labelpad=-8)
    axes.set_zlabel(escape_formulas(chart.z.label), fontsize=6, labelpad=-10)
    axes.view_init(elev=38, azim=35)
    axes.tick_params(pad=-4, labelsize=6)
    axes.set_box_aspect(None, zoom=0.82)


def draw_overlay(chart: Grids, width: float) -> Figure:
    """Draw the loss landscapes of several runs over each other, each in its run's colour; higher losses are left out.

    The squares of all surfaces are one collection, which matplotlib sorts by their distance: where surfaces cut through
    each other, the nearer one is seen.

    Args:
        chart: the landscapes.
        width: of the figure, in inches.
    """
    figure = Figure(figsize=(width, min(width, 3.2)), layout="constrained")
    axes: Any = figure.add_subplot(projection="3d")
    squares = [(square, run_colour(grid.run)) for grid in chart.grids for square in _squares(grid, chart.high)]
    drawn = Poly3DCollection(
        [square for square, _ in squares],
        facecolors=[colour for _, colour in squares],
        edgecolors="white",
        linewidths=0.2,
        alpha=0.75,
    )
    axes.add_collection3d(drawn)
    widest = max(chart.grids, key=lambda grid: grid.x[-1])
    axes.set(xlim=(widest.x[0], widest.x[-1]), ylim=(widest.y[0], widest.y[-1]))
    _set_scene(axes, chart, widest)
    handles = [Patch(color=run_colour(grid.run), label=escape_formulas(grid.name)) for grid in chart.grids]
    per_row = legend_columns([grid.name for grid in chart.grids], width)
    figure.legend(handles=handles, loc="outside lower center", ncols=per_row, frameon=False)
    return figure


def _squares(grid: Grid, high: float) -> list[np.ndarray]:
    """Return the squares of a surface, four corners (x, y, z) each, cut off at `high`; without those that lie above."""
    points = np.stack([*np.meshgrid(grid.x, grid.y), np.minimum(_values(grid), high)], axis=-1)
    corners = np.stack([points[:-1, :-1], points[:-1, 1:], points[1:, 1:], points[1:, :-1]], axis=2).reshape(-1, 4, 3)
    return [square for square in corners if square[:, 2].min() < high]
