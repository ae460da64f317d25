"""Experiments trained together give the results that each gives alone."""

import dataclasses
import json

import pytest
import torch

from fedflat import Dataset, Experiment, run
from fedflat.data.batches import ClientBatches
from fedflat.errors import UserError
from fedflat.methods import METHODS
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.train_together import run_together

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
def test_results_equal_those_of_single_runs(method, engine, tmp_path):
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


@pytest.mark.parametrize("decays", [(0.0, 0.5), (0.5, 0.0)])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_one_may_have_weight_decay_and_another_none(decays, optimiser):
    experiments = [dataclasses.replace(BASE, weight_decay=decay, optimiser=optimiser) for decay in decays]
    together, alone = run_together(experiments), [run(experiment) for experiment in experiments]
    losses = [[[row["loss"] for row in result.history] for result in results] for results in (together, alone)]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)
    assert losses[0][1] == pytest.approx(losses[1][1], rel=1e-5)
    assert losses[1][0] != pytest.approx(losses[1][1], rel=1e-3)


def stop_in_round_2(round, rows):
    if round == 2:
        raise KeyboardInterrupt


def test_the_round_in_which_the_watcher_stops_is_saved(tmp_path):
    experiments = variants("fedavg", engine="sequential", checkpoint_every=100)
    folders = [tmp_path / str(n) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        run_together(experiments, folders, watch=stop_in_round_2)
    reached = [load_tensors(folder / "checkpoint" / "state.safetensors")["counters"][0] for folder in folders]
    assert reached == [2, 2, 2]


def test_an_interruption_at_different_rounds_changes_nothing(tmp_path):
    experiments = variants("fedavg", engine="sequential")
    folders, whole = [tmp_path / str(n) for n in range(3)], run_together(experiments)
    with pytest.raises(KeyboardInterrupt):
        run_together(experiments, folders, watch=stop_in_round_2)
    assert not (folders[0] / "result.json").exists()
    resumed = run_together(experiments, folders, resume=True)
    for one, other in zip(whole, resumed, strict=True):
        assert [r["accuracy"] for r in one.history] == [r["accuracy"] for r in other.history]
    assert json.loads((folders[2] / "result.json").read_text())["rounds"] == 3


def test_other_settings_may_not_differ():
    with pytest.raises(UserError, match="local_epochs: must be the same"):
        run_together([BASE, dataclasses.replace(BASE, local_epochs=2)])
    with pytest.raises(UserError, match="momentum: must be the same"):
        run_together([BASE, dataclasses.replace(BASE, momentum=0.5)])


def test_equal_datasets_given_in_python_count_as_the_same():
    data = Dataset("mine", torch.zeros(8, 1, 2, 2), torch.arange(8) % 2, torch.zeros(2, 1, 2, 2), torch.arange(2), 2)
    own = dataclasses.replace(BASE, clients=2, cohort=1, rounds=1, model="mlp")
    pair = [dataclasses.replace(own, dataset=dataclasses.replace(data, x=data.x.clone()), seeds=(n,)) for n in (0, 1)]
    assert [result.seeds for result in run_together(pair)] == [[0], [1]]
    with pytest.raises(UserError, match="dataset: must be the same"):
        run_together([pair[0], dataclasses.replace(own, dataset=dataclasses.replace(data, x=data.x + 1))])


def test_watch_is_called_in_rounds_that_the_first_experiment_skips(tmp_path):
    experiments, folders = variants("fedavg", engine="sequential"), [tmp_path / str(n) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        run_together(experiments[:1], folders[:1], watch=stop_in_round_2)
    watched = []
    run_together(experiments, folders, resume=True, watch=lambda round, rows: watched.append((round, rows[0]["round"])))
    assert watched == [(1, 1), (2, 2), (3, 3)]


def test_test_samples_are_prepared_once(monkeypatch):
    calls, test = [], ClientBatches.test
    monkeypatch.setattr(ClientBatches, "test", lambda client_data: calls.append(client_data) or test(client_data))
    run_together(variants("fedavg", engine="sequential"))
    assert len(calls) == 1


def test_lanes_are_chosen_before_memory_is_estimated(monkeypatch):
    lanes = []
    monkeypatch.setattr(
        "fedflat.runs.train_together.client_state_device", lambda parts, engine: lanes.append(engine.lanes)
    )
    run_together(variants("fedavg", engine="batched"))
    assert 1 <= lanes[0] < 12  # 3 + 3 + 3 clients, the first twice
