"""The engine of a federation: send each node its request, validate the replies, average the valid ones.

An invalid reply neither stops a round nor reaches the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedflat.core.local_training import example_messages
from fedflat.core.method import Method
from fedflat.core.state import pack_state, stack_states, unpack_state
from fedflat.core.vectors import norm
from fedflat.engine.rounds import CohortJob, TrainedCohort, average_replies
from fedflat.errors import UserError
from fedflat.flower.client import class_names
from fedflat.flower.config import FederationOptions
from fedflat.flower.messages import (
    INFO_KEY,
    REQUEST_KEY,
    ClientInfo,
    TrainRequest,
    record_to_state,
    sample_kind,
    state_to_record,
)
from fedflat.flower.nodes import ClientLog, Nodes
from fedflat.flower.secure_aggregation import secure_mean
from fedflat.runs.build import BuiltRun
from fedflat.runs.experiment import Experiment


class ValidReply(NamedTuple):
    """A method's reply that passed validation, and the ClientInfo that came with it."""

    reply: Any
    info: ClientInfo


def validate_reply(content: RecordDict, client: int, like: Any, model: Tensor, max_ratio: float) -> ValidReply:
    """Return the reply in `content`; raise ValueError with the reason if it is invalid.

    Args:
        content: what the node sent.
        client: the client that was asked.
        like: a reply of this method; names, shapes and types must be the same.
        model: the parameters [P] that were sent.
        max_ratio: no tensor may have a norm above max_ratio · max(1, ‖model‖), and all values must be finite.
    """
    if "reply" not in content.array_records or INFO_KEY not in content.metric_records:
        raise ValueError(f"it holds {', '.join(content) or 'nothing'} instead of reply, {INFO_KEY}")
    info = ClientInfo.read(content[INFO_KEY])
    if info.client != client:
        raise ValueError(f"it is signed by client {info.client}")
    reply = record_to_state(content["reply"], like)
    limit = max_ratio * max(1.0, float(norm(model)))
    for name, tensor in pack_state(reply).items():
        _check_tensor(name, tensor, limit)
    return ValidReply(reply, info)


def _check_tensor(name: str, tensor: Tensor, limit: float) -> None:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(f"{name} has {bad} of {tensor.numel()} values that are not finite")
    length = float(norm(tensor.reshape(-1).double()))
    if length > limit:
        raise ValueError(f"{name} has length {length:.3g}, more than the {limit:.3g} allowed")


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
        self.like = example_messages(experiment.method, built.initial_params[0])[1]
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
        valid: dict[int, ValidReply] = {}
        for _ in range(self.federation.attempts):
            clients = self._choose_clients(job)
            if self.federation.secure:
                valid = self._request_secure_mean(job, clients)
            else:
                valid |= self._request_replies(job, [client for client in clients if client not in valid])
            if len(valid) >= self.federation.min_replies:
                return self._average(job, valid)
        problem = (
            f"{len(valid)} valid replies, {self.federation.min_replies} are needed; "
            "start the run again to continue from its last round"
        )
        raise UserError(None, f"round {job.round + 1}", problem)

    def _choose_clients(self, job: CohortJob) -> list[int]:
        """Return the clients of a simulation that reply, drawn among the connected ones.

        With uniform sampling the next clients in the same random permutation replace missing ones. The second exchange
        of a round goes to the clients of the first.
        """
        query = RecordDict({REQUEST_KEY: self._request(job, -1).record()})
        self.nodes.wait_for(self.federation.min_nodes, query)
        if job.exchange == 0:
            self.asked = self.participation.replying(job.seed, job.round, self.nodes.node_of)
        return [client for client in self.asked if client in self.nodes.node_of]

    def _request_replies(self, job: CohortJob, clients: Sequence[int]) -> dict[int, ValidReply]:
        """Ask clients to train; return the valid replies and log the outcome of every request."""
        message, requests = state_to_record(job.message), self._requests(job, clients)
        contents = {c: RecordDict({"message": message, REQUEST_KEY: r.record()}) for c, r in requests.items()}
        replies, failures = self.nodes.train(contents, str(job.round + 1))
        valid = {}
        for client, content in replies.items():
            try:
                valid[client] = validate_reply(
                    content, client, self.like, job.message.params, self.federation.max_ratio
                )
            except ValueError as error:
                failures[client] = f"its reply is refused: {error}"
        self._log_replies(job, valid, failures)
        return valid

    def _request_secure_mean(self, job: CohortJob, clients: Sequence[int]) -> dict[int, ValidReply]:
        """Do the same under secure aggregation; the mean takes the place of every reply that is in it."""
        node_of = self.nodes.node_of
        client_at = {node_of[client]: client for client in clients}
        requests = {node_of[client]: request for client, request in self._requests(job, clients).items()}
        like = pack_state(self.like)
        shapes = {name: tuple(tensor.shape) for name, tensor in like.items()}
        message, timeout = state_to_record(job.message), self.federation.round_timeout
        result = secure_mean(self.nodes.grid, message, requests, shapes, job.round + 1, timeout)
        arrays = zip(like.items(), result.mean, strict=False)  # no arrays without a mean
        mean = {name: torch.from_numpy(array).to(tensor).view_as(tensor) for (name, tensor), array in arrays}
        valid = {
            client_at[node]: ValidReply(unpack_state(self.like, mean), info) for node, info in result.infos.items()
        }
        self._log_replies(job, valid, {client_at[node]: reason for node, reason in result.failures.items()})
        return valid

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

    def _log_replies(self, job: CohortJob, valid: dict[int, ValidReply], failures: dict[int, str]) -> None:
        lost = {client: "its state was gone, it began afresh" for client, each in valid.items() if each.info.lost}
        for client in [*valid, *failures]:
            note = failures.get(client) or lost.get(client, "")
            self.log.client_asked(job, client, self.nodes.name(client), client in valid, note)

    def _average(self, job: CohortJob, valid: dict[int, ValidReply]) -> TrainedCohort:
        """Return the means of the valid replies, summed in the order of a simulation, and store the clients' turns."""
        clients = self.participation.replying(job.seed, job.round, valid)
        examples = [valid[client].info.examples for client in clients]
        values = examples if self.experiment.weights == "examples" else [1] * len(clients)
        weights = torch.tensor(values, dtype=job.weights.dtype, device=job.weights.device)
        turn = _turn(self.experiment.method, job)
        job.states.scatter(clients, LastReply(torch.full((len(clients),), turn)))
        replies = stack_states([valid[client].reply for client in clients])
        return TrainedCohort(average_replies(replies, job._replace(clients=clients, weights=weights)), torch.empty(0))
