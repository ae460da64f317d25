"""What a page shows, and what its scripts work with: the runs, the charts, and how lines look."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedflat.report.charts import COLOURS, DARK_COLOURS, DASHES, SYMBOLS, Chart, ChartLine, Curves, thin_line
from fedflat.report.comparison import AnalysisDocuments, RunSettings, method_settings
from fedflat.report.comparison_charts import rivalries
from fedflat.report.page_tables import PageTable, diverged_text
from fedflat.runs.read import StoredRun
from fedflat.runs.result import bytes_per_round

MAX_POINTS = 1000  # of a line on the page; a screen is not wider


@dataclass(frozen=True)
class PageContents:
    """Everything a report shows but its tables.

    Args:
        sections: the charts by section heading, in the order of the page.
        documents: each run's analyses.
        settings: each run's training settings.
        warnings: what could not be shown or compared, and why.
    """

    sections: dict[str, list[Chart]]
    documents: list[AnalysisDocuments]
    settings: list[RunSettings]
    warnings: list[str]

    @property
    def charts(self) -> list[Chart]:
        """Return the charts of all sections."""
        return [chart for charts in self.sections.values() for chart in charts]


def page_data(runs: Sequence[StoredRun], contents: PageContents, tables: Iterable[PageTable] = ()) -> dict[str, Any]:
    """Return what the page's scripts work with: the runs, the charts, and how lines look.

    Args:
        runs: the runs that are shown.
        contents: their charts, analyses and settings.
        tables: the tables in which the page marks the best of selected runs.
    """
    charts = [
        dataclasses.replace(chart, lines=[thin_line(line, MAX_POINTS) for line in chart.lines])
        if isinstance(chart, Curves)
        else chart
        for chart in contents.charts
    ]
    styles = {"light": COLOURS, "dark": DARK_COLOURS, "dashes": DASHES, "symbols": SYMBOLS}
    facts = zip(runs, contents.settings, rivalries(runs, contents.settings), strict=True)
    listed = [_run_data(run, settings) | {"rivalry": rivalry} for run, settings, rivalry in facts]
    drawn, judged = [dataclasses.asdict(chart) for chart in charts], [*map(_judged_data, tables)]
    return {"runs": listed, "charts": drawn, "styles": styles, "judged": [*itertools.chain.from_iterable(judged)]}


def _judged_data(table: PageTable) -> list[dict[str, Any]]:
    """Return the columns of a table in which the page marks the best."""
    return [
        {
            "table": table.id,
            "heading": column.heading,
            "higher": column.higher,
            "groups": [{"values": group} for group in column.groups],
        }
        for column in table.judged
    ]


def _run_data(run: StoredRun, settings: RunSettings) -> dict[str, Any]:
    """Return what the page's list of runs, its filter and its sweep need to know of a run."""
    result = run.result
    cohort = int(run.config.get("cohort", 1))
    seconds: dict[int, list[float]] = {}
    for row in run.rows:
        seconds.setdefault(row["round"], []).append(row.get("seconds", 0.0))
    points = thin_line(ChartLine("", 0, [*seconds], [fmean(each) for each in seconds.values()]), MAX_POINTS)
    return {
        "id": hashlib.sha256(os.path.abspath(run.path).encode()).hexdigest()[:6],
        "label": run.name,
        "folder": str(run.path),
        "diverged": diverged_text(run),
        "settings": method_settings(run) | {key: _plain_setting(value) for key, value in settings.items()},
        "metric": run.main_metric.name,
        "share": run.main_metric.is_share,
        "final": [value for value in result.final_per_seed if math.isfinite(value)] if result else [],
        "last": [value for value in result.last10_per_seed if math.isfinite(value)] if result else [],
        "bytes": bytes_per_round(result, cohort) if result else 0,
        "seconds": [*zip(points.x, points.y, strict=True)],
    }


def _plain_setting(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
