"""The path of a training through parameter space: its rounds replayed, and the plane that shows most of it.

A run folder holds the last models only. Since everything random is a hash, training again from the configuration visits
the same models, and those of the clients with them. The plane is spanned by the first two principal components of the
server's path (Li et al., 2018, section 7).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.errors import UserError
from fedflat.progress import TrainingBar
from fedflat.runs.read import TrainedRun
from fedflat.runs.train import Training

MARGIN = 0.15  # of the surface around the path, as a share of the path's width


class RecordedRound(NamedTuple):
    """The models of one round.

    Args:
        round: its number, counted from 1.
        clients: the clients that replied.
        before: the server's model before the round, [P].
        ends: the clients' models after local training, [clients, P].
        after: the server's model after the round, [P].
    """

    round: int
    clients: list[int]
    before: Tensor
    ends: Tensor
    after: Tensor


def spread_rounds(rounds: int, count: int) -> list[int]:
    """Return up to `count` of the rounds 1, …, `rounds` at equal distances, the first and the last included.

    Raises UserError if there are fewer than two rounds, which span no plane.
    """
    if rounds < 2:
        raise UserError(None, "trajectory", f"needs two rounds at least, and there is {rounds}")
    return sorted({*torch.linspace(1, rounds, min(count, rounds)).round().int().tolist()})


def server_path(rounds: Sequence[RecordedRound]) -> Tensor:
    """Return the server's models: the initial one, and those after the rounds, [rounds + 1, P]."""
    return torch.stack([rounds[0].before, *(each.after for each in rounds)])


def replay_rounds(run: TrainedRun, seed: int, rounds: Sequence[int], label: str = "") -> list[RecordedRound]:
    """Train one seed of a run again and return the models of some rounds, on the CPU. Nothing is written.

    Args:
        run: the finished run.
        seed: one of its seeds.
        rounds: the rounds to record, in ascending order.
        label: what the progress bar calls it.
    """
    start = run.built.initial_params[run.experiment.seeds.index(seed)]
    alone = dataclasses.replace(run.experiment, seeds=(seed,), probes=())
    training = Training(alone, run.built._replace(initial_params=[start]), None)
    training.keeps_local_models = True
    recorded = []
    with TrainingBar(f"{label} replay", rounds[-1]) as bar:
        for round in range(1, rounds[-1] + 1):
            before = training.trials[0].server.params
            training.play_round()
            if round in rounds:
                recorded.append(_record(training, before))
            bar.update(round, [])
    return recorded


def _record(training: Training, before: Tensor) -> RecordedRound:
    assert training.last_cohort
    job, trained = training.last_cohort
    models = (before, trained.ends, training.trials[0].server.params)
    before, ends, after = (model.detach().cpu().clone() for model in models)
    return RecordedRound(training.round, list(job.clients), before, ends, after)


class PrincipalPlane(NamedTuple):
    """A plane along the first two principal components of a path, or of several.

    Args:
        origin: the last point of the path, the mean of all points of several, [P].
        directions: two orthogonal vectors of length 1, [2, P].
        explained: the share of the path's variance along each, [2].
    """

    origin: Tensor
    directions: Tensor
    explained: Tensor

    def project(self, points: Tensor) -> Tensor:
        """Return the coordinates [n, 2] of the points [n, P]."""
        return (points.double() - self.origin) @ self.directions.T


def principal_plane(*paths: Tensor) -> PrincipalPlane:
    """Return the plane that shows most of the paths; the first point has coordinates above those of their mean.

    Args:
        paths: at least three points that do not lie on one line, each [n, P].
    """
    points = torch.cat(paths).double()
    origin = points[-1] if len(paths) == 1 else points.mean(0)
    centred = points - points.mean(0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)  # [n, n]: there are far fewer points than parameters
    if not values[-2] > 1e-12 * values[-1]:
        raise UserError(None, "trajectory", "needs a server that moves in two directions")
    values, vectors = values[-2:].flip(0), vectors[:, -2:].flip(1)
    vectors = vectors * torch.where(vectors[0] < 0, -1.0, 1.0)
    directions = (vectors / values.sqrt()).T @ centred
    return PrincipalPlane(origin, directions, values / centred.square().sum())


def axes_around(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return `count` places on each axis of a plane that cover the points [n, 2] with a margin."""
    low, high = points.amin(0), points.amax(0)
    margin = MARGIN * (high - low)
    first, second = (
        torch.linspace(a, b, count, dtype=torch.float64)
        for a, b in zip((low - margin).tolist(), (high + margin).tolist(), strict=True)
    )
    return first, second


def share_in_plane(plane: PrincipalPlane, rounds: Sequence[RecordedRound]) -> float:
    """Return Σ ‖the part of w_k − w in the plane‖² / Σ ‖w_k − w‖² over all clients k: how much of their way is seen."""
    moved = torch.cat([round.ends.double() - round.before.double() for round in rounds])
    return float((moved @ plane.directions.T).square().sum() / moved.square().sum().clamp(min=1e-300))


def clients_in_plane(plane: PrincipalPlane, rounds: Sequence[RecordedRound]) -> list[dict[str, Any]]:
    """Return for every round its number, where its clients started, and where each of them ended."""
    found = []
    for each in rounds:
        (start_x, start_y), *_ = plane.project(each.before[None]).tolist()
        x, y = plane.project(each.ends).T.tolist() if each.clients else ([], [])
        found.append(
            {"round": each.round, "client": each.clients, "start_x": start_x, "start_y": start_y, "x": x, "y": y}
        )
    return found
