"""Tables of the FedSOL, FedGF, FedGloSS and FL-SAM papers as data: train them again and compare the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflat.runs.read import Folders, list_folders


def write_report(
    runs: Folders,
    out: str | Path = "report.html",
    target: float = 0.8,
    figures: str | Path | None = None,
    tensorboard: str | Path | None = None,
    labels: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
    style: str = "plain",
    columns: int = 1,
) -> list[str]:
    """Write one HTML page about runs, as `fedflat report` does, with the papers' numbers beside ours.

    Args:
        runs: a run's folder, or several; a folder of runs stands for its runs.
        out: the page, a file that is replaced.
        target: accuracy for the column "rounds to …".
        figures: folder for the page's figures as PDF and PNG.
        tensorboard: folder for TensorBoard's event files (needs fedflat[tensorboard]).
        labels: texts to use instead of our own, by the run's folder.
        order: folders or labels of the runs that come first.
        style: how figures look: "plain", or "cvpr" with Times and markers.
        columns: how many columns of a paper a figure spans, 1 or 2.

    Returns warnings: runs that were left out or are unfinished, and numbers that do not compare.
    """
    from fedflat.report.html import make_report

    figures, tensorboard = (None if folder is None else Path(folder) for folder in (figures, tensorboard))
    paths, more = list_folders(runs), (printed_by_papers, labels, order, style, columns)
    return make_report(paths, Path(out), target, figures, tensorboard, *more)


def printed_by_papers(config: Mapping[str, Any]) -> tuple[str, float] | None:
    """Look a run's configuration up in the papers' tables, which are imported only for data sets that papers use.

    Args:
        config: the content of the run's config.yaml.

    Returns the source and the printed accuracy in percent, None if no table has these settings.
    """
    from fedflat.data.catalogue import DATASETS

    if config.get("dataset") not in DATASETS:
        return None
    from fedflat.reproduce.cells import printed_accuracy

    return printed_accuracy(config)
