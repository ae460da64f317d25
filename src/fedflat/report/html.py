"""One self-contained HTML page about a set of runs: opens from disk, works offline."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
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
    Documents,
    RunSettings,
    common_settings,
    measurement_differences,
    read_analyses,
    settings_of,
)
from fedflat.report.flatness_charts import flatness_charts
from fedflat.report.tables import Printed, flatness_table, nothing_printed, probes_table, results_table
from fedflat.report.training_charts import communication_chart, learning_charts, partition_chart, probe_charts
from fedflat.runs.folder import write_atomically
from fedflat.runs.read import StoredRun, read_stored_runs


@dataclass(frozen=True)
class Contents:
    """Charts by section, what was analysed, what the runs were trained with, and what is missing and why."""

    sections: dict[str, list[Chart]]
    documents: list[Documents]
    settings: list[RunSettings]
    problems: list[str]

    @property
    def charts(self) -> list[Chart]:
        """All charts in order."""
        return [chart for charts in self.sections.values() for chart in charts]


def page_contents(runs: Sequence[StoredRun]) -> Contents:
    """Prepare every figure for which there are data."""
    documents, damaged = read_analyses(runs)
    held, missing = partition_chart(runs)
    sections: dict[str, list[Chart]] = {
        "Learning curves": [*learning_charts(runs), *communication_chart(runs)],
        "Data": [*held],
        "Probes": [*probe_charts(runs)],
        "Flatness": [*flatness_charts(runs, documents)],
    }
    settings = settings_of(runs)
    return Contents(
        sections, documents, settings, [*damaged, *missing, *measurement_differences(runs, settings, documents)]
    )


SCRIPTS = ("frames.js", "curves.js", "grids.js", "save.js", "page.js")  # the last one starts


def make_report(
    paths: Sequence[Path],
    out: Path,
    target: float,
    figures: Path | None = None,
    tensorboard: Path | None = None,
    printed: Printed = nothing_printed,
) -> list[str]:
    """Write the page and what else is asked for; returns, in words, what was left out or is not as it seems."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder, must be a file such as {out / 'report.html'}")
    runs, damaged = read_stored_runs(paths)
    if not runs:
        raise UserError("report: nothing to show; " + "; ".join(damaged))
    found = page_contents(runs)
    problems = [*(f"skipped: {problem}" for problem in damaged), *map(_unfinished, runs), _mixed(runs), *found.problems]
    problems = [problem for problem in problems if problem]
    if tensorboard:
        from fedflat.report.tensorboard import write_events

        write_events(runs, tensorboard)
    if figures:
        from fedflat.report.matplotlib_figures import draw_figures

        draw_figures(found.charts, figures)
    _write(out, html_page(runs, found, problems, target, printed))
    return problems


def _unfinished(run: StoredRun) -> str:
    """What is said of a run that has no result yet."""
    if run.result:
        return ""
    reached, wanted = max(row["round"] for row in run.rows), run.config.get("rounds", "?")
    return f"skipped in the results: {run.path}: unfinished (round {reached} of {wanted}); its figures are shown"


def _mixed(runs: Sequence[StoredRun]) -> str:
    """What is said where some runs are evaluated on the test set and others are not."""
    held = [run.name for run in runs if run.evaluated_on == "validation"]
    if len(held) in (0, len(runs)):
        return ""
    return f"test and validation runs mixed: do not compare {', '.join(held)} (validation set) with the others (test)"


def _write(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from None


def html_page(
    runs: Sequence[StoredRun], contents: Contents, problems: Sequence[str], target: float, printed: Printed
) -> str:
    """The HTML."""
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_file("page.html"))
    tables = {
        "Results": results_table(runs, contents.settings, target, printed),
        "Probes": probes_table(runs),
        "Flatness": flatness_table(runs, contents.settings, contents.documents),
    }
    tables = {name: table for name, table in tables.items() if table.rows}
    sections = {"Results": [], **contents.sections}
    return template.render(
        title=page_title(runs),
        setting=common_settings(contents.settings),
        problems=problems,
        tables=tables,
        sections={name: charts for name, charts in sections.items() if charts or name in tables},
        versions=versions_text(runs),
        configs=[(run.name, run_as_yaml(run)) for run in runs],
        css=_file("page.css"),
        script="".join(map(_file, SCRIPTS)),
        plotly=plotly.offline.get_plotlyjs(),
        data=_json([dataclasses.asdict(chart) for chart in contents.charts]),
        looks=_json([COLOURS, DASHES, SYMBOLS]),
    )


def _file(name: str) -> str:
    return resources.files("fedflat.report").joinpath("assets", name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that cannot end the script it stands in."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def page_title(runs: Sequence[StoredRun]) -> str:
    """Which runs, or how many, and on which data where that is the same."""
    what = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    datasets = {str(run.config.get("dataset")) for run in runs}
    return f"{what} on {datasets.pop()}" if len(datasets) == 1 else what


def versions_text(runs: Sequence[StoredRun]) -> str:
    """The versions and the hardware, once for all runs that share them."""
    found = dict.fromkeys(tuple(run.result.versions.items()) for run in runs if run.result)
    return "; ".join(", ".join(f"{name} {version}" for name, version in each) for each in found)


def run_as_yaml(run: StoredRun) -> str:
    """A run's configuration, and what it ran on, as YAML."""
    facts = {**run.config, **({"versions": run.result.versions} if run.result else {})}
    return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
