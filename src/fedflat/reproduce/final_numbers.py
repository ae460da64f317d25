"""Numbers of a finished run: accuracies, the last values of probes, flatness and personalised accuracy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fedflat.errors import UserError
from fedflat.reproduce.cells import ANALYSIS_NUMBERS, PERSONAL_SCHEMES
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import Result

Device = Literal["auto", "cpu", "cuda"]
SeedNumbers = dict[int, dict[str, float | None]]  # by seed and measure
CURVE_POINTS = 50  # the most that are stored of a curve


def accuracy_numbers(result: Result, seed: int, experiment: Experiment) -> dict[str, float | None]:
    """Return accuracies in percent and the last values of probes.

    "final" is the accuracy in the last round, "last50" and "last100" the mean over the last 50 and 100 rounds, "half"
    the mean over the 100 rounds before half of them. Training ends early when all models have diverged; the last
    accuracy then stands for the rounds that would follow.
    """
    rows = [row for row in result.history if row["seed"] == seed]
    accuracies, last = {row["round"]: row["accuracy"] for row in rows}, rows[-1]["accuracy"]
    end = experiment.rounds
    accuracies |= {r: last for r in range(rows[-1]["round"] + 1, end + 1) if experiment.evaluates(r)}
    return {
        "final": _percent([last]),
        "last50": _percent([accuracy for r, accuracy in accuracies.items() if end - 50 < r]),
        "last100": _percent([accuracy for r, accuracy in accuracies.items() if end - 100 < r]),
        "half": _percent([accuracy for r, accuracy in accuracies.items() if end // 2 - 100 < r <= end // 2]),
        **_last_probe_values(rows),
    }


def _last_probe_values(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return what probes measured last; of a list (such as accuracies by class), the lowest value."""
    last: dict[str, Any] = next((row["probes"] for row in reversed(rows) if "probes" in row), {})
    lists = {name: [v for v in values if v is not None] for name, values in last.items() if isinstance(values, list)}
    return {**last, **{name: min(values, default=None) for name, values in lists.items()}}


def _percent(values: Sequence[float]) -> float | None:
    return round(100 * sum(values) / len(values), 4) if values else None


def thinned_curve(result: Result, seed: int) -> list[list[float]]:
    """Return pairs of round and accuracy, at most CURVE_POINTS, evenly spaced and ending with the last round."""
    rows = [row for row in result.history if row["seed"] == seed]
    every = -(-len(rows) // CURVE_POINTS)
    return [[row["round"], round(100 * row["accuracy"], 2)] for row in rows[::-1][::every]][::-1]


def final_model_numbers(folder: Path, measures: Collection[str], seeds: Iterable[int], device: Device) -> SeedNumbers:
    """Measure flatness and personalised accuracy of a run's final models.

    Args:
        folder: the run folder.
        measures: keys of ANALYSIS_NUMBERS, and PERSONAL_SCHEMES with epochs (tuned-5).
        seeds: the run's seeds.
        device: where curvature is computed.

    Returns a number for each seed and measure, None where a model cannot be measured.
    """
    numbers: SeedNumbers = {seed: dict.fromkeys(sorted(measures)) for seed in seeds}
    with suppress(UserError):  # models that diverged have no curvature
        if flatness := [m for m in measures if m in ANALYSIS_NUMBERS]:
            _measure_flatness(folder, flatness, device, numbers)
        if personal := [m for m in measures if m not in ANALYSIS_NUMBERS]:
            _measure_personal(folder, personal, numbers)
    return numbers


def _measure_flatness(folder: Path, measures: Collection[str], device: Device, numbers: SeedNumbers) -> None:
    """λ1 is computed by power iteration, as in FedGloSS, unless λ5 is wanted too."""
    from fedflat.flatness.analyse import analyse
    from fedflat.flatness.finished_run import AnalysisSettings

    what: Any = tuple(dict.fromkeys(ANALYSIS_NUMBERS[m][0] for m in measures))
    five = "ratio" in measures
    settings = AnalysisSettings(
        what=what, solver="lanczos" if five else "power", top=5 if five else 1, probes=2, device=device
    )
    (documents,) = analyse([folder], settings).documents.values()
    for measure in measures:
        document, number = ANALYSIS_NUMBERS[measure]
        for seed, values in documents.get(document, {}).get("seeds", {}).items():
            numbers[int(seed)][measure] = values[number]


def _measure_personal(folder: Path, measures: Collection[str], numbers: SeedNumbers) -> None:
    """The number is the mean accuracy over the clients, in percent."""
    from fedflat.personal.fine_tuning import personalise

    rows = personalise(folder, epochs=(1, 5), alone="alone" in measures)
    for measure in measures:
        scheme, _, epochs = measure.partition("-")
        for row in rows:
            if PERSONAL_SCHEMES[scheme] in row.scheme and epochs in ("", str(row.epochs)):
                for seed, clients in row.clients.items():
                    numbers[seed][measure] = 100 * sum(clients.values()) / len(clients)
