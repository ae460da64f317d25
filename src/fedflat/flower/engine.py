"""The engine of a federation: send each node its request, validate the replies, average the valid ones.

An invalid reply neither stops a round nor reaches the mean.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedflat.core.local_training import (
    example_messages,
    finish_local_training,
    initial_client_state,
    start_local_training,
)
from fedflat.core.method import Method
from fedflat.core.state import bookkeeping_names, pack_state, stack_states, unpack_state
from fedflat.engine.aggregation import reply_norms
from fedflat.engine.participation import cohort_size
from fedflat.engine.rounds import CohortJob, TrainedCohort, average_replies
from fedflat.errors import UserError
from fedflat.flower.config import FederationOptions
from fedflat.flower.messages import (
    REQUEST_KEY,
    TrainRequest,
    sample_kind,
    state_to_record,
)
from fedflat.flower.node_data import class_names
from fedflat.flower.nodes import ClientLog, Nodes
from fedflat.flower.secure_aggregation import secure_mean
from fedflat.flower.validation import CheckedReply, ReplyLimits, mean_problem, validate_reply
from fedflat.methods.differential_privacy import find_private
from fedflat.runs.build import BuiltRun
from fedflat.runs.experiment import Experiment

LONG_REPLY = 5.0  # times the median norm of a round, from which a reply that is not clipped gets a warning


class LastReply(NamedTuple):
    """What the server stores of each client: the turn of its last accepted reply, -1 for none."""

    turn: Tensor


def _turn(method: Method, job: CohortJob) -> int:
    """Return the number of an exchange in the whole run."""
    return job.round * method.exchanges + job.exchange


class FlowerEngine:
    """Trains cohorts on nodes. Clients' states stay there; `job.states` holds a `LastReply` of each client instead.

    Args:
        experiment: what is trained.
        federation: the federation's own options.
        built: the server's model and data.
        nodes: the connected nodes.
        log: where the outcome of every request is logged.
    """

    def __init__(
        self, experiment: Experiment, federation: FederationOptions, built: BuiltRun, nodes: Nodes, log: ClientLog
    ) -> None:
        self.experiment, self.federation, self.nodes, self.log = experiment, federation, nodes, log
        self.dataset, self.participation = built.dataset, built.participation
        self.names = class_names(experiment.dataset, self.dataset.classes)
        self.like = example_messages(built.method, built.initial_params[0])[1]
        private = find_private(experiment.method)
        longest = private.clip if private else math.inf
        self.limits = ReplyLimits(self.like, federation.max_ratio, longest, experiment.bookkeeping)
        self.replies_needed = max(federation.min_replies, experiment.aggregation().fewest_replies)
        self.asked: list[int] = []  # the clients of the round's first exchange

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Do nothing: nodes prepare themselves."""

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        return [self._train(job) for job in jobs]

    def _train(self, job: CohortJob) -> TrainedCohort:
        """Ask clients until there are enough valid replies; raise UserError after too many attempts.

        Clients with a valid reply are not asked again, except under secure aggregation, where all are.
        """
        valid: dict[int, CheckedReply] = {}
        for _ in range(self.federation.attempts):
            clients = self._choose_clients(job)
            if self.federation.secure:
                valid = self._request_secure_mean(job, clients)
            else:
                valid |= self._request_replies(job, [client for client in clients if client not in valid])
            if len(valid) >= self.replies_needed:
                return self._average(job, valid)
        problem = (
            f"{len(valid)} valid replies, {self.replies_needed} are needed; "
            "start the run again to continue from its last round"
        )
        raise UserError(None, f"round {job.round + 1}", problem)

    def _choose_clients(self, job: CohortJob) -> list[int]:
        """Return the clients of a simulation that reply, drawn among the connected ones.

        With uniform sampling the next clients in the same random permutation replace missing ones. The second exchange
        of a round goes to the clients of the first.
        """
        query = RecordDict({REQUEST_KEY: self._request(job, -1).record()})
        cohort = cohort_size(self.experiment.cohort, job.population)
        self.nodes.wait_for(self.federation.min_nodes or cohort, query)
        if job.exchange == 0:
            self.asked = self.participation.replying(job.seed, job.round, self.nodes.node_of)
        return [client for client in self.asked if client in self.nodes.node_of]

    def _request_replies(self, job: CohortJob, clients: Sequence[int]) -> dict[int, CheckedReply]:
        """Ask clients to train; return the valid replies and log the outcome of every request."""
        message, requests = state_to_record(job.message), self._requests(job, clients)
        contents = {c: RecordDict({"message": message, REQUEST_KEY: r.record()}) for c, r in requests.items()}
        replies, failures = self.nodes.train(contents, str(job.round + 1))
        checked = {client: self._validate(job, client, requests[client], reply) for client, reply in replies.items()}
        self._log_replies(job, checked, failures)
        return {client: each for client, each in checked.items() if not each.problem}

    def _validate(self, job: CohortJob, client: int, request: TrainRequest, content: RecordDict) -> CheckedReply:
        declared, bookkeeping = self.nodes.examples[client], self._bookkeeping(job, request)
        return validate_reply(content, client, declared, request, job.message.params, self.limits, bookkeeping)

    def _bookkeeping(self, job: CohortJob, request: TrainRequest) -> dict[str, Tensor]:
        """Return the bookkeeping of an honest reply by name: it follows from the request, whatever is learned."""
        names, model = self.experiment.method.bookkeeping, job.message.params
        if not names:
            return {}
        optimiser = dataclasses.replace(self.experiment, lr=request.lr).optimiser_at(job.round, model)
        start = start_local_training(optimiser, job.message, initial_client_state(job.method, optimiser, model))
        steps = torch.tensor(float(request.steps)).to(model)
        reply, _ = finish_local_training(job.method, optimiser, start, job.message, steps)
        return {name: t for name, t in pack_state(reply).items() if name in bookkeeping_names(reply, names)}

    def _request_secure_mean(self, job: CohortJob, clients: Sequence[int]) -> dict[int, CheckedReply]:
        """Do the same under secure aggregation; the mean takes the place of every reply that is in it."""
        node_of = self.nodes.node_of
        client_at = {node_of[client]: client for client in clients}
        declared = {node: (client, self.nodes.examples[client]) for node, client in client_at.items()}
        requests = {node_of[client]: request for client, request in self._requests(job, clients).items()}
        like = pack_state(self.like)
        shapes = {name: tuple(tensor.shape) for name, tensor in like.items()}
        message, timeout = state_to_record(job.message), self.federation.round_timeout
        result = secure_mean(self.nodes.grid, message, requests, declared, shapes, job.round + 1, timeout)
        arrays = zip(like.items(), result.mean, strict=False)  # no arrays without a mean
        mean = {name: torch.from_numpy(array).to(tensor).view_as(tensor) for (name, tensor), array in arrays}
        valid = {
            client_at[node]: CheckedReply(unpack_state(self.like, mean), info, None)
            for node, info in result.infos.items()
        }
        if valid and (problem := mean_problem(unpack_state(self.like, mean), job.message.params, self.limits)):
            valid = {c: each._replace(problem=f"the mean of the round: {problem}") for c, each in valid.items()}
        self._log_replies(job, valid, {client_at[node]: reason for node, reason in result.failures.items()})
        return {client: each for client, each in valid.items() if not each.problem}

    def _requests(self, job: CohortJob, clients: Sequence[int]) -> dict[int, TrainRequest]:
        accepted = job.states.gather(clients).turn.tolist() if clients else []
        steps = self.participation.step_counts([job.seed] * len(clients), job.round, clients)
        lrs = self.participation.client_lrs(self.experiment.lr, clients)
        known = zip(clients, accepted, steps, lrs, strict=True)
        return {client: self._request(job, int(turn), count, lr) for client, turn, count, lr in known}

    def _request(self, job: CohortJob, accepted: int, steps: int = 0, lr: float = 0.0) -> TrainRequest:
        data = self.dataset
        return TrainRequest(
            run=self.log.run,
            seed=job.seed,
            round=job.round,
            exchange=job.exchange,
            turn=_turn(self.experiment.method, job),
            key=secrets.randbits(62),
            accepted=accepted,
            steps=steps,
            lr=lr,
            population=job.population,
            classes=data.classes,
            names=self.names,
            samples=sample_kind(data),
            mean=list(data.mean),
            std=list(data.std),
        )

    def _log_replies(self, job: CohortJob, checked: Mapping[int, CheckedReply], failures: Mapping[int, str]) -> None:
        failed = {client: CheckedReply(None, None, None, reason) for client, reason in failures.items()}
        for client, each in {**checked, **failed}.items():
            lost = "its state was gone, it began afresh" if each.info and each.info.lost else ""
            note = f"its reply is refused: {each.problem}" if client in checked and each.problem else each.problem
            examples = each.info.examples if each.info else None
            self.log.client_asked(
                job, client, self.nodes.name(client), not each.problem, examples, each.norm, note or lost
            )

    def _average(self, job: CohortJob, valid: Mapping[int, CheckedReply]) -> TrainedCohort:
        """Return the means of the valid replies, summed in the order of a simulation, and store the clients' turns."""
        clients = self.participation.replying(job.seed, job.round, valid)
        most = self.federation.max_examples or math.inf
        examples = [min(self.nodes.examples[client], most) for client in clients]
        values = examples if self.experiment.weights == "examples" else [1] * len(clients)
        weights = torch.tensor(values, dtype=job.weights.dtype, device=job.weights.device)
        turn = _turn(self.experiment.method, job)
        job.states.scatter(clients, LastReply(torch.full((len(clients),), turn)))
        replies = stack_states([valid[client].reply for client in clients])
        self._log_average(job, clients, replies)
        honest = job._replace(clients=clients, weights=weights, attack=None)  # attackers attacked on their nodes
        return TrainedCohort(average_replies(replies, honest), torch.empty(0))

    def _log_average(self, job: CohortJob, clients: Sequence[int], replies: Any) -> None:
        """Log which replies were clipped or are long, and warn of a round with fewer replies than in a simulation."""
        factors = job.aggregation.clip_factors(replies).tolist() if job.aggregation.clip else []
        for client, factor in zip(clients, factors, strict=False):
            if factor < 1:
                self.log.reply_clipped(job, client, factor)
        if not job.aggregation.clip:
            self._warn_of_long_replies(job, clients, reply_norms(replies, self.limits.bookkeeping))
        expected = len(self.participation.replying(job.seed, job.round))
        if len(clients) < expected:
            self.log.warn(f"round {job.round + 1}: {len(clients)} replies instead of {expected}")

    def _warn_of_long_replies(self, job: CohortJob, clients: Sequence[int], norms: Tensor) -> None:
        """Warn of clients whose replies are much longer than most of the round: a mean follows them."""
        for client, times in zip(clients, (norms / norms.median()).tolist(), strict=True):
            if times > LONG_REPLY:
                problem = f"its reply is {times:.3g} times as long as the median of the round"
                self.log.warn(f"round {job.round + 1}, {self.nodes.name(client)}: {problem}; clip_replies bounds it")
