"""Differential privacy in a federation: the noise and the ε spent."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from loopback import EXPERIMENT, Loopback, federate
from test_flower_replies import refused, values

import fedflat as ff
from fedflat.engine.participation import choose_cohort
from fedflat.methods.differential_privacy import privacy_spent
from fedflat.runs.checkpoint import save_tensors
from fedflat.runs.folder import RunFolder

HALF = dataclasses.replace(EXPERIMENT, method=ff.Private(noise=4.0), clients=4, cohort=2, rounds=5)
ASKED = [choose_cohort(0, r, 4, 2) for r in range(HALF.rounds)]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Return the list of all checkpoints that are saved."""
    checkpoints: list[dict[str, torch.Tensor]] = []
    save = RunFolder.save

    def keep(self: RunFolder, tensors: Any) -> None:
        checkpoints.append({name: tensor.clone() for name, tensor in tensors.items()})
        save(self, tensors)

    monkeypatch.setattr(RunFolder, "save", keep)
    return checkpoints


def equal_share(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of equal entries; among thousands of random ones a few are equal by chance."""
    return float(torch.isclose(one, other).double().mean())


def test_noise_is_the_servers_secret(tmp_path: Path, saved: list[dict[str, torch.Tensor]]) -> None:
    """Each federation has its own noise, and no checkpoint holds the key, neither during the run nor at its end."""
    experiment = dataclasses.replace(EXPERIMENT, method=ff.Private(), rounds=1)
    states = [federate(Loopback(experiment), experiment, tmp_path / name) for name in ("one", "two")]
    assert equal_share(*(state["trial.0.server.inner.params"] for state in states)) < 0.01
    assert len(saved) == 4
    assert not any(tensors["trial.0.server.key"].any() for tensors in saved)


@pytest.mark.parametrize("inner", [ff.FedAvg(), ff.NaiveFedGloSS()], ids=["one exchange", "two"])
def test_a_repeated_round_has_other_noise(
    inner: ff.Method, tmp_path: Path, saved: list[dict[str, torch.Tensor]]
) -> None:
    """With the same noise and another cohort, the two models would differ only by the replies of clients."""
    experiment = dataclasses.replace(EXPERIMENT, method=ff.Private(inner=inner), rounds=2)
    grid, out = Loopback(experiment), tmp_path / "run"
    federate(grid, experiment, out)
    for _ in range(2):  # if the checkpoint held the key, both repetitions would have the same noise
        save_tensors(out / "checkpoint" / "state.safetensors", saved[0])
        (out / "result.json").unlink()
        federate(grid, experiment, out)
    assert [int(tensors["counters"][0]) for tensors in saved] == [1, 2, 2, 2, 2, 2, 2]
    models = [saved[n]["trial.0.server.inner.params"] for n in (1, 3, 5)]
    assert all(equal_share(one, other) < 0.01 for one, other in combinations(models, 2))


def test_epsilon_counts_how_often_a_client_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests count even if the reply was refused; unlike in a simulation, cohorts are not assumed secret."""
    ((busiest, often), (_, less), *_) = Counter(client for cohort in ASKED for client in cohort).most_common()
    assert often > less
    round, written, finish = next(r for r, cohort in enumerate(ASKED) if busiest in cohort), [], RunFolder.finish

    def wrong(client: int, reply: Message) -> Message:
        bad = client == busiest and reply.metadata.group_id == str(round + 1)
        return values(lambda v: v * np.float32(np.nan))(reply) if bad else reply

    def keep(self: RunFolder, result: Any) -> None:
        written.append(result["privacy"])
        finish(self, result)

    monkeypatch.setattr(RunFolder, "finish", keep)
    federate(Loopback(HALF, wrong), HALF, tmp_path / "run")
    assert [(r, client) for r, client, _ in refused(tmp_path / "run")] == [(round + 1, busiest)]
    assert written == [privacy_spent(HALF.method, ASKED, 4, sampled=False)]
    accepted = [[client for client in cohort if (r, client) != (round, busiest)] for r, cohort in enumerate(ASKED)]
    others = [
        privacy_spent(HALF.method, ASKED, 4, sampled=True),
        privacy_spent(HALF.method, accepted, 4, sampled=False),
    ]
    assert all(other and other["epsilon"] < written[0]["epsilon"] for other in others)
