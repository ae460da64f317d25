"""What a run leaves: numbers per seed and their means."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
import numpy as np
import torch
from typing import NamedTuple
from fedflat.core.method import Method
from fedflat.engine.rounds import choose_cohort
from fedflat.methods.differential_privacy import find_private, privacy_spent



class CostToReach(NamedTuple):
    """The way to an accuracy: rounds, bytes down and up of all clients, and the same in models of 4-byte parameters."""

    rounds: float
    bytes: float
    models: float


def cost_to_reach(result: Result, cohort: int, target: float) -> CostToReach | None:
    """What a finished run of `cohort` clients a round needed to reach `target`; None where a seed never did.

    rounds = mean over seeds of the first evaluated round with that accuracy, bytes = rounds · cohort · (down + up)
    (FedGF, Table 4, counts models; FedGloSS, Table 5, rounds and the part of what FedAvg sends in all its rounds)
    """
    rounds = result.rounds_to(target)
    if rounds is None:
        return None
    sent = rounds * bytes_per_round(result, cohort)
    return CostToReach(rounds, sent, sent / (4 * result.parameters))


def bytes_per_round(result: Result, cohort: int) -> int:
    """Down and up, of all clients of a round."""
    return cohort * (result.bytes_down_per_client_round + result.bytes_up_per_client_round)


def mean_std(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Result:
    """Outcome of one experiment. Accuracies are fractions of the test set; `history` are the rows of metrics.jsonl."""

    method: str
    seeds: list[int]
    final_accuracy_per_seed: list[float]
    final_accuracy: float
    final_accuracy_std: float
    last10_accuracy_per_seed: list[float]
    last10_accuracy: float
    last10_accuracy_std: float
    rounds: int
    seconds: float
    client_steps_per_second: float
    bytes_down_per_client_round: int
    bytes_up_per_client_round: int
    diverged: bool
    diverged_seeds: list[int]
    parameters: int
    versions: dict[str, str]
    history: list[dict[str, Any]]
    privacy: dict[str, Any] | None = None
    clients: int | None = None  # None in results of versions that did not count them

    @property
    def accuracy(self) -> float:
        """Mean over seeds of the final accuracy."""
        return self.final_accuracy

    def to_json(self) -> dict[str, Any]:
        """Everything but the history, which metrics.jsonl holds, and privacy, where none was asked for."""
        left_out = {"history"} | ({"privacy"} if self.privacy is None else set())
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def curve(self, seed: int, key: str = "accuracy") -> list[float]:
        """One seed's values in the order of evaluation."""
        return [row[key] for row in self.history if row["seed"] == seed]

    def rounds_to(self, target: float) -> float | None:
        """Mean over seeds of the first round whose accuracy is `target` or more; None if a seed never gets there."""
        firsts = [
            next((r["round"] for r in self.history if r["seed"] == seed and r["accuracy"] >= target), None)
            for seed in self.seeds
        ]
        return None if None in firsts else statistics.fmean(float(first) for first in firsts if first is not None)


def summarise_history(history: list[dict[str, Any]], seeds: list[int]) -> dict[str, Any]:
    """Accuracies and divergence from the metrics of all seeds."""
    curves = {seed: [row for row in history if row["seed"] == seed] for seed in seeds}
    final = [rows[-1]["accuracy"] for rows in curves.values()]
    tail = [statistics.fmean(r["accuracy"] for r in rows[-math.ceil(len(rows) / 10) :]) for rows in curves.values()]
    lost = [seed for seed, rows in curves.items() if any(row["loss"] is None for row in rows)]
    (final_mean, final_std), (tail_mean, tail_std) = mean_std(final), mean_std(tail)
    return {
        "final_accuracy_per_seed": final,
        "final_accuracy": final_mean,
        "final_accuracy_std": final_std,
        "last10_accuracy_per_seed": tail,
        "last10_accuracy": tail_mean,
        "last10_accuracy_std": tail_std,
        "diverged": bool(lost),
        "diverged_seeds": lost,
    }


def software_versions(processes: int = 1) -> dict[str, str]:
    """What a result depends on besides the configuration."""
    from fedflat import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "fedflat": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "hardware": device if processes == 1 else f"{device}, {processes} processes",
    }


def privacy_of_simulation(
    method: Method, seeds: Sequence[int], rounds: int, population: int, size: int
) -> dict[str, Any] | None:
    """What a simulation has spent: that of the seed with the busiest client."""
    if find_private(method) is None:
        return None
    cohorts = [[choose_cohort(seed, r, population, size) for r in range(rounds)] for seed in seeds]
    found = [privacy_spent(method, each, population, sampled=True) for each in cohorts]
    return max((each for each in found if each), key=lambda each: each["epsilon"] or 0.0, default=None)
