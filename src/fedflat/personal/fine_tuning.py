"""Accuracy of personal models, client by client, after fine-tuning the global model (FedSOL, Table 9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from fedflat.core.local_training import SGD
from fedflat.core.method import Message, Method
from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import ClientStore
from fedflat.core.task import Batch
from fedflat.data.augment import normalise
from fedflat.data.batches import ClientBatches
from fedflat.data.partition import class_counts, matching_test_rows
from fedflat.engine import ENGINES
from fedflat.engine.rounds import CohortJob, evaluate
from fedflat.errors import UserError
from fedflat.options import Epochs, Positive, check, settled
from fedflat.personal.knn_per import choose_knn_weight, knn_predictions, label_accuracy, mix_predictions
from fedflat.progress import LogTicker
from fedflat.runs.build import choose_engine
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import TrainedRun, read_trained_run_for
from fedflat.runs.result import mean_std


class LocalTrainer:
    """Trains clients of a finished run for some epochs on `parts`, with the run's engine and optimiser."""

    def __init__(self, run: TrainedRun, epochs: int, parts: Sequence[np.ndarray]) -> None:
        here, experiment = run.assembly.feed, run.experiment
        data = dataclasses.replace(here.dataset, x=here.x, y=here.y)  # already on the device
        self.feed = ClientBatches(data, parts, experiment.batch_size, epochs, here.spec, here.y.device, here.dtype)
        engine = choose_engine(experiment, run.assembly.task, self.feed.y.device)
        self.engine = ENGINES[engine](Method(), run.assembly.task, self.feed)
        self.experiment = experiment

    def train(self, seed: int, round: int, clients: Sequence[int], starts: Sequence[Tensor], lr: float) -> list[Tensor]:
        """Where each client ends; seed and round number the randomness."""
        rate = torch.tensor(lr, dtype=self.feed.dtype, device=self.feed.y.device)
        sgd = SGD(rate, self.experiment.momentum, self.experiment.weight_decay)
        one, nothing = torch.ones_like(rate)[None], ClientStore(())
        jobs = [
            CohortJob(seed, round, 0, [client], one, 1, Message(start), nothing, sgd)
            for client, start in zip(clients, starts, strict=True)
        ]
        return [done.ends[0] for done in self.engine.train(jobs)]


def mean_participations(run: TrainedRun) -> int:
    """In how many rounds of the run a client took part on average."""
    experiment = run.experiment
    return max(1, round(experiment.rounds * experiment.cohort / len(run.assembly.parts)))


def train_local_only(
    run: TrainedRun, alone: LocalTrainer, seed: int, clients: Sequence[int], start: Tensor
) -> list[Tensor]:
    """What each client learns from its own data with the average client's share of the run's work.

    As many rounds as it would have taken part in, from the run's initial model; learning rates are spread over the
    run's schedule and momentum starts anew in each round, as in the run.
    """
    rounds, models = mean_participations(run), [start] * len(clients)
    for r in range(rounds):
        lr = run.experiment.lr * run.experiment.lr_decay ** (r * run.experiment.rounds / rounds)
        models = alone.train(seed, r, clients, models, lr)
    return models


