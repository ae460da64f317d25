"""Accuracy of personal models: every client fine-tunes the final model of a run on its own data (FedSOL, Table 9).

A client is tested on its own test samples if the data name them, else on test samples with its label mix, and on all
test samples where there are no classes.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.batch import Batch, select_samples
from fedflat.core.method import Message, Method
from fedflat.core.norm_statistics import NormStatistics
from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import ClientStore
from fedflat.data.batches import ClientBatches, StepCounts
from fedflat.data.partition import class_counts, matching_test_rows
from fedflat.engine import ENGINES
from fedflat.engine.rounds import CohortJob, main_metric
from fedflat.errors import NOT_SHOWN, UserError
from fedflat.methods.running_averages import StatisticsMessage, add_statistics
from fedflat.options import Epochs, Positive, check, normalised
from fedflat.personal.knn_per import choose_knn_weight, knn_predictions, label_accuracy, mix_predictions
from fedflat.progress import LogTicker, counting_bar
from fedflat.runs.build_engine import choose_engine
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import TrainedRun, read_trained_run
from fedflat.runs.result import mean_std
from fedflat.runs.threads import choose_threads, restore_threads

CLIENTS_AT_ONCE = 10  # clients whose models are in memory at a time


class ClientModel(NamedTuple):
    """A client's model: its parameters [P] and, if its layers keep some, its running averages."""

    params: Tensor
    statistics: NormStatistics | None = None

    def message(self) -> Any:
        """Return the message of a server that sends this model."""
        message = Message(self.params)
        return message if self.statistics is None else StatisticsMessage(message, self.statistics)


class LocalTrainer:
    """Trains clients of a finished run on their own, with the run's engine and optimiser; nothing is averaged.

    Args:
        run: the run.
        epochs: local epochs of each call of `train`.
        client_rows: the rows of the training data that each client trains on.
        step_counts: how many steps clients take, instead of `epochs` epochs.
    """

    def __init__(
        self, run: TrainedRun, epochs: int, client_rows: Sequence[np.ndarray], step_counts: StepCounts | None = None
    ) -> None:
        shared, experiment = run.built.client_data, run.experiment
        data = dataclasses.replace(shared.dataset, x=shared.x, y=shared.y)  # already on the device
        how = (experiment.batch_size, epochs, shared.spec, shared.y.device, shared.dtype)
        self.client_data = ClientBatches(data, client_rows, *how, step_counts=step_counts)
        engine = choose_engine(experiment, run.built.task, self.client_data.y.device)
        averages = run.built.task.norm_layers and run.built.task.initial_statistics(run.built.initial_params[0])
        self.method = add_statistics(Method(), "server", averages) if averages else Method()
        self.engine = ENGINES[engine](self.method, run.built.task, self.client_data)
        self.experiment = experiment

    def train(
        self, seed: int, round: int, clients: Sequence[int], starts: Sequence[ClientModel], lr: float
    ) -> list[ClientModel]:
        """Return the model of each client after training.

        Args:
            seed: seed of batches and augmentation.
            round: number of the round, which these depend on too.
            clients: the clients to train.
            starts: the model that each of them starts from.
            lr: the learning rate.
        """
        optimiser = self.experiment.optimiser_at(0, starts[0].params)._replace(keeps_state=False)
        optimiser = optimiser._replace(lr=torch.full_like(optimiser.lr, lr))
        weight, states = torch.ones_like(optimiser.lr)[None], ClientStore(self.method.init_client(starts[0].params))
        jobs = [
            CohortJob(seed, round, 0, [client], weight, 1, start.message(), states, optimiser, self.method)
            for client, start in zip(clients, starts, strict=True)
        ]
        replies = ((trained.ends[0], trained.cohort.mean) for trained in self.engine.train(jobs))
        return [ClientModel(end, getattr(reply, "statistics", None)) for end, reply in replies]


def mean_participations(run: TrainedRun) -> int:
    """Return in how many rounds of the run a client took part on average, at least 1."""
    participation = run.built.participation
    return max(1, round(run.rounds * participation.size / participation.population))


