"""One self-contained HTML page about a set of runs: opens from disk, works offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jinja2
import plotly.offline
import yaml

from fedflat.engine.folder import write_atomically
from fedflat.errors import UserError
from fedflat.report.figures import learning_curves
from fedflat.report.runs import Run, read_run
from fedflat.report.table import cells, headings


def report(paths: Sequence[Path], out: Path, target: float) -> list[str]:
    """Write the page; folders that cannot be read are left out and named in the returned list."""
    runs, problems = read_runs(paths)
    if not runs:
        raise UserError("report: nothing to show; " + "; ".join(problems))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page(runs, problems, target))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    return problems


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and why the others cannot."""
    runs: list[Run] = []
    problems: list[str] = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except UserError as error:
            problems.append(str(error))
    return runs, problems


def page(runs: Sequence[Run], problems: Sequence[str], target: float) -> str:
    """The HTML."""
    figures = {
        "Accuracy on the test set": learning_curves(runs, "accuracy", "accuracy"),
        "Loss on the test set": learning_curves(runs, "loss", "cross entropy"),
    }
    template = jinja2.Environment(autoescape=True).from_string(
        resources.files("fedflat.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    finished = [run for run in runs if run.complete]
    return template.render(
        title=f"fedflat: {', '.join(run.name for run in runs)}",
        headings=headings(target),
        rows=[cells(run.name, run.result_object(), target) for run in finished],
        unfinished=[run.name for run in runs if not run.complete],
        problems=problems,
        figures=[{"id": f"figure-{n}", "title": title} for n, title in enumerate(figures)],
        data=json.dumps(list(figures.values())).replace("</", "<\\/"),
        configs=[(run.name, yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)) for run in runs],
        versions=finished[0].result["versions"] if finished else {},
        plotly=plotly.offline.get_plotlyjs(),
    )
