"""What `import fedflat` offers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedflat.core.method import Cohort, Local, Message, Method, Reply, Server
from fedflat.core.task import Batch, Task
from fedflat.data.dataset import Augment, Dataset
from fedflat.errors import UserError
from fedflat.methods import *  # noqa: F403
from fedflat.methods import METHODS
from fedflat.options import settled
from fedflat.personal.fine_tuning import personalise
from fedflat.runs.experiment import Experiment, Setting
from fedflat.runs.read import load_model
from fedflat.runs.result import Result
from fedflat.runs.train import run

if TYPE_CHECKING:
    from fedflat.flatness.analyse import Analysis
    from fedflat.flatness.finished_run import AnalysisSettings

Runs = str | Path | Sequence[str | Path]  # one folder, or several


def analyse(
    runs: Runs, settings: AnalysisSettings | None = None, dataset: Dataset | None = None, model: Any = None
) -> Analysis:
    """Measure how flat the models of finished runs are, as `fedflat analyse` does (fedflat.flatness.Settings).

    `dataset` and `model` stand in where the runs' data or model were Python objects.
    """
    from fedflat import flatness

    return flatness.analyse_runs(_paths(runs), settled(settings or flatness.AnalysisSettings()), dataset, model)


def write_report(
    runs: Runs,
    out: str | Path = "report.html",
    target: float = 0.8,
    figures: str | Path | None = None,
    tensorboard: str | Path | None = None,
) -> list[str]:
    """Write one page about runs, as `fedflat report` does; returns what was left out or is not as it seems."""
    from fedflat.report.html import make_report
    from fedflat.reproduce import cells

    figures, tensorboard = (None if folder is None else Path(folder) for folder in (figures, tensorboard))
    return make_report(_paths(runs), Path(out), target, figures, tensorboard, cells.printed_accuracy)


def _paths(runs: Runs) -> list[Path]:
    return [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]


__all__ = [
    "METHODS",
    "Augment",
    "Batch",
    "Cohort",
    "Dataset",
    "Experiment",
    "Local",
    "Message",
    "Method",
    "Reply",
    "Result",
    "Server",
    "Setting",
    "Task",
    "UserError",
    "analyse",
    "load_model",
    "personalise",
    "run",
    "write_report",
    *(method.__name__ for method in METHODS.values()),
]
