"""What all figures of matplotlib share: the colour of a run, labels, scales and number formats of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from fedflat.report.charts import COLOURS, Axis

SHORT_LOG = 300  # a logarithmic axis over less than this factor has plain numbers: 1, 2, 5, 10, ...


def run_colour(run: int | None) -> str:
    """Return the colour of a run on paper; black for what belongs to none."""
    return "black" if run is None or run < 0 else COLOURS[run % len(COLOURS)]


def legend_columns(names: Sequence[str], width: float) -> int:
    """Return how many names fit beside each other into a figure that is `width` inches wide."""
    return max(1, int(width / (0.55 + 0.062 * max(map(len, names)))))


def escape_formulas(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read a formula; write ₁, which few fonts have, as one."""
    return text.replace("$", r"\$").replace("₁", "$_1$")


def set_axes(axes: Axes, x: Axis, y: Axis) -> None:
    """Set labels, scales and number formats."""
    axes.set(
        xlabel=escape_formulas(x.label),
        ylabel=escape_formulas(y.label),
        xscale="log" if x.log else "linear",
        yscale="log" if y.log else "linear",
    )
    for axis, matplotlib_axis in ((x, axes.xaxis), (y, axes.yaxis)):
        if axis.form in ("percent", "bytes"):
            matplotlib_axis.set_major_formatter(axis_formatter(axis))
        low, high = matplotlib_axis.get_view_interval()
        if axis.log and high < SHORT_LOG * low:
            matplotlib_axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            matplotlib_axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            matplotlib_axis.set_minor_formatter(NullFormatter())


def axis_formatter(axis: Axis) -> Any:
    """Return how matplotlib writes the numbers of an axis of percent or bytes."""
    return PercentFormatter(1.0) if axis.form == "percent" else EngFormatter("B", sep="")
