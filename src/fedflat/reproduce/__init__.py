"""Tables of the FedSOL, FedGF, FedGloSS and FL-SAM papers as data: train them again and compare the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedflat.runs.read import Folders, list_folders


def write_report(
    runs: Folders,
    out: str | Path = "report.html",
    target: float = 0.8,
    figures: str | Path | None = None,
    tensorboard: str | Path | None = None,
) -> list[str]:
    """Write one HTML page about runs, as `fedflat report` does, with the papers' numbers beside ours.

    Args:
        runs: a run's folder, or several; a folder of runs stands for its runs.
        out: the page, a file that is replaced.
        target: accuracy for the column "rounds to …".
        figures: folder for the page's figures as PDF and PNG.
        tensorboard: folder for TensorBoard's event files (needs fedflat[tensorboard]).

    Returns warnings: runs that were left out or are unfinished, and numbers that do not compare.
    """
    from fedflat.report.html import make_report

    figures, tensorboard = (None if folder is None else Path(folder) for folder in (figures, tensorboard))
    return make_report(list_folders(runs), Path(out), target, figures, tensorboard, _printed)


def _printed(config: Mapping[str, Any]) -> tuple[str, float] | None:
    """Look a run's configuration up in the papers' tables, which are imported only for data sets that papers use."""
    from fedflat.data.catalogue import DATASETS

    if config.get("dataset") not in DATASETS:
        return None
    from fedflat.reproduce.cells import printed_accuracy

    return printed_accuracy(config)
