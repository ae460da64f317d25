"""Write one self-contained HTML page about runs, which opens from disk and works offline."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
import yaml

from fedflat.errors import UserError
from fedflat.report.charts import COLOURS, DASHES, SYMBOLS, Chart
from fedflat.report.comparison import (
    AnalysisDocuments,
    RunSettings,
    common_settings,
    measurement_warnings,
    training_settings,
)
from fedflat.report.flatness_charts import flatness_charts, read_analyses
from fedflat.report.tables import PrintedAccuracy, flatness_table, probes_table, results_table
from fedflat.report.training_charts import communication_chart, learning_charts, partition_chart, probe_charts
from fedflat.runs.folder import write_atomically
from fedflat.runs.read import StoredRun, read_stored_runs

SCRIPTS = ("frames.js", "curves.js", "grids.js", "save.js", "page.js")  # in this order; page.js draws the charts


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


def page_contents(runs: Sequence[StoredRun]) -> PageContents:
    """Make every chart for which the runs have data.

    Args:
        runs: at least one run.
    """
    documents, damaged = read_analyses(runs)
    partitions, missing = partition_chart(runs)
    sections: dict[str, list[Chart]] = {
        "Learning curves": [*learning_charts(runs), *communication_chart(runs)],
        "Data": [*partitions],
        "Probes": [*probe_charts(runs)],
        "Flatness": [*flatness_charts(runs, documents)],
    }
    settings = training_settings(runs)
    warnings = [*damaged, *missing, *measurement_warnings(runs, settings, documents)]
    return PageContents(sections, documents, settings, warnings)


def make_report(
    paths: Sequence[Path],
    out: Path,
    target: float,
    figures: Path | None = None,
    tensorboard: Path | None = None,
    printed: PrintedAccuracy | None = None,
) -> list[str]:
    """Write the page, and on request figures for a paper and TensorBoard event files.

    Args:
        paths: run folders, or folders of run folders.
        out: the HTML file, which is replaced.
        target: accuracy, as a fraction, for the column "rounds to …".
        figures: folder for the charts as PDF and PNG.
        tensorboard: folder for event files.
        printed: what papers print for a run's configuration.

    Returns warnings: which runs were skipped or are unfinished, and what is not shown or not comparable.
    """
    if out.is_dir():
        raise UserError("out", out, f"is a folder, must be a file such as {out / 'report.html'}")
    runs, unreadable = read_stored_runs(paths)
    if not runs:
        raise UserError(None, "report", "; ".join(["nothing to show", *unreadable]))
    contents = page_contents(runs)
    warnings = [*(f"skipped: {problem}" for problem in unreadable), *_run_warnings(runs), *contents.warnings]
    if tensorboard:
        from fedflat.report.tensorboard import write_events

        write_events(runs, tensorboard)
    if figures:
        from fedflat.report.matplotlib_figures import draw_figures

        draw_figures(contents.charts, figures)
    _write(out, render_page(runs, contents, warnings, target, printed))
    return warnings


def _run_warnings(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield warnings about unfinished runs, and about runs that are not evaluated on the same kind of samples."""
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
) -> str:
    """Return the HTML of the page.

    Args:
        runs: the runs that are shown.
        contents: their charts, analyses and settings.
        warnings: texts at the top of the page.
        target: accuracy, as a fraction, for the column "rounds to …".
        printed: what papers print for a run's configuration.
    """
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_asset("page.html"))
    tables = {
        "Results": results_table(runs, contents.settings, target, printed),
        "Probes": probes_table(runs),
        "Flatness": flatness_table(runs, contents.settings, contents.documents),
    }
    tables = {name: table for name, table in tables.items() if table.rows}
    sections = {"Results": [], **contents.sections}
    return template.render(
        title=page_title(runs),
        settings=common_settings(contents.settings),
        warnings=warnings,
        tables=tables,
        sections={name: charts for name, charts in sections.items() if charts or name in tables},
        versions=versions_text(runs),
        configs=[(run.name, run_as_yaml(run)) for run in runs],
        css=_asset("page.css"),
        script="".join(map(_asset, SCRIPTS)),
        plotly=plotly.offline.get_plotlyjs(),
        charts_json=_json([dataclasses.asdict(chart) for chart in contents.charts]),
        styles_json=_json([COLOURS, DASHES, SYMBOLS]),
    )


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
