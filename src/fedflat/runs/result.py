"""The result of a run: accuracies per seed and their means, traffic, time and privacy."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fedflat.core.method import Method
from fedflat.engine.participation import Participation, cohort_size
from fedflat.methods.differential_privacy import find_private, privacy_spent


class CostToReach(NamedTuple):
    """What a run needed to reach an accuracy.

    Args:
        rounds: mean over seeds of the first round with that accuracy.
        bytes: what all clients received and sent until then.
        models: the same, in models of 4 bytes per parameter.
    """

    rounds: float
    bytes: float
    models: float


def cost_to_reach(result: Result, cohort: float, target: float) -> CostToReach | None:
    """Return what a complete run needed to reach an accuracy, None if a seed never reached it.

    bytes = rounds · (asked · down + replied · up), with the mean numbers of clients per round. FedGF, Table 4, counts
    models; FedGloSS, Table 5, counts rounds and the bytes as a part of what FedAvg sends in all its rounds.

    Args:
        result: the run's result.
        cohort: clients per round, or their share of all clients.
        target: the accuracy, as a fraction.
    """
    rounds = result.rounds_to(target)
    if rounds is None:
        return None
    sent = rounds * bytes_per_round(result, cohort)
    return CostToReach(rounds, sent, sent / (4 * result.parameters))


def bytes_per_round(result: Result, cohort: float) -> float:
    """Return the bytes that all clients of a round receive and send, on average over the rounds.

    Args:
        result: the run's result.
        cohort: clients per round, or their share of all clients; used unless the result says how many took part.
    """
    size = cohort_size(cohort, result.clients or 1)
    asked = size if result.clients_asked_per_round is None else result.clients_asked_per_round
    replied = size if result.clients_replied_per_round is None else result.clients_replied_per_round
    return asked * result.bytes_down_per_client_round + replied * result.bytes_up_per_client_round


def clients_per_round(participation: Participation, seeds: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return the fields of Result about the numbers of clients; {} if they are the cohort's size in every round."""
    if participation.has_fixed_size or not rounds:
        return {}
    played = [(seed, r) for seed in seeds for r in range(rounds)]
    return {
        "clients_asked_per_round": statistics.fmean(len(participation.chosen(*each)) for each in played),
        "clients_replied_per_round": statistics.fmean(len(participation.replying(*each)) for each in played),
    }


def mean_std(values: list[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (0 for one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Result:
    """The outcome of an experiment: what result.json contains, and the history in metrics.jsonl.

    Accuracies are fractions of the test set, or of the samples held out for validation. Lists per seed are in the order
    of `seeds`.

    Attributes:
        method: the method's name.
        seeds: the seeds.
        final_accuracy_per_seed: accuracy at the last evaluation, per seed.
        final_accuracy: its mean over seeds.
        final_accuracy_std: its sample standard deviation over seeds (0 for one seed).
        last10_accuracy_per_seed: mean accuracy over the last tenth of the evaluations, per seed.
        last10_accuracy: its mean over seeds.
        last10_accuracy_std: its sample standard deviation over seeds.
        rounds: rounds that were trained.
        seconds: time of training and evaluation.
        client_steps_per_second: local steps of all clients and seeds, divided by `seconds`.
        bytes_down_per_client_round: bytes that a client receives in a round.
        bytes_up_per_client_round: bytes that a client sends in a round.
        diverged: whether the loss of any seed became infinite or NaN.
        diverged_seeds: the seeds whose loss did.
        parameters: the number of the model's parameters.
        versions: versions of software, and the hardware, that the result depends on.
        history: one row per evaluation and seed, with round, seed, accuracy, loss (None if it is not finite), seconds,
            and probes if any measured.
        privacy: what differential privacy guarantees, None if the method does not add it.
        clients: the number of clients, None in results of early versions.
        stopped: why training ended before its last round ("EarlyStopping: no higher accuracy in 10 evaluations"), None
            if it did not, or because every seed diverged.
        clients_asked_per_round: mean number of clients that were sent the model; None if it is the cohort's size.
        clients_replied_per_round: mean number of clients whose replies arrived; None if it is the cohort's size.
    """

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
    clients: int | None = None
    stopped: str | None = None
    clients_asked_per_round: float | None = None
    clients_replied_per_round: float | None = None

    @property
    def accuracy(self) -> float:
        """The final accuracy, as the mean over seeds."""
        return self.final_accuracy

    def to_json(self) -> dict[str, Any]:
        """Return the content of result.json: all fields but the history and special ones that are None."""
        special = ("privacy", "stopped", "clients_asked_per_round", "clients_replied_per_round")
        left_out = {"history", *(name for name in special if getattr(self, name) is None)}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def curve(self, seed: int, key: str = "accuracy") -> list[float]:
        """Return the values of one seed in the order of evaluation.

        Args:
            seed: the seed.
            key: a key of the rows of `history`: accuracy, loss or seconds.
        """
        return [row[key] for row in self.history if row["seed"] == seed]

    def rounds_to(self, target: float) -> float | None:
        """Return the mean over seeds of the first round with accuracy `target` or more; None if a seed has none."""
        firsts = [
            next((r["round"] for r in self.history if r["seed"] == seed and r["accuracy"] >= target), None)
            for seed in self.seeds
        ]
        return None if None in firsts else statistics.fmean(float(first) for first in firsts if first is not None)


def summarise_history(history: list[dict[str, Any]], seeds: list[int]) -> dict[str, Any]:
    """Return the fields of Result about accuracy and divergence, computed from the rows of metrics of all seeds."""
    curves = {seed: [row for row in history if row["seed"] == seed] for seed in seeds}
    final = [rows[-1]["accuracy"] for rows in curves.values()]
    tail = [statistics.fmean(r["accuracy"] for r in rows[-math.ceil(len(rows) / 10) :]) for rows in curves.values()]
    diverged = [seed for seed, rows in curves.items() if any(row["loss"] is None for row in rows)]
    (final_mean, final_std), (tail_mean, tail_std) = mean_std(final), mean_std(tail)
    return {
        "final_accuracy_per_seed": final,
        "final_accuracy": final_mean,
        "final_accuracy_std": final_std,
        "last10_accuracy_per_seed": tail,
        "last10_accuracy": tail_mean,
        "last10_accuracy_std": tail_std,
        "diverged": bool(diverged),
        "diverged_seeds": diverged,
    }


def software_versions(processes: int = 1) -> dict[str, str]:
    """Return the versions of software and the hardware, on which a result depends besides the configuration."""
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
    method: Method, seeds: Sequence[int], rounds: int, participation: Participation
) -> dict[str, Any] | None:
    """Return what differential privacy guarantees after a simulation, None if the method does not add it.

    Seeds choose other cohorts; the guarantee is that of the seed with the largest ε. It is smaller where cohorts are
    drawn uniformly from all clients, or by Poisson sampling, and the draw is secret. All other cohorts count as known.

    Args:
        method: the method.
        seeds: the seeds.
        rounds: rounds that were trained.
        participation: who took part.
    """
    if find_private(method) is None:
        return None
    cohorts = [[participation.replying(seed, r) for r in range(rounds)] for seed in seeds]
    uniform = participation.sampling == "uniform" and participation.availability is None
    known = (participation.population, uniform, participation.expected_size)
    spent = [privacy_spent(method, each, *known) for each in cohorts]
    return max((each for each in spent if each), key=lambda each: each["epsilon"] or 0.0, default=None)