class ClientSamples:
    """The samples of every client of a run: rows of training and of test data."""

    def __init__(self, run: TrainedRun) -> None:
        self.feed, self.all, self._seed = run.assembly.feed, run.assembly.parts, run.experiment.partition_seed
        data = run.assembly.dataset
        self._test = self.feed.test()
        self._labels = self._test.y.cpu().numpy()
        mixes = class_counts(data.y.numpy(), self.all, data.classes)
        self._aligned = [self._test_rows(client, mix) for client, mix in enumerate(mixes)]
        split = [self._hold_out(client) for client in range(len(self.all))]
        self.kept, self.held = [kept for kept, _ in split], [held for _, held in split]

    def testable(self) -> list[int]:
        """Clients whose classes occur in the test set."""
        return [client for client, rows in enumerate(self._aligned) if len(rows)]

    def test(self, client: int) -> Batch:
        """Test samples that follow the client's label mix."""
        pick = torch.from_numpy(self._aligned[client]).to(self.feed.y.device)
        return Batch(self._test.x[pick], self._test.y[pick], self._test.mask[pick], None)

    def train(self, rows: np.ndarray) -> Batch:
        """Training samples as they are, without augmentation."""
        data, pick = self.feed.dataset, torch.from_numpy(rows).to(self.feed.y.device)
        x = normalise(self.feed.x[pick], data.mean, data.std, self.feed.dtype)
        return Batch(x, self.feed.y[pick], torch.ones_like(pick, dtype=torch.bool), None)

    def _test_rows(self, client: int, mix: np.ndarray) -> np.ndarray:
        return matching_test_rows(self._labels, mix, int(self._key("personal test", client)))

    def _hold_out(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """The client's rows without and with a random fifth of them, which is one row at least unless that is all."""
        rows = self.all[client]
        order = hash_words(self._key("held out", client), torch.arange(len(rows))).argsort(stable=True).numpy()
        held = max(len(rows) // 5, int(len(rows) > 1))
        return rows[np.sort(order[held:])], rows[np.sort(order[:held])]

    def _key(self, use: str, client: int) -> Tensor:
        return hash_words(self._seed, purpose_key(use), client)


CLIENTS_AT_ONCE = 10  # clients whose models are held at a time


class AccuracyRow(NamedTuple):
    """One line of the table: mean and standard deviation over all clients of all seeds, and the values themselves."""

    scheme: str
    epochs: int
    accuracy: float
    std: float
    clients: dict[int, dict[int, float]]  # accuracies by seed and client


class ClientAccuracy(NamedTuple):
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
) -> list[AccuracyRow]:
    """Accuracies after each of `epochs` of fine-tuning from the final model of the run in folder `run`.

    `alone` adds local-only training; `lr` is the learning rate of fine-tuning, the run's first one unless given;
    `experiment` stands in where the run's data or model are objects that its config.yaml cannot name.
    """
    options = settled(_Options(tuple(epochs), lr))
    check(options)
    if not options.epochs:
        raise UserError("--epochs: give numbers of epochs, such as 1 5")
    finished = read_trained_run_for("personalise", Path(run), experiment)
    measuring = PersonalAccuracies(finished, sorted({0, *options.epochs}), alone, options.lr)
    console = Console(stderr=True)
    bar = track(measuring, "personalising", console=console, disable=not console.is_terminal, transient=True)
    return _rows(list(_with_log_lines(bar, len(measuring))))


def _with_log_lines(measured: Iterable[ClientAccuracy], total: int) -> Iterator[ClientAccuracy]:
    """The same, with lines where there is no terminal for the bar."""
    pulse = LogTicker()
    for number, each in enumerate(measured, 1):
        pulse.tell(f"personalising: {number} of {total}, client {each.client} of seed {each.seed}")
        yield each


def _rows(measured: Sequence[ClientAccuracy]) -> list[AccuracyRow]:
    """The table: schemes in the order in which they appear, then epochs."""
    table: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    for m in measured:
        table.setdefault((m.scheme, m.epochs), {}).setdefault(m.seed, {})[m.client] = m.accuracy
    schemes = list(dict.fromkeys(m.scheme for m in measured))
    lines = sorted(table, key=lambda line: (schemes.index(line[0]), line[1]))
    values = {line: [a for seed in table[line].values() for a in seed.values()] for line in lines}
    return [AccuracyRow(*line, *mean_std(values[line]), table[line]) for line in lines]


class PersonalAccuracies:
    """Goes through seeds, clients, schemes and epochs, a few clients at a time."""

    def __init__(self, run: TrainedRun, stages: Sequence[int], alone: bool, lr: float | None) -> None:
        self.run, self.stages, self.alone = run, stages, alone
        self.lr = run.experiment.lr if lr is None else lr
        self.task, self.samples = run.assembly.task, ClientSamples(run)
        self.name = type(run.experiment.method).__name__
        self.clients = self.samples.testable()
        if not self.clients:
            raise UserError("personalise: no client's classes occur in the test set; there is nothing to measure")
        feeds = (self.samples.all, self.samples.kept) if self.task.has_head else (self.samples.all,)
        self.tuners = {e: [LocalTrainer(run, e, parts) for parts in feeds] for e in stages if e}
        self.single = LocalTrainer(run, run.experiment.local_epochs, self.samples.all)

    def __len__(self) -> int:
        each = len(self.stages) * (2 if self.task.has_head else 1) + self.alone
        return len(self.run.trials) * len(self.clients) * each

    def __iter__(self) -> Iterator[ClientAccuracy]:
        starts_of = dict(zip(self.run.experiment.seeds, self.run.assembly.starts, strict=True))
        for trial in self.run.trials:
            for first in range(0, len(self.clients), CLIENTS_AT_ONCE):
                some = self.clients[first : first + CLIENTS_AT_ONCE]
                starts = [self.run.personal(trial, client) for client in some]
                for epochs in self.stages:
                    yield from self._fine_tuned(epochs, trial.seed, some, starts)
                if self.alone:
                    yield from self._local_only(trial.seed, some, starts_of[trial.seed])

    def _fine_tuned(self, epochs: int, seed: int, some: list[int], starts: list[Tensor]) -> Iterator[ClientAccuracy]:
        """Fine-tuned models (after 0 epochs: the global one), without and with neighbours."""
        models, *partial = self._tune(epochs, seed, some, starts)
        yield from self._plain(f"{self.name}-FT", epochs, seed, some, models)
        if self.task.has_head:
            for client, w, v in zip(some, models, *partial, strict=True):
                yield ClientAccuracy(f"{self.name} + kNN-Per", epochs, seed, client, self._neighbours(client, w, v))

    def _tune(self, epochs: int, seed: int, some: list[int], starts: list[Tensor]) -> list[list[Tensor]]:
        """The clients' models after training on all they have and, for kNN-Per, without what they hold out."""
        if not epochs:
            return [starts, starts]
        after_the_last = self.run.experiment.rounds
        return [tuner.train(seed, after_the_last, some, starts, self.lr) for tuner in self.tuners[epochs]]

    def _local_only(self, seed: int, some: list[int], initial: Tensor) -> Iterator[ClientAccuracy]:
        models = train_local_only(self.run, self.single, seed, some, initial)
        epochs = mean_participations(self.run) * self.run.experiment.local_epochs
        yield from self._plain("local-only", epochs, seed, some, models)

    def _plain(
        self, scheme: str, epochs: int, seed: int, some: list[int], models: list[Tensor]
    ) -> Iterator[ClientAccuracy]:
        for client, w in zip(some, models, strict=True):
            share = evaluate(self.task, w, self.samples.test(client))[1]
            yield ClientAccuracy(scheme, epochs, seed, client, share)

    def _neighbours(self, client: int, w: Tensor, partial: Tensor) -> float:
        """kNN-Per with λ from held-out samples (0 where there are none), then with all samples in memory."""
        samples, weight, test = self.samples, 0.0, self.samples.test(client)
        if len(samples.held[client]):
            kept, held = (samples.train(rows[client]) for rows in (samples.kept, samples.held))
            weight = choose_knn_weight(*knn_predictions(self.task, partial, kept, held), held.y)
        found, model = knn_predictions(self.task, w, samples.train(samples.all[client]), test)
        return label_accuracy(mix_predictions(found, model, weight), test.y)
