"""Whole runs in which cohorts vary: rounds without replies, probes, counts, bytes, and experiments trained together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import fedflat as ff
from fedflat.runs.build import build_run
from fedflat.runs.result import bytes_per_round, cost_to_reach
from fedflat.runs.train_together import run_together

DRAW = np.random.default_rng(0)
LABELS = np.arange(96) % 4
SAMPLES = (DRAW.normal(size=(96, 5)) + 2 * np.eye(5)[LABELS]).astype("float32")
DATA = ff.Dataset.from_arrays(SAMPLES, LABELS, SAMPLES, LABELS)
BASE = ff.Experiment(
    dataset=DATA, model="mlp", clients=6, cohort=0.5, partition="dirichlet", alpha=1.0, rounds=4, batch_size=4,
    seeds=(0, 1), sampling="poisson", dropout_rate=0.2, stragglers=0.4, local_steps=5,
)  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Everybody is there, except in round 3."""
    lines = [f"{client},1,2\n{client},4,\n" for client in range(6)]
    (tmp_path / "trace.csv").write_text("client,from,to\n" + "".join(lines))
    return str(tmp_path / "trace.csv")


def test_a_round_without_replies(trace: str, tmp_path: Path) -> None:
    """The model stays, probes do not measure, steps and bytes count who took part, and the folder is complete."""
    experiment = replace(BASE, availability=trace, probes=("drift", "proximal", "communication"))
    result = ff.run(experiment, tmp_path / "run")
    rows = {(row["round"], row["seed"]): row for row in result.history}
    who = build_run(experiment).participation
    for seed in (0, 1):
        assert rows[2, seed]["loss"] == rows[3, seed]["loss"]
        assert [bool(who.replying(seed, r)) for r in range(4)] == ["probes" in rows[r + 1, seed] for r in range(4)]
    replies = [(seed, r, who.replying(seed, r)) for seed in (0, 1) for r in range(4)]
    steps = sum(sum(who.step_counts([seed] * len(clients), r, clients)) for seed, r, clients in replies)
    assert load_file(tmp_path / "run" / "checkpoint" / "state.safetensors")["counters"][2] == steps
    assert result.clients_replied_per_round == sum(len(clients) for *_, clients in replies) / 8
    sent = result.clients_asked_per_round * result.bytes_down_per_client_round
    sent += result.clients_replied_per_round * result.bytes_up_per_client_round
    assert bytes_per_round(result, experiment.cohort) == sent
    cost = cost_to_reach(result, experiment.cohort, 0.0)
    assert cost
    assert cost.bytes == sent


def test_a_fixed_cohort_leaves_no_counts_and_a_share_is_a_size(tmp_path: Path) -> None:
    one, other = (
        ff.run(replace(BASE, cohort=cohort, sampling="uniform", dropout_rate=0.0, rounds=1), tmp_path / str(cohort))
        for cohort in (3, 0.5)
    )
    assert one.history[0]["loss"] == other.history[0]["loss"]
    assert one.clients_asked_per_round is None
    assert "clients_asked_per_round" not in (tmp_path / "3" / "result.json").read_text()
    assert bytes_per_round(one, 3) == bytes_per_round(other, 0.5)


def test_experiments_trained_together_learn_what_they_learn_alone(trace: str, tmp_path: Path) -> None:
    """They have different partitions and numbers of clients, and so other cohorts, steps and learning rates."""
    (tmp_path / "own.csv").write_text("client,lr,local_epochs\n1,0.2,2\n3,0.01,\n")
    own = {"availability": trace, "client_settings": str(tmp_path / "own.csv"), "method": ff.FedNova()}
    experiments = [replace(BASE, **own, partition_seed=1), replace(BASE, **own, clients=8, alpha=0.3, seeds=(2,))]
    for together, experiment in zip(run_together(experiments), experiments, strict=True):
        alone = ff.run(experiment)
        assert [r["loss"] for r in together.history] == pytest.approx([r["loss"] for r in alone.history], abs=1e-5)
        assert together.clients_asked_per_round == alone.clients_asked_per_round
