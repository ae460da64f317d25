"""Draw the page's charts with matplotlib for a paper: PDF and PNG, one or two columns wide, embedded TrueType fonts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedflat.core.tasks import TASKS
from fedflat.errors import UserError
from fedflat.files import replace_file
from fedflat.report.charts import DASHES, SYMBOLS, Chart, ChartLine, Curves, Grids
from fedflat.report.matplotlib_axes import escape_formulas, legend_columns, run_colour, set_axes
from fedflat.report.matplotlib_grids import draw_grids, draw_overlay, draw_surfaces


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
    """Write KEY.pdf and KEY.png of every chart; of loss landscapes also KEY-3d, and of several KEY-overlay.

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
            drawn = draw_curves([chart], width, look) if isinstance(chart, Curves) else draw_grids(chart, width)
            _save(drawn, folder, chart.key)
            if isinstance(chart, Grids) and chart.relief and not chart.rounds:
                _save(draw_surfaces(chart, width), folder, f"{chart.key}-3d")
                if len(chart.grids) > 1:
                    _save(draw_overlay(chart, width), folder, f"{chart.key}-overlay")
        names = {"loss", *(task.metric for task in TASKS.values())}
        learning = [chart for chart in charts if isinstance(chart, Curves) and chart.key in names]
        if len(learning) == 2:
            _save(draw_curves(learning, look.widths[1], look), folder, "learning")


def _save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as PDF and PNG."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("pdf", "png"):
            with replace_file(folder / f"{name}.{kind}") as file:
                figure.savefig(file, format=kind, dpi=300)
    except OSError as error:
        raise UserError("figures", folder, f"cannot be written ({error.strerror or error})") from None


def draw_curves(charts: Sequence[Curves], width: float, look: FigureStyle) -> Figure:
    """Draw charts with the same lines side by side, with one legend below all.

    Args:
        charts: at least one.
        width: of the figure, in inches.
        look: whether lines have markers.
    """
    names = [line.name for line in charts[0].lines]
    per_row = legend_columns(names, width)
    height = 2.1 if width > 5 or len(charts) > 1 else 2.2
    figure = Figure(figsize=(width, height + 0.16 * math.ceil(len(names) / per_row)), layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        _draw_lines(axes, chart, look)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=per_row, frameon=False, handlelength=2.2)
    return figure


def _scale_of_others(chart: Curves) -> tuple[float, float] | None:
    """Return the scale of the lines that did not diverge, if the numbers of diverged runs would flatten them."""
    kept = [v for line in chart.lines if not line.lost for v in (*line.y, *line.low, *line.high) if v is not None]
    lost = [v for line in chart.lines if line.lost for v in line.y if v is not None]
    if not kept or not lost or chart.y.form == "percent" or chart.y.log:
        return None
    low, high = min(kept), max(kept)
    room = (high - low) or 1.0
    fits = min(lost) >= low - 3 * room and max(lost) <= high + 3 * room
    return None if fits else (low - 0.06 * room, high + 0.06 * room)


def _draw_lines(axes: Axes, chart: Curves, look: FigureStyle) -> None:
    scale = _scale_of_others(chart)
    low, high = scale or (-math.inf, math.inf)
    for line in chart.lines:
        y = np.array(line.y, dtype=float)  # None becomes NaN
        if line.low and not (line.lost and scale):
            axes.fill_between(line.x, line.low, line.high, color=run_colour(line.run), alpha=0.17, linewidth=0)
        steps = {"drawstyle": "steps-post"} if chart.frontier and line.run < 0 else {}
        style = _line_style(line, look) | steps
        axes.plot(line.x, y, color=run_colour(line.run), label=escape_formulas(line.name), **style)
        if line.lost and line.lost[1] is not None:
            axes.plot(
                line.lost[0],
                min(max(line.lost[1], low), high),
                clip_on=False,
                marker="X",
                color=run_colour(line.run),
                markersize=6,
                markeredgecolor="white",
                zorder=5,
            )
    if chart.diagonal:
        axes.axline((1, 1), (10, 10), color="grey", linewidth=0.6, linestyle=":")
    set_axes(axes, chart.x, chart.y)
    axes.set_ylim(scale)
    axes.grid(linewidth=0.3, alpha=0.6)


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
