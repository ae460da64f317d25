"""One round of federated learning, and what it asks of an engine.

A round goes through these steps:

    1. Participation   the clients that take part and reply (participation.py)
    2. cohort_jobs     the server broadcasts a message; one CohortJob describes the local training of one cohort
    3. train_cohorts   the clients train; the engine averages their replies and stores their new states
    4. update_servers  the server updates its state from the averages; without replies it stays as it is

Steps 2 to 4 are one *exchange*. Most methods have one exchange in a round, some have two (`Method.exchanges`).
`play_round` runs all exchanges of a round.

A run with several seeds trains one *trial* per seed. The trials know nothing of each other, but an engine receives the
jobs of all of them together, so that it can train their clients side by side.

Nothing in this file depends on the method (fedflat.methods) or on the engine (sequential.py, batched.py,
distributed.py). The last part of the file evaluates models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedflat.core.batch import Batch, split_batch
from fedflat.core.local_training import example_messages, initial_client_state
from fedflat.core.method import Cohort, Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.output_check import compute_metrics
from fedflat.core.state import ClientStore, pack_state, tree_map, unpack_state
from fedflat.core.task import Task
from fedflat.engine.aggregation import PLAIN_MEANS, Aggregation
from fedflat.engine.attacks import ReplyAttack
from fedflat.engine.kernels import use_lane_ops
from fedflat.methods.differential_privacy import find_private


class Trial:
    """One seed of a run: everything that changes while it is trained.

    `server` is the server's state (with the global model in `server.params`), `clients` stores the clients' states.

    Args:
        seed: the seed.
        method: the method, which says what server and clients keep.
        params: the initial model, a vector of P parameters.
        state_device: where the clients' states are stored; None stands for the device of `params`.
        clients: the number of clients, if it is known; it limits the size of the store.
        optimiser: the clients' optimiser, whose state they may keep; they keep the method's alone if None.
    """

    def __init__(
        self,
        seed: int,
        method: Method,
        params: Tensor,
        state_device: torch.device | None = None,
        clients: int | None = None,
        optimiser: Optimiser | None = None,
    ) -> None:
        self.seed = seed
        self.server = method.init_server(params)
        initial = initial_client_state(method, optimiser, params) if optimiser else method.init_client(params)
        self.clients = ClientStore(initial, state_device, clients)

    def pack(self) -> dict[str, Tensor]:
        """Return the trial as named tensors, for a checkpoint: `server.…` and `clients.…`."""
        server = {f"server.{name}": tensor for name, tensor in pack_state(self.server).items()}
        return server | {f"clients.{name}": tensor for name, tensor in self.clients.pack().items()}

    def unpack(self, named: Mapping[str, Tensor]) -> None:
        """Restore the trial from what `pack` returned."""
        parts: dict[str, dict[str, Tensor]] = {"server": {}, "clients": {}}
        for name, tensor in named.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        device = self.server.params.device
        self.server = unpack_state(self.server, {name: tensor.to(device) for name, tensor in parts["server"].items()})
        self.clients.unpack(parts["clients"])


class ClientStates(Protocol):
    """The clients' states, as engines read and write them.

    `initial` is the state of a client that has never taken part.
    """

    initial: Any

    def gather(self, clients: Sequence[int]) -> Any:
        """Return the states of `clients`, stacked along a new first axis."""
        ...

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store the stacked `states` of `clients`."""
        ...


class CohortJob(NamedTuple):
    """The local training of one trial's cohort in one exchange: what an engine is asked to do.

    Args:
        seed: the trial's seed, on which the batches depend.
        round: the number of the round, from 0.
        exchange: the number of the exchange in the round, from 0.
        clients: the numbers of the clients in the cohort.
        weights: their weights in the average [clients], not normalised.
        population: the number of all clients.
        message: what the server broadcasts; `message.params` is the model at which local training starts.
        states: the states of all clients of the trial.
        optimiser: the clients' optimiser in this round.
        method: the method of the trial.
        expected_size: the mean number of clients in a round, under Poisson sampling.
        aggregation: how the replies are averaged.
        attack: what attackers among the clients do to their replies, None for nothing.
    """

    seed: int
    round: int
    exchange: int
    clients: Sequence[int]
    weights: Tensor
    population: int
    message: Any
    states: ClientStates
    optimiser: Optimiser
    method: Method
    expected_size: int | None = None
    aggregation: Aggregation = PLAIN_MEANS
    attack: ReplyAttack | None = None


