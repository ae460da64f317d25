"""The result of a run: accuracies per seed and their means, traffic, time and privacy."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import Any, NamedTuple

import numpy as np
import torch

from fedflat.core.method import Method
from fedflat.core.metric import ACCURACY, MainMetric
from fedflat.engine.participation import Participation, cohort_size
from fedflat.errors import UserError
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
    """Return the mean and the sample standard deviation: 0 for one value, infinite if a value is."""
    mean = statistics.fmean(values)
    if not math.isfinite(mean):
        return mean, math.inf if len(values) > 1 else 0.0
    return mean, statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Result:
    """The outcome of an experiment: what result.json contains, and the history in metrics.jsonl.

    Values of the main metric are those on the test set, or on the samples held out for validation; accuracies are
    fractions. Of a seed whose metric was never finite they are infinite: the worst that there is. Lists per seed are in
    the order of `seeds`. In result.json the metric is part of the names: final_accuracy, last10_accuracy_std.

    Attributes:
        method: the method's name.
        seeds: the seeds.
        final_per_seed: the main metric at the last evaluation, per seed.
        final: its mean over seeds.
        final_std: its sample standard deviation over seeds (0 for one seed).
        last10_per_seed: mean of the main metric over the last tenth of the evaluations, per seed.
        last10: its mean over seeds.
        last10_std: its sample standard deviation over seeds.
        rounds: rounds that were trained.
        seconds: time of training and evaluation.
        client_steps_per_second: local steps of all clients and seeds, divided by `seconds`.
        bytes_down_per_client_round: bytes that a client receives in a round.
        bytes_up_per_client_round: bytes that a client sends in a round.
        diverged: whether the loss of any seed became infinite or NaN.
        diverged_seeds: the seeds whose loss did.
        parameters: the number of the model's parameters.
        versions: versions of software, and the hardware, that the result depends on.
        history: one row per evaluation and seed, with round, seed, the task's metrics, the main one first, loss (None
            if it is not finite), seconds, and probes if any measured.
        privacy: what differential privacy guarantees, None if the method does not add it.
        clients: the number of clients, None in results of early versions.
        stopped: why training ended before its last round ("EarlyStopping: no higher accuracy in 10 evaluations"), None
            if it did not, or because every seed diverged.
        clients_asked_per_round: mean number of clients that were sent the model; None if it is the cohort's size.
        clients_replied_per_round: mean number of clients whose replies arrived; None if it is the cohort's size.
        metric: the name of the task's main metric.
        higher_is_better: whether a larger main metric is better.
        training_clients: the main metric of the final models on the training clients' own test samples: the number of
            clients, and over them the mean, the mean of the worst tenth (worst10) and the standard deviation (std),
            each a list with one number for each seed (None if it is not finite). None if clients have no test samples.
        held_out_clients: the same on clients that were held out, of all their samples. None if there are none.
    """

    method: str
    seeds: list[int]
    final_per_seed: list[float]
    final: float
    final_std: float
    last10_per_seed: list[float]
    last10: float
    last10_std: float
    rounds: int
    seconds: float
    client_steps_per_second: float
    bytes_down_per_client_round: int
    bytes_up_per_client_round: int
    diverged: bool
    diverged_seeds: list[int]
    parameters: int
    versions: dict[str, str]
    history: list[dict[str, Any]] = field(repr=False)  # thousands of rows
    privacy: dict[str, Any] | None = None
    clients: int | None = None
    stopped: str | None = None
    clients_asked_per_round: float | None = None
    clients_replied_per_round: float | None = None
    metric: str = "accuracy"
    higher_is_better: bool = True
    training_clients: dict[str, Any] | None = None
    held_out_clients: dict[str, Any] | None = None

    @property
    def accuracy(self) -> float:
        """The final accuracy, as the mean over seeds."""
        if self.metric != "accuracy":
            raise UserError("metric", self.metric, "this task has no accuracy; use result.final")
        return self.final

    @property
    def main_metric(self) -> MainMetric:
        """The name and the direction of the main metric."""
        return MainMetric(self.metric, self.higher_is_better)

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows of a result."""
        cells = {
            "method": self.method,
            self.metric: self._mean_and_std(self.final, self.final_std),
            "last 10 %": self._mean_and_std(self.last10, self.last10_std),
            "rounds": f"{self.rounds}",
            "bytes down": f"{self.bytes_down_per_client_round:,}",
            "bytes up": f"{self.bytes_up_per_client_round:,}",
            "seconds": f"{self.seconds:.1f}",
        }
        headings = "".join(f"<th>{escape(name)}</th>" for name in cells)
        row = "".join(f"<td>{escape(text)}</td>" for text in cells.values())
        return f"<table><tr>{headings}</tr><tr>{row}</tr></table>"

    def _mean_and_std(self, mean: float, std: float) -> str:
        """Return the main metric as text; the mean alone if there is one seed or the mean is infinite."""
        text = self.main_metric.text
        return text(mean) if len(self.seeds) == 1 or not math.isfinite(mean) else f"{text(mean)} ± {text(std)}"

    def to_json(self) -> dict[str, Any]:
        """Return the content of result.json: all fields but the history and special ones that have their default."""
        left_out = {"history", *(name for name in SPECIAL_FIELDS if getattr(self, name) is None)}
        left_out |= {"metric", "higher_is_better"} if self.metric == "accuracy" else set()
        values = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {_name_in_json(name, self.metric): finite_or_none(value) for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], history: list[dict[str, Any]]) -> Result:
        """Return the result of which `to_json` made these values.

        Args:
            values: the content of result.json.
            history: the rows of metrics.jsonl.
        """
        metric = str(values.get("metric", "accuracy"))
        names = {_name_in_json(f.name, metric): f.name for f in fields(cls)}
        known = {names.get(name, name): value for name, value in values.items()}
        worst = MainMetric(metric, bool(values.get("higher_is_better", True))).worst
        for name in (name for name in METRIC_FIELDS if name in known):
            infinite = math.inf if name.endswith("_std") else worst
            known[name] = _none_as(known[name], infinite)
        return cls(**known, history=history)

    def curve(self, seed: int, key: str = "") -> list[float]:
        """Return the values of one seed in the order of evaluation.

        Args:
            seed: the seed.
            key: a key of the rows of `history`, such as loss or seconds; the main metric unless given.
        """
        return [row[key or self.metric] for row in self.history if row["seed"] == seed]

    def first_rounds(self, target: float) -> dict[int, int | None]:
        """Return for each seed the first round with a metric as good as `target`, None if there is none."""
        good = [row for row in self.history if self.main_metric.reached(row[self.metric], target)]
        return {seed: next((row["round"] for row in good if row["seed"] == seed), None) for seed in self.seeds}

    def rounds_to(self, target: float) -> float | None:
        """Return the mean over seeds of the first round with a metric as good as `target`; None if a seed has none."""
        firsts = list(self.first_rounds(target).values())
        return None if None in firsts else statistics.fmean(float(first) for first in firsts if first is not None)


