"""Write one self-contained HTML page about runs, which opens from disk and works offline."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2
import plotly.offline
import yaml

from fedflat.core.metric import common_metric
from fedflat.errors import UserError
from fedflat.report.analysis_files import read_analyses
from fedflat.report.charts import Chart, Curves
from fedflat.report.client_charts import client_charts
from fedflat.report.comparison import (
    common_settings,
    measurement_warnings,
    training_settings,
)
from fedflat.report.comparison_charts import (
    barrier_matrix,
    pareto_charts,
    sharpness_charts,
    win_chart,
)
from fedflat.report.flatness_charts import flatness_charts
from fedflat.report.page_data import PageContents, page_data
from fedflat.report.page_tables import (
    PrintedAccuracy,
    clients_table,
    diverged_text,
    flatness_table,
    probes_table,
    results_table,
)
from fedflat.report.probe_charts import probe_charts
from fedflat.report.run_labels import label_runs
from fedflat.report.sweep_charts import differing_values, sweep_charts, write_differences
from fedflat.report.training_charts import communication_chart, learning_charts, partition_chart
from fedflat.report.trajectory_charts import trajectory_chart
from fedflat.runs.folder import write_atomically
from fedflat.runs.read import StoredRun, read_stored_runs

SCRIPTS = (  # in this order; page.js starts the page
    *("frames.js", "state.js", "runs.js", "statistics.js", "curves.js", "quick_lines.js", "grids.js", "trajectory.js"),
    *("tables.js", "sweep.js", "save.js", "keys.js", "page.js", "live.js"),
)


def page_contents(runs: Sequence[StoredRun]) -> PageContents:
    """Make every chart for which the runs have data.

    Args:
        runs: at least one run.
    """
    documents, damaged = read_analyses(runs)
    partitions, missing = partition_chart(runs)
    settings = training_settings(runs)
    sections: dict[str, list[Chart]] = {
        "Learning curves": [*learning_charts(runs), *communication_chart(runs)],
        "Methods": [*win_chart(runs, settings), *pareto_charts(runs)],
        "Clients": [],
        "Data": [*partitions],
        "Probes": [*probe_charts(runs), *client_charts(runs)],
        "Flatness": [
            *flatness_charts(runs, documents),
            *trajectory_chart(runs, documents),
            *barrier_matrix(runs, documents),
        ],
        "Generalisation": [*sharpness_charts(runs, documents)],
    }
    warnings = [*damaged, *missing, *measurement_warnings(runs, settings, documents)]
    return PageContents(sections, documents, settings, warnings)


def make_report(
    paths: Sequence[Path],
    out: Path,
    target: float,
    figures: Path | None = None,
    tensorboard: Path | None = None,
    printed: PrintedAccuracy | None = None,
    labels: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
    style: str = "plain",
    columns: int = 1,
) -> list[str]:
    """Write the page, and on request figures for a paper and TensorBoard event files.

    Args:
        paths: run folders, or folders of run folders.
        out: the HTML file, which is replaced.
        target: accuracy, as a fraction, for the column "rounds to …".
        figures: folder for the charts as PDF and PNG, and the differences between configurations as CSV and LaTeX.
        tensorboard: folder for event files.
        printed: what papers print for a run's configuration.
        labels: texts to use instead of our own, by the run's folder.
        order: folders or labels of the runs that come first.
        style: how figures look, "plain" or "cvpr".
        columns: how many columns of a paper a figure spans.

    Returns warnings: which runs were skipped or are unfinished, and what is not shown or not comparable.
    """
    if out.is_dir():
        raise UserError("out", out, f"is a folder, must be a file such as {out / 'report.html'}")
    runs, unreadable = read_stored_runs(paths)
    if not runs:
        raise UserError(None, "report", "; ".join(["nothing to show", *unreadable]))
    common_metric(run.result.main_metric for run in runs if run.result).check_target("target", target)
    if tensorboard:
        from fedflat.report.tensorboard import write_events

        write_events(runs, tensorboard)
    runs = label_runs(runs, labels, order)
    contents = page_contents(runs)
    warnings = [*(f"skipped: {problem}" for problem in unreadable), *run_warnings(runs), *contents.warnings]
    if figures:
        from fedflat.report.matplotlib_figures import draw_figures

        draw_figures([*contents.charts, *sweep_charts(runs, contents.settings)], figures, style, columns)
        if differing_values(runs, contents.settings):
            write_differences(runs, contents.settings, figures)
    _write(out, render_page(runs, contents, warnings, target, printed))
    return warnings


def run_warnings(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield warnings about unfinished runs, and about runs that are not evaluated on the same kind of samples.

    Args:
        runs: the runs that are shown together.
    """
    for run in runs:
        if not run.result:
            last, rounds = max(row["round"] for row in run.rows), run.config.get("rounds", "?")
            yield f"skipped in the results: {run.path}: unfinished (round {last} of {rounds}); its figures are shown"
    names = [run.name for run in runs if run.evaluated_on == "validation"]
    if 0 < len(names) < len(runs):
        rest = "(validation set) with the others (test)"
        yield f"test and validation runs mixed: do not compare {', '.join(names)} {rest}"