class TrainedCohort(NamedTuple):
    """The outcome of a CohortJob.

    Args:
        cohort: the averages of the clients' replies, from which the server updates its state.
        ends: the models at the end of local training [clients, P], for measurements only.
    """

    cohort: Cohort
    ends: Tensor


class Engine(Protocol):
    """Trains the clients of several trials (one per seed) and stores their new states."""

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Choose internal sizes before the first round.

        Args:
            rounds: for some of the coming rounds, the number of local steps of each client, all trials together.
        """
        ...

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Train the clients of all `jobs` (one per trial, all of the same round and exchange) and store their states.

        Every job has at least one client: `train_cohorts` takes care of empty cohorts. Returns one outcome for each
        job, in the same order.
        """
        ...


def play_round(
    method: Method,
    engine: Engine,
    trials: Sequence[Trial],
    round: int,
    cohorts: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    population: int,
    optimiser: Optimiser,
    aggregation: Aggregation = PLAIN_MEANS,
    attack: ReplyAttack | None = None,
) -> list[TrainedCohort]:
    """Train one round of all trials and return what the last exchange trained.

    Args:
        method: the method.
        engine: what trains the clients.
        trials: one per seed; their servers and clients change.
        round: the number of the round, from 0.
        cohorts: the clients that take part, for each trial.
        weights: their weights in the average, for each trial.
        population: the number of all clients.
        optimiser: the clients' optimiser in this round.
        aggregation: how replies are averaged.
        attack: what attackers do to their replies.
    """
    trained: list[TrainedCohort] = []
    for exchange in range(method.exchanges):
        replies = (None, aggregation, attack)
        jobs = cohort_jobs(method, trials, round, exchange, cohorts, weights, population, optimiser, *replies)
        trained = train_cohorts(method, engine, jobs)
        update_servers(method, trials, trained)
    return trained


def cohort_jobs(
    method: Method,
    trials: Sequence[Trial],
    round: int,
    exchange: int,
    cohorts: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    population: int,
    optimiser: Optimiser,
    expected_size: int | None = None,
    aggregation: Aggregation = PLAIN_MEANS,
    attack: ReplyAttack | None = None,
) -> list[CohortJob]:
    """Broadcast: return the job of each trial in one exchange.

    Args:
        exchange: the number of the exchange in the round, from 0.
        expected_size: the mean number of clients in a round, under Poisson sampling.
        method, trials, round, cohorts, weights, population, optimiser, aggregation, attack: those of `play_round`.
    """
    return [
        CohortJob(
            seed=trial.seed,
            round=round,
            exchange=exchange,
            clients=clients,
            weights=weight,
            population=population,
            message=method.broadcast(trial.server),
            states=trial.clients,
            optimiser=optimiser,
            method=method,
            expected_size=expected_size,
            aggregation=aggregation,
            attack=attack,
        )
        for trial, clients, weight in zip(trials, cohorts, weights, strict=True)
    ]