SPECIAL_FIELDS = (  # left out of result.json where they are None
    "privacy",
    "stopped",
    "clients_asked_per_round",
    "clients_replied_per_round",
    "training_clients",
    "held_out_clients",
)
METRIC_FIELDS = ("final_per_seed", "final", "final_std", "last10_per_seed", "last10", "last10_std")


def finite_or_none(value: Any) -> Any:
    """Return a value for JSON, which has no infinite numbers: None in their place, also in a list."""
    if isinstance(value, list):
        return [finite_or_none(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _none_as(value: Any, number: float) -> Any:
    """Return a value of JSON with a number in place of None, also in a list."""
    if isinstance(value, list):
        return [_none_as(each, number) for each in value]
    return number if value is None else value


def _name_in_json(field: str, metric: str) -> str:
    """Return how result.json calls a field: final_std is final_accuracy_std."""
    part, _, rest = field.partition("_")
    return "_".join(filter(None, [part, metric, rest])) if part in ("final", "last10") else field


def summarise_history(history: list[dict[str, Any]], seeds: list[int], metric: MainMetric = ACCURACY) -> dict[str, Any]:
    """Return the fields of Result about the main metric and divergence, from the rows of metrics of all seeds.

    Of a seed whose metric is no longer finite, the last finite values count; of one whose metric never was, the worst
    value that there is, which is infinite. The seed is among `diverged_seeds`.

    Args:
        history: the rows.
        seeds: the seeds.
        metric: the main metric.
    """
    curves = {seed: [row for row in history if row["seed"] == seed] for seed in seeds}
    finite = [[row[metric.name] for row in rows if row[metric.name] is not None] for rows in curves.values()]
    values = [each or [metric.worst] for each in finite]
    final = [each[-1] for each in values]
    tail = [statistics.fmean(each[-math.ceil(len(each) / 10) :]) for each in values]
    never = {seed for seed, each in zip(seeds, finite, strict=True) if not each}
    diverged = [seed for seed, rows in curves.items() if seed in never or any(row["loss"] is None for row in rows)]
    (final_mean, final_std), (tail_mean, tail_std) = mean_std(final), mean_std(tail)
    return {
        "final_per_seed": final,
        "final": final_mean,
        "final_std": final_std,
        "last10_per_seed": tail,
        "last10": tail_mean,
        "last10_std": tail_std,
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
        "threads": str(torch.get_num_threads()),
        "hardware": device if processes == 1 else f"{device}, {processes} processes",
    }


def privacy_of_simulation(
    method: Method, seeds: Sequence[int], rounds: int, participation: Participation
) -> dict[str, Any] | None:
    """Return what differential privacy guarantees after a simulation, None if the method does not add it.

    Seeds choose other cohorts; the guarantee is that of the seed with the largest ε, for the model of one seed. It is
    smaller where cohorts are drawn uniformly from all clients, or by Poisson sampling, and the draw is secret. All
    other cohorts count as known.

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
    numbers = ("epsilon", "epsilon_known_cohorts")  # the former is often the same for all seeds
    return max((each for each in spent if each), key=lambda each: [each[name] or 0.0 for name in numbers], default=None)
