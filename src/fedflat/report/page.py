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
from fedflat.report.runs import Run, read_runs
from fedflat.report.table import best, cells, headings


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


def page(runs: Sequence[Run], problems: Sequence[str], target: float) -> str:
    """The HTML."""
    figures = {
        "Accuracy on the test set": learning_curves(runs, "accuracy", "accuracy"),
        "Loss on the test set": learning_curves(runs, "loss", "cross entropy"),
    }
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(
        resources.files("fedflat.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    finished = [(run.name, run.result) for run in runs if run.result]
    top, noted = best([result for _, result in finished]), any(result.diverged for _, result in finished)
    shown = slice(None if noted else -1)  # the last column is for notes
    return template.render(
        title=f"fedflat: {', '.join(run.name for run in runs)}",
        setting=common(runs),
        headings=headings(target)[shown],
        rows=[(result.last10_accuracy == top, cells(name, result, target)[shown]) for name, result in finished],
        unfinished=[run.name for run in runs if not run.result],
        problems=problems,
        figures=[{"id": f"figure-{n}", "title": title} for n, title in enumerate(figures)],
        data=json.dumps(list(figures.values())).replace("<", "\\u003c"),
        configs=[(run.name, describe(run)) for run in runs],
        plotly=plotly.offline.get_plotlyjs(),
    )


def common(runs: Sequence[Run]) -> str:
    """What all runs share, in words."""
    keys = ("dataset", "partition", "alpha", "clients", "cohort", "local_epochs", "batch_size", "lr", "seeds")
    shared = {key: runs[0].config.get(key) for key in keys}
    same = {key: value for key, value in shared.items() if all(run.config.get(key) == value for run in runs)}
    words = {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in same.items()}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in words.items() if value is not None)


def describe(run: Run) -> str:
    """A run's configuration, and what it ran on, as YAML."""
    facts = {**run.config, **({"versions": run.result.versions} if run.result else {})}
    return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
