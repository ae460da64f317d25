"""A run with samplings, lost replies, stragglers and settings of single clients is killed and ends bit-identical."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedflat as ff

KILLED = """
import os, sys
import fedflat as ff
from fedflat.runs.config import load_experiment
from pathlib import Path
ff.run(load_experiment(Path(sys.argv[1])), sys.argv[2], watch=lambda round, rows: os._exit(9) if round == 4 else None)
"""


@pytest.fixture
def experiment(tmp_path: Path) -> ff.Experiment:
    """Everything at once, and two rounds in which nobody is available."""
    spans = [f"{client},1,3\n{client},6,8\n" for client in range(8)]
    (tmp_path / "trace.csv").write_text("client,from,to\n" + "".join(spans))
    (tmp_path / "own.csv").write_text("client,lr,local_epochs\n1,0.2,2\n3,,3\n4,0.01,\n")
    return ff.Experiment(
        method=ff.SCAFFOLD(), model="mlp", clients=8, cohort=0.5, sampling="poisson", dropout_rate=0.2, stragglers=0.4,
        local_steps=3, rounds=8, seeds=(0, 1), checkpoint_every=3, engine="sequential", lr_decay=0.9,
        availability=str(tmp_path / "trace.csv"), client_settings=str(tmp_path / "own.csv"),
    )  # fmt: skip


def test_killed_and_continued(experiment: ff.Experiment, tmp_path: Path) -> None:
    ff.run(experiment, tmp_path / "whole")
    config = tmp_path / "whole" / "config.yaml"
    words = [sys.executable, "-c", KILLED, str(config), str(tmp_path / "killed")]
    assert subprocess.run(words, check=False).returncode == 9
    result = ff.run(experiment, tmp_path / "killed", resume=True)
    states = [load_file(tmp_path / name / "checkpoint" / "state.safetensors") for name in ("whole", "killed")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0].keys() - {"counters"})
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "killed"))
    assert first["clients_asked_per_round"] == second["clients_asked_per_round"] == result.clients_asked_per_round
    assert 0 < second["clients_replied_per_round"] < second["clients_asked_per_round"] < 4
    after = {(row["round"], row["seed"]): row["loss"] for row in result.history}
    assert all(after[3, seed] == after[4, seed] == after[5, seed] for seed in (0, 1)), "nobody was available"


def test_a_run_is_not_continued_with_another_trace(experiment: ff.Experiment, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(round: int, rows: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        ff.run(experiment, tmp_path / "run", watch=stop)
    Path(experiment.availability).write_text("client,from,to\n0,1,\n")
    with pytest.raises(ff.UserError, match=r"availability: .*trace\.csv#\w{8} in the folder, .*trace\.csv#\w{8} given"):
        ff.run(experiment, tmp_path / "run", resume=True)
