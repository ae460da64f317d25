"""Experiments trained side by side learn what each learns alone."""

import dataclasses
import json

import pytest
import torch

from fedflat import Experiment, run
from fedflat.engine.folder import load_tensors
from fedflat.errors import UserError
from fedflat.experiments.together import run_together
from fedflat.methods import METHODS

BASE = Experiment(rounds=3, clients=6, cohort=3, local_epochs=1, lr=0.02, checkpoint_every=1)


def variants(method, **changes):
    base = dataclasses.replace(BASE, method=METHODS[method](), **changes)
    return [
        dataclasses.replace(base, partition="lda", alpha=0.3, seeds=(0, 1)),
        dataclasses.replace(base, partition="shards", shards=2, clients=5),
        dataclasses.replace(base, partition="dirichlet", alpha=0.1, partition_seed=3),
    ]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedgloss", "naivefedgloss"])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_each_learns_what_it_learns_alone(method, engine, tmp_path):
    experiments = variants(method, engine=engine)
    folders = [tmp_path / str(n) for n in range(3)]
    together = run_together(experiments, folders)
    for number, (experiment, result) in enumerate(zip(experiments, together, strict=True)):
        alone = run(experiment, tmp_path / f"alone{number}")
        assert [(r["round"], r["seed"]) for r in result.history] == [(r["round"], r["seed"]) for r in alone.history]
        tensors = [
            load_tensors(f / "checkpoint" / "state.safetensors") for f in (folders[number], tmp_path / f"alone{number}")
        ]
        assert tensors[0].keys() == tensors[1].keys()
        for name in tensors[0].keys() - {"counters"}:
            torch.testing.assert_close(tensors[0][name], tensors[1][name], rtol=1e-4, atol=1e-5)


def test_an_interruption_at_different_rounds_changes_nothing(tmp_path):
    experiments = variants("fedavg", engine="sequential")
    folders, whole = [tmp_path / str(n) for n in range(3)], run_together(experiments)

    def stop(round, rows):
        if round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_together(experiments, folders, watch=stop)
    assert not (folders[0] / "result.json").exists()
    resumed = run_together(experiments, folders, resume=True)
    for one, other in zip(whole, resumed, strict=True):
        assert [r["accuracy"] for r in one.history] == [r["accuracy"] for r in other.history]
    assert json.loads((folders[2] / "result.json").read_text())["rounds"] == 3


def test_more_than_the_partition_may_not_differ():
    with pytest.raises(UserError, match="--lr: must be the same"):
        run_together([BASE, dataclasses.replace(BASE, lr=0.5)])