def train_cohorts(method: Method, engine: Engine, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
    """Train the cohorts and return their outcomes; that of a cohort without clients has means of zeros and size 0."""
    occupied = [job for job in jobs if job.clients]
    trained = iter(engine.train(occupied) if occupied else ())
    return [next(trained) if job.clients else _no_replies(method, job) for job in jobs]


def _no_replies(method: Method, job: CohortJob) -> TrainedCohort:
    zeros = zero_reply(method, job)
    cohort = Cohort(zeros, zeros, 0, job.population, job.expected_size)
    return TrainedCohort(cohort, job.message.params[None][:0])


def zero_reply(method: Method, job: CohortJob) -> Any:
    """Return a reply of zeros."""
    return tree_map(torch.zeros_like, example_messages(method, job.message.params)[1])


def average_replies(replies: Any, job: CohortJob) -> Cohort:
    """Average the replies of a cohort: Σ_k (p_k / Σ_j p_j) reply_k with the job's weights p, and with equal weights.

    The job's aggregation may clip replies or replace the means; the replies of its attackers are changed first.

    Args:
        replies: the clients' replies, stacked along the first axis of each tensor.
        job: the job, which gives the weights.
    """
    mean, plain = job.aggregation.average(attacked_replies(replies, job), job.weights)
    return Cohort(mean, plain, len(job.clients), job.population, job.expected_size)


def attacked_replies(replies: Any, job: CohortJob) -> Any:
    """Return the stacked replies of a job's clients, with those of its attackers changed."""
    if job.attack is None:
        return replies
    return job.attack.apply(replies, job.seed, job.round, job.exchange, job.clients)


def update_servers(method: Method, trials: Sequence[Trial], trained: Sequence[TrainedCohort]) -> None:
    """Update every trial's server state from the averages of its cohort; without replies it stays as it is.

    With differential privacy and Poisson sampling noise is added in any case: a model that stays the same would tell
    that nobody was drawn.
    """
    for trial, outcome in zip(trials, trained, strict=True):
        if outcome.cohort.size or (outcome.cohort.expected_size and find_private(method)):
            trial.server = method.update(trial.server, outcome.cohort)


@torch.no_grad()
def has_diverged(params: Tensor) -> bool:
    """Return whether a parameter is infinite or not a number."""
    return not bool(torch.isfinite(params).all())


EVALUATION_BATCH = 2000  # samples evaluated at once


def evaluation_task(task: Task, device: torch.device) -> Task:
    """Return the task with which to evaluate models on `device`: on a GPU it uses the kernels of engine.kernels."""
    return task.with_model(use_lane_ops(task.model), task.compute) if device.type == "cuda" else task


class Evaluation(NamedTuple):
    """How good a model is on a set of samples.

    Args:
        loss: the mean loss.
        metrics: the task's metrics by name.
    """

    loss: float
    metrics: dict[str, float]


@torch.no_grad()
def evaluate(
    task: Task, params: Tensor, data: Batch, batch_size: int = EVALUATION_BATCH, every_metric: bool = False
) -> Evaluation:
    """Return the loss and the metrics of a model.

    Args:
        task: the task, which contains the architecture.
        params: the model, a vector of P parameters.
        data: the samples, all of them real (no padding).
        batch_size: how many samples to evaluate at once.
        every_metric: whether to compute also the metrics that take longer, see `Task.all_metrics`.
    """
    wide = torch.float32 if params.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    loss = weight = torch.zeros((), dtype=wide, device=params.device)
    predictions = []
    for batch in split_batch(data, batch_size):
        outputs = task.outputs(params, batch)
        loss = loss + task.output_loss(outputs, batch).to(wide) * task.weight(batch)
        weight = weight + task.weight(batch)
        predictions.append(task.predictions(outputs, batch))
    metrics = compute_metrics(task, torch.cat(predictions), data.y, every_metric)
    values = [torch.as_tensor(v, dtype=wide, device=params.device) for v in (loss / weight, *metrics.values())]
    mean_loss, *numbers = torch.stack(values).tolist()
    return Evaluation(mean_loss, dict(zip(metrics, numbers, strict=True)))


def main_metric(task: Task, params: Tensor, data: Batch) -> float:
    """Return the task's main metric of the model `params` on these samples."""
    return evaluate(task, params, data).metrics[task.metric]


@torch.no_grad()
def predict_classes(task: Task, params: Tensor, data: Batch) -> Tensor:
    """Return the class that the model `params` predicts for each sample [samples]."""
    return torch.cat([task.logits(params, batch).argmax(-1) for batch in split_batch(data, EVALUATION_BATCH)])