def _write(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text)
    except OSError as error:
        raise UserError("out", out, f"cannot be written ({error.strerror or error})") from None


def render_page(
    runs: Sequence[StoredRun],
    contents: PageContents,
    warnings: Sequence[str],
    target: float,
    printed: PrintedAccuracy | None,
    live: Literal["", "page", "part"] = "",
) -> str:
    """Return the HTML of the page.

    Args:
        runs: the runs that are shown.
        contents: their charts, analyses and settings.
        warnings: texts at the top of the page.
        target: accuracy, as a fraction, for the column "rounds to …".
        printed: what papers print for a run's configuration.
        live: "page" for a page that updates itself (fedflat watch), "part" for such an update, without scripts.
    """
    tables = {
        "Results": results_table(runs, contents.settings, target, printed),
        "Clients": clients_table(runs),
        "Probes": probes_table(runs),
        "Flatness": flatness_table(runs, contents.settings, contents.documents),
    }
    tables = {name: table for name, table in tables.items() if table.rows}
    sections = {"Results": [], **contents.sections}
    if sum(run.result is not None for run in runs) > 1:
        sections = {"Results": [], "Learning curves": contents.sections["Learning curves"], "Sweep": [], **sections}
    return _template().render(
        title=page_title(runs),
        settings=common_settings(contents.settings),
        warnings=warnings,
        tables=tables,
        sections={name: charts for name, charts in sections.items() if charts or name in (*tables, "Sweep")},
        versions=versions_text(runs),
        configs=[(run.name, run_as_yaml(run)) for run in runs],
        css=_asset("page.css"),
        script="" if live == "part" else "".join(map(_asset, SCRIPTS)),
        plotly="" if live == "part" else plotly.offline.get_plotlyjs(),
        data=_json(page_data(runs, contents, tables.values())),
        diverged=[
            f"{run.name} ({diverged_text(run).removeprefix('diverged: ')})" for run in runs if diverged_text(run)
        ],
        run_count=len(runs),
        has_seeds=lambda chart: isinstance(chart, Curves) and any(line.seeds for line in chart.lines),
        live=live,
    )


@functools.cache
def _template() -> jinja2.Template:
    return jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_asset("page.html"))


def _asset(name: str) -> str:
    return resources.files("fedflat.report").joinpath("assets", name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """Return JSON for a <script> element; without "<" no text in it can close the element."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def page_title(runs: Sequence[StoredRun]) -> str:
    """Return the run's name or the number of runs, and the data set if all runs have the same."""
    what = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    datasets = {str(run.config.get("dataset")) for run in runs}
    return f"{what} on {datasets.pop()}" if len(datasets) == 1 else what


def versions_text(runs: Sequence[StoredRun]) -> str:
    """Return the versions and hardware of finished runs; runs that share them are listed once."""
    versions = dict.fromkeys(tuple(run.result.versions.items()) for run in runs if run.result)
    return "; ".join(", ".join(f"{name} {version}" for name, version in each) for each in versions)


def run_as_yaml(run: StoredRun) -> str:
    """Return a run's configuration as YAML, with versions and hardware if it is finished."""
    versions = {"versions": run.result.versions} if run.result else {}
    return yaml.safe_dump({**run.config, **versions}, sort_keys=False, allow_unicode=True)
