"""What was sent, and what it takes to reach an accuracy."""

from __future__ import annotations

from typing import NamedTuple

from fedflat.core.local_training import count_traffic
from fedflat.experiments.result import Result
from fedflat.probes.sight import Sight, Value


def communication(sight: Sight) -> dict[str, Value]:
    """Bytes that server and clients have exchanged since the first round.

    bytes = rounds · |S| · (bytes down + bytes up of a client in a round)

    Costs no pass over data.
    """
    sent = count_traffic(sight.method, sight.start)
    return {"bytes": float((sight.job.round + 1) * len(sight.ends) * (sent.down + sent.up))}


class Reach(NamedTuple):
    """The way to an accuracy: rounds, bytes down and up of all clients, and the same in models of 4-byte parameters."""

    rounds: float
    bytes: float
    models: float


def reach(result: Result, cohort: int, target: float) -> Reach | None:
    """What a finished run of `cohort` clients a round needed to reach `target`; None where a seed never did.

    rounds = mean over seeds of the first evaluated round with that accuracy, bytes = rounds · cohort · (down + up)
    (FedGF, Table 4, counts models; FedGloSS, Table 5, rounds and the part of what FedAvg sends in all its rounds)
    """
    rounds = result.rounds_to(target)
    if rounds is None:
        return None
    sent = rounds * bytes_per_round(result, cohort)
    return Reach(rounds, sent, sent / (4 * result.parameters))


def bytes_per_round(result: Result, cohort: int) -> int:
    """Down and up, of all clients of a round."""
    return cohort * (result.bytes_down_per_client_round + result.bytes_up_per_client_round)
