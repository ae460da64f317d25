"""Learning curves, and what they cost in communication."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from fedflat.report.charts import Axis, Curves, Line, band
from fedflat.runs.read import StoredRun, evaluated_on

ROUND = Axis("round")


def learning(runs: Sequence[StoredRun]) -> Iterator[Curves]:
    """Accuracy and loss over the rounds, on the test set or on the validation samples."""
    again = "A line is the mean over seeds, its band one standard deviation to either side."
    high, low = (
        "Higher is better, and so is earlier.",
        "Lower is better; a line ends where the loss of any seed is not finite.",
    )
    samples = f"on the {evaluated_on(runs)} set"
    yield _over_rounds(runs, "accuracy", f"Accuracy {samples}", f"{again} {high}", _accuracy(runs))
    yield _over_rounds(runs, "loss", f"Loss {samples}", f"{again} {low}", Axis("cross entropy"))


def _accuracy(runs: Sequence[StoredRun]) -> Axis:
    return Axis(f"{evaluated_on(runs)} accuracy", "percent")


def _over_rounds(runs: Sequence[StoredRun], key: str, title: str, caption: str, y: Axis) -> Curves:
    return Curves(key, title, caption, ROUND, y, [line(run, n, key) for n, run in enumerate(runs)], smooth=True)


def line(run: StoredRun, number: int, key: str) -> Line:
    """Mean and band over seeds of a run's `key`, in the colour of the number-th run.

    It ends before the first round in which a seed has no finite value: the mean of the others would look better.
    """
    end = min((row["round"] for row in run.rows if row[key] is None), default=math.inf)
    points = [(row["round"], row[key]) for row in run.rows if row["round"] < end]
    found = band(run.name, number, points)
    return _within_one(found) if key == "accuracy" else found


def _within_one(line: Line) -> Line:
    """The line with its band cut to [0, 1]."""
    low, high = ([min(max(edge, 0.0), 1.0) for edge in edges] for edges in (line.low, line.high))
    return dataclasses.replace(line, low=low, high=high)


def communication(runs: Sequence[StoredRun]) -> Iterator[Curves]:
    """Accuracy against everything that was sent so far: cohort x rounds x (bytes down + bytes up)."""
    finished = [_against_bytes(run, number) for number, run in enumerate(runs) if run.result]
    caption = (
        "Bytes sent to and from all clients up to each evaluation, counted on the messages. "
        "At one height, the line furthest to the left is the cheapest way to that accuracy."
    )
    if finished:
        sent = Axis("sent in total", "bytes")
        yield Curves("communication", "What accuracy costs", caption, sent, _accuracy(runs), finished, smooth=True)


def _against_bytes(run: StoredRun, number: int) -> Line:
    assert run.result
    each = run.result.bytes_down_per_client_round + run.result.bytes_up_per_client_round
    found = line(run, number, "accuracy")
    return dataclasses.replace(found, x=[r * each * run.config["cohort"] for r in found.x])
