"""The engine whose clients are nodes: send each its message, validate the replies, average the valid ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedflat.core.local_training import example_messages
from fedflat.core.state import pack_state, stack_states, unpack_state
from fedflat.core.vectors import norm
from fedflat.engine.rounds import CohortJob, TrainedCohort, average_replies, choose_cohort
from fedflat.errors import UserError
from fedflat.flower.client import class_names
from fedflat.flower.config import FederationOptions
from fedflat.flower.messages import ClientInfo, TrainRequest, record_of, record_to_state, sample_kind
from fedflat.flower.nodes import ClientLog, Nodes
from fedflat.flower.secure_aggregation import secure_mean
from fedflat.runs.build import RunParts
from fedflat.runs.experiment import Experiment


class ValidReply(NamedTuple):
    """A reply that is taken."""

    reply: Any
    facts: ClientInfo


def validate_reply(content: RecordDict, client: int, like: Any, model: Tensor, max_ratio: float) -> ValidReply:
    """The reply in `content`; raises ValueError that says why it is refused.

    Names, shapes and types must be those of `like`, all values finite, and no tensor longer than max_ratio times the
    model (or than max_ratio, where the model is shorter than 1).
    """
    if "reply" not in content.array_records or "facts" not in content.metric_records:
        raise ValueError(f"it holds {', '.join(content) or 'nothing'} instead of reply, facts")
    facts = ClientInfo.read(content["facts"])
    if facts.client != client:
        raise ValueError(f"it is signed by client {facts.client}")
    reply = record_to_state(content["reply"], like)
    limit = max_ratio * max(1.0, float(norm(model)))
    for name, tensor in pack_state(reply).items():
        _check_reply(name, tensor, limit)
    return ValidReply(reply, facts)


def _check_reply(name: str, tensor: Tensor, limit: float) -> None:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(f"{name} has {bad} of {tensor.numel()} values that are not finite")
    length = float(norm(tensor.reshape(-1).double()))
    if length > limit:
        raise ValueError(f"{name} has length {length:.3g}, more than the {limit:.3g} allowed")


class LastReply(NamedTuple):
    """What the server remembers of a client: the turn of its last reply that was taken, -1 for none."""

    turn: Tensor


class FlowerEngine:
    """Clients on nodes. Their states stay there; `job.states` holds what was `Seen` of each instead."""

    def __init__(
        self,
        experiment: Experiment,
        federation: FederationOptions,
        assembly: RunParts,
        fleet: Nodes,
        journal: ClientLog,
    ) -> None:
        self.experiment, self.federation, self.fleet, self.journal = experiment, federation, fleet, journal
        self.dataset = assembly.dataset
        self.names = class_names(experiment.dataset, self.dataset.classes)
        self.like = example_messages(experiment.method, assembly.starts[0])[1]
        self.asked: list[int] = []

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Nodes prepare themselves."""

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        return [self._train(job) for job in jobs]

    def _train(self, job: CohortJob) -> TrainedCohort:
        """Ask until enough replies are good; those that are stay so, but a secret mean is asked of all anew."""
        good: dict[int, ValidReply] = {}
        for _ in range(self.federation.attempts):
            clients = self._choose(job)
            if self.federation.secure:
                good = self._ask_for_the_mean(job, clients)
            else:
                good |= self._ask(job, [client for client in clients if client not in good])
            if len(good) >= self.federation.min_replies:
                return self._average(job, good)
        raise UserError(
            f"round {job.round + 1}: {len(good)} good replies, {self.federation.min_replies} are needed; "
            "start the run again to continue from its last round"
        )

    def _choose(self, job: CohortJob) -> list[int]:
        """The clients a simulation would ask; one that is not there is replaced by the next in the same random order.

        A second exchange goes to the clients of the first.
        """
        self.fleet.gather(self.federation.min_nodes, RecordDict({"order": self._order(job, -1).record()}))
        if job.exchange == 0:
            order = choose_cohort(job.seed, job.round, job.population, job.population)
            self.asked = [client for client in order if client in self.fleet.nodes][: self.experiment.cohort]
        return [client for client in self.asked if client in self.fleet.nodes]

    def _ask(self, job: CohortJob, clients: Sequence[int]) -> dict[int, ValidReply]:
        """The replies that are good; what becomes of each is written down."""
        sent, orders = record_of(job.message), self._orders(job, clients)
        contents = {c: RecordDict({"message": sent, "order": order.record()}) for c, order in orders.items()}
        answers, good = self.fleet.send(contents, str(job.round + 1)), {}
        for client, content in answers.replies.items():
            try:
                good[client] = validate_reply(content, client, self.like, job.message.params, self.federation.max_ratio)
            except ValueError as error:
                answers.failures[client] = f"its reply is refused: {error}"
        self._report(job, good, answers.failures)
        return good

    def _ask_for_the_mean(self, job: CohortJob, clients: Sequence[int]) -> dict[int, ValidReply]:
        """The same where replies are masked: the mean stands for each of them."""
        client_at = {self.fleet.nodes[client]: client for client in clients}
        orders = {self.fleet.nodes[client]: order for client, order in self._orders(job, clients).items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in pack_state(self.like).items()}
        sent, timeout = record_of(job.message), self.federation.round_timeout
        found = secure_mean(self.fleet.grid, sent, orders, shapes, job.round + 1, timeout)
        named = zip(pack_state(self.like).items(), found.mean, strict=False)
        mean = {name: torch.from_numpy(values).to(like).view_as(like) for (name, like), values in named}
        good = {
            client_at[node]: ValidReply(unpack_state(self.like, mean), facts) for node, facts in found.facts.items()
        }
        self._report(job, good, {client_at[node]: reason for node, reason in found.failures.items()})
        return good

    def _orders(self, job: CohortJob, clients: Sequence[int]) -> dict[int, TrainRequest]:
        turns = job.states.gather(clients).turn.tolist() if clients else []
        return {client: self._order(job, int(turn)) for client, turn in zip(clients, turns, strict=True)}

    def _order(self, job: CohortJob, accepted: int) -> TrainRequest:
        data, turn = self.dataset, job.round * self.experiment.method.exchanges + job.exchange
        return TrainRequest(
            run=self.journal.run,
            seed=job.seed,
            round=job.round,
            exchange=job.exchange,
            turn=turn,
            accepted=accepted,
            population=job.population,
            classes=data.classes,
            names=self.names,
            samples=sample_kind(data),
            mean=list(data.mean),
            std=list(data.std),
        )

    def _report(self, job: CohortJob, good: dict[int, ValidReply], failures: dict[int, str]) -> None:
        lost = {client: "its state was gone, it began afresh" for client, each in good.items() if each.facts.lost}
        for client in [*good, *failures]:
            note = failures.get(client) or lost.get(client, "")
            self.journal.write(job, client, self.fleet.name(client), client in good, note)

    def _average(self, job: CohortJob, good: dict[int, ValidReply]) -> TrainedCohort:
        """Means over the good replies, in the order in which a simulation would sum them."""
        order = choose_cohort(job.seed, job.round, job.population, job.population)
        clients = [client for client in order if client in good]
        examples = [good[client].facts.examples for client in clients]
        values = examples if self.experiment.weights == "examples" else [1] * len(clients)
        weights = torch.tensor(values, dtype=job.weights.dtype, device=job.weights.device)
        turn = job.round * self.experiment.method.exchanges + job.exchange
        job.states.scatter(clients, LastReply(torch.full((len(clients),), turn)))
        replies = stack_states([good[client].reply for client in clients])
        return TrainedCohort(average_replies(replies, job._replace(clients=clients, weights=weights)), torch.empty(0))
