"""Accuracy of personal models, client by client (FedSOL's Table 9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from torch import Tensor

from fedflat.engine.rounds import evaluate
from fedflat.errors import UserError
from fedflat.options import Epochs, Positive, check, settled
from fedflat.personal.alone import Alone, local_only, rounds_alone
from fedflat.personal.neighbours import accuracy, choose_weight, mix, predictions
from fedflat.personal.samples import Samples
from fedflat.progress import LogTicker
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import TrainedRun, read_trained_run_for
from fedflat.runs.result import mean_std

TOGETHER = 10  # clients whose models are held at a time


class Row(NamedTuple):
    """One line of the table: mean and standard deviation over all clients of all seeds, and the values themselves."""

    scheme: str
    epochs: int
    accuracy: float
    std: float
    clients: dict[int, dict[int, float]]  # accuracies by seed and client


class Measured(NamedTuple):
    """One client's accuracy."""

    scheme: str
    epochs: int
    seed: int
    client: int
    accuracy: float


@dataclass(frozen=True)
class _Options:
    """What fine-tuning may be told."""

    epochs: tuple[Epochs, ...]
    lr: Positive | None


def personalise(
    run: str | Path,
    epochs: Sequence[int] = (1, 5),
    alone: bool = True,
    lr: float | None = None,
    experiment: Experiment | None = None,
) -> list[Row]:
    """Accuracies after each of `epochs` of fine-tuning from the final model of the run in folder `run`.

    `alone` adds local-only training; `lr` is the learning rate of fine-tuning, the run's first one unless given;
    `experiment` stands in where the run's data or model are objects that its config.yaml cannot name.
    """
    options = settled(_Options(tuple(epochs), lr))
    check(options)
    if not options.epochs:
        raise UserError("--epochs: give numbers of epochs, such as 1 5")
    finished = read_trained_run_for("personalise", Path(run), experiment)
    measuring = Measuring(finished, sorted({0, *options.epochs}), alone, options.lr)
    console = Console(stderr=True)
    bar = track(measuring, "personalising", console=console, disable=not console.is_terminal, transient=True)
    return _rows(list(_told(bar, len(measuring))))


def _told(measured: Iterable[Measured], total: int) -> Iterator[Measured]:
    """The same, with lines where there is no terminal for the bar."""
    pulse = LogTicker()
    for number, each in enumerate(measured, 1):
        pulse.tell(f"personalising: {number} of {total}, client {each.client} of seed {each.seed}")
        yield each


def _rows(measured: Sequence[Measured]) -> list[Row]:
    """The table: schemes in the order in which they appear, then epochs."""
    table: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    for m in measured:
        table.setdefault((m.scheme, m.epochs), {}).setdefault(m.seed, {})[m.client] = m.accuracy
    schemes = list(dict.fromkeys(m.scheme for m in measured))
    lines = sorted(table, key=lambda line: (schemes.index(line[0]), line[1]))
    values = {line: [a for seed in table[line].values() for a in seed.values()] for line in lines}
    return [Row(*line, *mean_std(values[line]), table[line]) for line in lines]


class Measuring:
    """Goes through seeds, clients, schemes and epochs, a few clients at a time."""

    def __init__(self, run: TrainedRun, stages: Sequence[int], alone: bool, lr: float | None) -> None:
        self.run, self.stages, self.alone = run, stages, alone
        self.lr = run.experiment.lr if lr is None else lr
        self.task, self.samples = run.assembly.task, Samples(run)
        self.name = type(run.experiment.method).__name__
        self.clients = self.samples.testable()
        if not self.clients:
            raise UserError("personalise: no client's classes occur in the test set; there is nothing to measure")
        feeds = (self.samples.all, self.samples.kept) if self.task.has_head else (self.samples.all,)
        self.tuners = {e: [Alone(run, e, parts) for parts in feeds] for e in stages if e}
        self.single = Alone(run, run.experiment.local_epochs, self.samples.all)

    def __len__(self) -> int:
        each = len(self.stages) * (2 if self.task.has_head else 1) + self.alone
        return len(self.run.trials) * len(self.clients) * each

    def __iter__(self) -> Iterator[Measured]:
        starts_of = dict(zip(self.run.experiment.seeds, self.run.assembly.starts, strict=True))
        for trial in self.run.trials:
            for first in range(0, len(self.clients), TOGETHER):
                some = self.clients[first : first + TOGETHER]
                starts = [self.run.personal(trial, client) for client in some]
                for epochs in self.stages:
                    yield from self._fine_tuned(epochs, trial.seed, some, starts)
                if self.alone:
                    yield from self._local_only(trial.seed, some, starts_of[trial.seed])

    def _fine_tuned(self, epochs: int, seed: int, some: list[int], starts: list[Tensor]) -> Iterator[Measured]:
        """Fine-tuned models (after 0 epochs: the global one), without and with neighbours."""
        models, *partial = self._tune(epochs, seed, some, starts)
        yield from self._plain(f"{self.name}-FT", epochs, seed, some, models)
        if self.task.has_head:
            for client, w, v in zip(some, models, *partial, strict=True):
                yield Measured(f"{self.name} + kNN-Per", epochs, seed, client, self._neighbours(client, w, v))

    def _tune(self, epochs: int, seed: int, some: list[int], starts: list[Tensor]) -> list[list[Tensor]]:
        """The clients' models after training on all they have and, for kNN-Per, without what they hold out."""
        if not epochs:
            return [starts, starts]
        after_the_last = self.run.experiment.rounds
        return [tuner.train(seed, after_the_last, some, starts, self.lr) for tuner in self.tuners[epochs]]

    def _local_only(self, seed: int, some: list[int], initial: Tensor) -> Iterator[Measured]:
        models = local_only(self.run, self.single, seed, some, initial)
        epochs = rounds_alone(self.run) * self.run.experiment.local_epochs
        yield from self._plain("local-only", epochs, seed, some, models)

    def _plain(self, scheme: str, epochs: int, seed: int, some: list[int], models: list[Tensor]) -> Iterator[Measured]:
        for client, w in zip(some, models, strict=True):
            share = evaluate(self.task, w, self.samples.test(client))[1]
            yield Measured(scheme, epochs, seed, client, share)

    def _neighbours(self, client: int, w: Tensor, partial: Tensor) -> float:
        """kNN-Per with λ from held-out samples (0 where there are none), then with all samples in memory."""
        samples, weight, test = self.samples, 0.0, self.samples.test(client)
        if len(samples.held[client]):
            kept, held = (samples.train(rows[client]) for rows in (samples.kept, samples.held))
            weight = choose_weight(*predictions(self.task, partial, kept, held), held.y)
        found, model = predictions(self.task, w, samples.train(samples.all[client]), test)
        return accuracy(mix(found, model, weight), test.y)