def train_local_only(
    run: TrainedRun, trainer: LocalTrainer, seed: int, clients: Sequence[int], start: ClientModel
) -> list[ClientModel]:
    """Return the models that clients learn without federation, with the average client's work in the run.

    Each trains for as many rounds as a client takes part in on average. The learning rates are spread over the run's
    schedule, and the optimiser starts anew in each round.

    Args:
        run: the run.
        trainer: trains for the run's local epochs.
        seed: seed of batches and augmentation.
        clients: the clients to train.
        start: the run's initial model.
    """
    rounds, models = mean_participations(run), [start] * len(clients)
    for r in range(rounds):
        lr = run.experiment.lr_at(r * run.rounds / rounds)
        models = trainer.train(seed, r, clients, models, lr)
    return models


class ClientSamples:
    """The samples of every client of a run: its test samples, and its training rows with a fifth held out.

    `all_rows`, `kept_rows` and `held_out_rows` list each client's rows of the training data.
    """

    def __init__(self, run: TrainedRun) -> None:
        self.client_data, self.all_rows = run.built.client_data, run.built.client_rows
        self._seed, self._has_classes = run.experiment.partition_seed, run.built.task.class_scores
        self._test, self._own_rows = self.client_data.test(), run.built.evaluated_clients.own_test_rows
        self._test_rows = self._own_rows or self._choose_test_rows(run)
        split = [self._hold_out(client) for client in range(len(self.all_rows))]
        self.kept_rows, self.held_out_rows = [kept for kept, _ in split], [held_out for _, held_out in split]

    def _choose_test_rows(self, run: TrainedRun) -> Sequence[np.ndarray]:
        """Return for each client the samples of `_test` on which it is tested."""
        labels, dataset = self._test.y.cpu().numpy(), run.built.dataset
        if not self._has_classes:
            return [np.arange(len(labels))] * len(self.all_rows)
        counts = class_counts(dataset.y.numpy(), self.all_rows, dataset.classes)
        keys = [int(self._key("personal test", client)) for client in range(len(counts))]
        return [matching_test_rows(labels, count, key) for count, key in zip(counts, keys, strict=True)]

    @property
    def tested_on(self) -> str:
        """Which test samples the clients have."""
        if self._own_rows:
            return "their own test samples"
        return "their own label mix" if self._has_classes else "the whole test set"

    def testable(self) -> list[int]:
        """Return the clients that have test samples."""
        return [client for client, rows in enumerate(self._test_rows) if len(rows)]

    def test(self, client: int) -> Batch:
        """Return the client's own test samples, or those that follow its label mix."""
        if self._own_rows:
            return self.client_data.test_samples(torch.from_numpy(self._own_rows[client]))
        rows = torch.from_numpy(self._test_rows[client]).to(self.client_data.y.device)
        return select_samples(self._test, rows)

    def train(self, rows: np.ndarray) -> Batch:
        """Return these rows of the training samples, normalised and without augmentation."""
        return self.client_data.samples(torch.from_numpy(rows))

    def _hold_out(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Split a client's rows at random into kept and held-out ones.

        A fifth is held out, at least one row, and none if the client has only one.
        """
        rows = self.all_rows[client]
        order = hash_words(self._key("held out", client), torch.arange(len(rows))).argsort(stable=True).numpy()
        held_out = max(len(rows) // 5, int(len(rows) > 1))
        return rows[np.sort(order[held_out:])], rows[np.sort(order[:held_out])]

    def _key(self, use: str, client: int) -> Tensor:
        return hash_words(self._seed, purpose_key(use), client)


class AccuracyRow(NamedTuple):
    """One line of the table that `personalise` returns. For tasks without accuracy, its place has their main metric.

    Args:
        scheme: METHOD-FT, METHOD + kNN-Per or local-only.
        epochs: epochs of training on the client's own data.
        accuracy: the mean accuracy over all clients of all seeds.
        std: the standard deviation over them.
        clients: the accuracies, by seed and client.
        metric: the name of the metric.
        tested_on: the clients' test samples: "their own test samples", "their own label mix" or "the whole test set".
    """

    scheme: str
    epochs: int
    accuracy: float
    std: float
    clients: dict[int, dict[int, float]]
    metric: str = "accuracy"
    tested_on: str = "their own label mix"


class ClientAccuracy(NamedTuple):
    """The accuracy, or the task's main metric, of one client's model on the client's test samples."""

    scheme: str
    epochs: int
    seed: int
    client: int
    accuracy: float


@dataclass(frozen=True)
class _FineTuning:
    """The arguments of `personalise` whose ranges are checked."""

    epochs: tuple[Epochs, ...]
    lr: Positive | None


def personalise(
    run: str | Path,
    epochs: Sequence[int] = (1, 5),
    alone: bool = True,
    lr: float | None = None,
    experiment: Experiment | None = None,
) -> list[AccuracyRow]:
    """Fine-tune a run's final model for every client, and measure it on the client's test samples (FedSOL, Table 9).

    These are its own if the data name them, else some with its label mix; without classes all test samples.

    Args:
        run: the folder of a run; of an unfinished one the last checkpoint is used.
        epochs: measure after each of these numbers of epochs; 0, the global model, is always among them.
        alone: whether to add models that clients train without federation, which costs as much as the run.
        lr: the learning rate of fine-tuning; the run's first one by default.
        experiment: the run's experiment, if its data or model were Python objects and config.yaml can only name them.

    Returns one row for each scheme and number of epochs. Raises UserError if the run cannot be used.
    """
    options = normalised(_FineTuning(tuple(epochs), lr))
    check(options)
    if not options.epochs:
        raise UserError("epochs", NOT_SHOWN, "give numbers of epochs, such as 1 5")
    finished = read_trained_run(Path(run), experiment, f"in Python: fedflat.personalise('{run}', experiment=...)")
    accuracies = PersonalAccuracies(finished, sorted({0, *options.epochs}), alone, options.lr)
    with restore_threads():
        torch.set_num_threads(choose_threads(finished.experiment, finished.built))
        rows = _accuracy_rows(list(_with_progress(accuracies)))
    return [row._replace(metric=accuracies.task.metric, tested_on=accuracies.samples.tested_on) for row in rows]


def _with_progress(accuracies: PersonalAccuracies) -> Iterator[ClientAccuracy]:
    """Yield the accuracies, with a progress bar on a terminal and lines in a log."""
    ticker, total = LogTicker(), len(accuracies)
    with counting_bar("personalising", total) as advance:
        for number, each in enumerate(accuracies, 1):
            ticker.tell(f"personalising: {number} of {total}, client {each.client} of seed {each.seed}")
            yield each
            advance()


def _accuracy_rows(accuracies: Sequence[ClientAccuracy]) -> list[AccuracyRow]:
    """Return the lines of the table: schemes in the order of their appearance, then numbers of epochs."""
    table: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    for each in accuracies:
        table.setdefault((each.scheme, each.epochs), {}).setdefault(each.seed, {})[each.client] = each.accuracy
    schemes = list(dict.fromkeys(each.scheme for each in accuracies))
    lines = sorted(table, key=lambda line: (schemes.index(line[0]), line[1]))
    values = {line: [accuracy for seed in table[line].values() for accuracy in seed.values()] for line in lines}
    return [AccuracyRow(*line, *mean_std(values[line]), table[line]) for line in lines]


class PersonalAccuracies:
    """Iterates over the accuracies of all seeds, clients, schemes and epochs; len() is their number.

    Args:
        run: the run.
        stages: the numbers of epochs after which fine-tuned models are measured.
        alone: whether to add local-only training.
        lr: the learning rate of fine-tuning; the run's first one if None.
    """

    def __init__(self, run: TrainedRun, stages: Sequence[int], alone: bool, lr: float | None) -> None:
        self.run, self.stages, self.alone = run, stages, alone
        self.lr = run.experiment.lr if lr is None else lr
        self.task, self.samples = run.built.task, ClientSamples(run)
        self.method_name = type(run.experiment.method).__name__
        self.clients = self.samples.testable()
        if not self.clients:
            problem = "no client has test samples, or classes that occur in the test set; there is nothing to measure"
            raise UserError(None, "personalise", problem)
        self.has_knn = self.task.has_head and self.task.class_scores
        row_sets = [self.samples.all_rows, *([self.samples.kept_rows] if self.has_knn else [])]
        self.tuners = {e: [LocalTrainer(run, e, rows) for rows in row_sets] for e in stages if e}
        counts = run.built.participation.step_counts
        self.local_trainer = LocalTrainer(run, run.experiment.epochs, self.samples.all_rows, counts)

    def __len__(self) -> int:
        per_client = len(self.stages) * (2 if self.has_knn else 1) + self.alone
        return len(self.run.trials) * len(self.clients) * per_client

    def __iter__(self) -> Iterator[ClientAccuracy]:
        built = self.run.built
        initial_params = dict(zip(self.run.experiment.seeds, built.initial_params, strict=True))
        for trial in self.run.trials:
            for first in range(0, len(self.clients), CLIENTS_AT_ONCE):
                clients = self.clients[first : first + CLIENTS_AT_ONCE]
                starts = [
                    ClientModel(self.run.personal(trial, client), self.run.personal_statistics(trial, client))
                    for client in clients
                ]
                for epochs in self.stages:
                    yield from self._fine_tuned(epochs, trial.seed, clients, starts)
                if self.alone:
                    initial = initial_params[trial.seed]
                    averages = built.task.initial_statistics(initial) if built.task.norm_layers else None
                    yield from self._local_only(trial.seed, clients, ClientModel(initial, averages))

    def _fine_tuned(
        self, epochs: int, seed: int, clients: list[int], starts: list[ClientModel]
    ) -> Iterator[ClientAccuracy]:
        """Yield accuracies after fine-tuning (0 epochs: of the global model), without and with kNN-Per."""
        models, *without_held_out = self._tune(epochs, seed, clients, starts)
        yield from self._evaluate(f"{self.method_name}-FT", epochs, seed, clients, models)
        if self.has_knn:
            scheme = f"{self.method_name} + kNN-Per"
            for client, model, partial in zip(clients, models, *without_held_out, strict=True):
                yield ClientAccuracy(scheme, epochs, seed, client, self._knn_accuracy(client, model, partial))

    def _tune(self, epochs: int, seed: int, clients: list[int], starts: list[ClientModel]) -> list[list[ClientModel]]:
        """Return the clients' models after training on all their rows and, for kNN-Per, on the kept rows."""
        if not epochs:
            return [starts, starts]
        round_after_last = self.run.rounds
        return [tuner.train(seed, round_after_last, clients, starts, self.lr) for tuner in self.tuners[epochs]]

    def _local_only(self, seed: int, clients: list[int], initial: ClientModel) -> Iterator[ClientAccuracy]:
        models = train_local_only(self.run, self.local_trainer, seed, clients, initial)
        yield from self._evaluate("local-only", self._local_only_epochs(), seed, clients, models)

    def _local_only_epochs(self) -> int:
        """Return how many epochs the average client trains on its own; rounded, where the run counts steps."""
        data, everyone = self.run.built.client_data, range(len(self.samples.all_rows))
        steps = data.lengths([0] * len(everyone), 0, everyone)
        epochs = [n / data.steps_per_epoch(client) for client, n in zip(everyone, steps, strict=True)]
        return round(mean_participations(self.run) * statistics.fmean(epochs))

    def _evaluate(
        self, scheme: str, epochs: int, seed: int, clients: list[int], models: list[ClientModel]
    ) -> Iterator[ClientAccuracy]:
        for client, model in zip(clients, models, strict=True):
            task = self.task.with_statistics(model.statistics)
            accuracy = main_metric(task, model.params, self.samples.test(client))
            yield ClientAccuracy(scheme, epochs, seed, client, accuracy)

    def _knn_accuracy(self, client: int, model: ClientModel, partial: ClientModel) -> float:
        """Return the accuracy of kNN-Per.

        λ is chosen on the held-out samples with the model `partial`, which was fine-tuned without them; it is 0 if
        there are none. Then `model`, with all of the client's samples in memory, is tested.
        """
        samples, weight, test = self.samples, 0.0, self.samples.test(client)
        if len(samples.held_out_rows[client]):
            kept, held_out = (samples.train(rows[client]) for rows in (samples.kept_rows, samples.held_out_rows))
            weight = choose_knn_weight(*self._knn_predictions(partial, kept, held_out), held_out.y)
        p_knn, p_model = self._knn_predictions(model, samples.train(samples.all_rows[client]), test)
        return label_accuracy(mix_predictions(p_knn, p_model, weight), test.y)

    def _knn_predictions(self, model: ClientModel, memory: Batch, query: Batch) -> tuple[Tensor, Tensor]:
        return knn_predictions(self.task.with_statistics(model.statistics), model.params, memory, query)
