"""Which options of a run may grow, and what a run's counters are after seeds were added."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import tiny_experiment

import fedflat as ff
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.config import dump_yaml, growing_options


@pytest.mark.parametrize(
    ("changes", "grows"),
    [
        ({}, ("rounds", "seeds")),
        ({"rounds": 9, "seeds": [0, 1, 2]}, ("rounds", "seeds")),
        ({"rounds": 4}, ("rounds", "seeds")),
        ({"rounds": 3}, ("seeds",)),
        ({"seeds": [1, 2]}, ("rounds",)),
        ({"lr_schedule": "cosine"}, ("seeds",)),
    ],
)
def test_no_trained_round_and_no_seed_may_be_taken_back(changes: dict[str, object], grows: tuple[str, ...]) -> None:
    """Four of five rounds are trained, with seeds 0 and 1."""
    stored = {"rounds": 5, "seeds": [0, 1], "lr_schedule": "constant"}
    assert growing_options(dump_yaml(stored), dump_yaml(stored | changes), trained=4) == grows


def test_the_steps_of_added_seeds_are_added_to_those_of_the_run(tmp_path: Path) -> None:
    ff.run(tiny_experiment(seeds=(0,), rounds=1), tmp_path / "grown")
    for name in ("grown", "whole"):
        ff.run(tiny_experiment(seeds=(0, 1), rounds=1), tmp_path / name, resume=True)
    states = [load_tensors(tmp_path / name / "checkpoint" / "state.safetensors") or {} for name in ("grown", "whole")]
    assert states[0]["counters"][[0, 2]].tolist() == states[1]["counters"][[0, 2]].tolist()
