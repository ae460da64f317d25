"""fedflat personalise: what is trained, what it is tested on, and what is written."""

from __future__ import annotations

import json
import shutil
import statistics

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.cli.personalise import print_personalised
from fedflat.core.local_training import local_update
from fedflat.core.method import Message, Method
from fedflat.core.optimiser import Optimiser
from fedflat.data.batches import BatchPlan
from fedflat.engine.rounds import main_metric
from fedflat.errors import UserError
from fedflat.personal.fine_tuning import (
    ClientModel,
    ClientSamples,
    LocalTrainer,
    mean_participations,
    personalise,
    train_local_only,
)
from fedflat.runs.checkpoint import load_tensors, save_tensors
from fedflat.runs.read import read_trained_run

SMALL = {"model": "mlp", "clients": 6, "cohort": 3, "rounds": 4, "local_epochs": 1, "lr": 0.1, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("personal") / "run"
    ff.run(ff.Experiment(method=ff.FedSOL(), seeds=(3, 5), momentum=0.5, weight_decay=1e-3, **SMALL), out=out)
    return out


@pytest.fixture(scope="module")
def finished(folder):
    return read_trained_run(folder)


@pytest.fixture(scope="module")
def rows(folder):
    return personalise(folder, (1, 2))


def test_every_scheme_epoch_seed_and_client_is_measured(rows):
    lines = [(row.scheme, row.epochs) for row in rows]
    pairs = [(scheme, e) for scheme in ("FedSOL-FT", "FedSOL + kNN-Per") for e in (0, 1, 2)]
    assert lines == [*pairs, ("local-only", 2)]
    for row in rows:
        assert {seed: sorted(clients) for seed, clients in row.clients.items()} == {3: [*range(6)], 5: [*range(6)]}
        values = [a for seed in row.clients.values() for a in seed.values()]
        assert row.accuracy == pytest.approx(statistics.fmean(values))
        assert row.std == pytest.approx(statistics.stdev(values))
        assert all(0 <= a <= 1 for a in values)


def test_repeating_gives_the_same_numbers(folder, rows):
    assert personalise(str(folder), np.array([2, 1, 2])) == rows


def test_the_first_line_is_the_global_model(rows, finished):
    samples = ClientSamples(finished)
    for trial in finished.trials:
        expected = [main_metric(finished.built.task, trial.server.params, samples.test(k)) for k in range(6)]
        assert list(rows[0].clients[trial.seed].values()) == expected


def test_fine_tuning_is_plain_sgd_on_the_clients_own_data(finished):
    task, params, client = finished.built.task, finished.trials[0].server.params, 4
    trainer = LocalTrainer(finished, 2, finished.built.client_rows)
    plan = trainer.client_data.plan([3], 9, [client])
    steps = [BatchPlan(*(t[0, s][plan.mask[0, s]] for t in plan)) for s in range(plan.mask.shape[1])]
    assert sum(int(step.mask.sum()) for step in steps) == 2 * len(finished.built.client_rows[client])
    sgd = Optimiser(torch.tensor(0.2), 0.5, 1e-3)
    end, *_ = local_update(
        Method(), task, sgd, Message(params), (), [trainer.client_data.batch(step) for step in steps]
    )
    ours = trainer.train(3, 9, [0, client], [ClientModel(params)] * 2, 0.2)[1].params
    assert torch.allclose(ours, end, atol=1e-5)
    assert (ours - params).abs().max() > 0.01


def test_clients_may_start_from_different_models(finished):
    params = finished.trials[0].server.params
    trainer = LocalTrainer(finished, 1, finished.built.client_rows)
    apart = [trainer.train(0, 0, [k], [ClientModel(params + k)], 0.1)[0].params for k in (1, 2)]
    together = trainer.train(0, 0, [1, 2], [ClientModel(params + k) for k in (1, 2)], 0.1)
    assert torch.allclose(torch.stack(apart), torch.stack([model.params for model in together]), atol=1e-4)


def test_local_only_training_does_the_work_of_the_average_client(finished):
    """As many rounds as the average client takes part in, from the initial model, at the run's learning rates."""
    assert mean_participations(finished) == 2
    start = ClientModel(finished.built.initial_params[0])
    trainer = LocalTrainer(finished, 1, finished.built.client_rows)
    first = trainer.train(3, 0, [2], [start], 0.1)
    second = trainer.train(3, 1, [2], first, 0.1)
    assert torch.equal(train_local_only(finished, trainer, 3, [2], start)[0].params, second[0].params)


def test_tests_follow_the_clients_labels(finished):
    samples, data = ClientSamples(finished), finished.built.dataset
    for client, rows in enumerate(finished.built.client_rows):
        mine = np.bincount(data.y[rows], minlength=10) / len(rows)
        tested = np.bincount(samples.test(client).y, minlength=10)
        present = np.bincount(data.y_test, minlength=10)
        assert (tested == np.minimum(present, np.floor(1000 * mine + 1e-9))).all()


def test_held_out_samples_are_not_kept(finished):
    samples = ClientSamples(finished)
    for rows, kept, held in zip(samples.all_rows, samples.kept_rows, samples.held_out_rows, strict=True):
        assert len(held) == len(rows) // 5
        assert np.array_equal(np.sort(np.concatenate([kept, held])), rows)


def test_a_single_sample_is_kept(finished):
    parts = [np.array([7]), np.array([1, 2])]
    two = finished._replace(built=finished.built._replace(client_rows=parts))
    samples = ClientSamples(two)
    assert [len(kept) for kept in samples.kept_rows] == [1, 1]
    assert [len(held) for held in samples.held_out_rows] == [0, 1]


def test_many_clients(tmp_path):
    setting = SMALL | {"clients": 100, "rounds": 1, "partition": "iid", "batch_size": 8}
    ff.run(ff.Experiment(method=ff.FedBABU(), **setting), out=tmp_path / "run")
    rows = personalise(tmp_path / "run", (1,), alone=False)
    assert all(len(row.clients[0]) == 100 for row in rows)
    assert {row.scheme for row in rows} == {"FedBABU-FT", "FedBABU + kNN-Per"}


def test_a_model_without_a_head_has_no_neighbours(tmp_path):
    layers = (torch.nn.Flatten(), torch.nn.Linear(64, 10))
    experiment = ff.Experiment(**(SMALL | {"model": torch.nn.Sequential(*layers)}))
    ff.run(experiment, out=tmp_path / "run")
    rows = personalise(tmp_path / "run", (1,), alone=False, experiment=experiment)
    assert [(row.scheme, row.epochs) for row in rows] == [("FedAvg-FT", 0), ("FedAvg-FT", 1)]
    with pytest.raises(UserError, match=r'model="own:Sequential-\w{8}": was given in Python .*, experiment=\.\.\.'):
        personalise(tmp_path / "run", (1,))


def test_the_command_writes_what_it_prints(folder, rows, capsys):
    print_personalised(folder, (1,), alone=False)
    out, err = capsys.readouterr()
    assert err == ""
    written = json.loads((folder / "personalise.json").read_text())
    assert [line["scheme"] for line in written] == ["FedSOL-FT"] * 2 + ["FedSOL + kNN-Per"] * 2
    tuned = next(row for row in rows if (row.scheme, row.epochs) == ("FedSOL-FT", 1))
    assert written[1]["accuracy"] == tuned.accuracy
    assert f"{tuned.accuracy:.2%} ± {tuned.std:.2%}" in out
    assert str(folder / "personalise.json") in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": ()}, "epochs: give numbers of epochs"),
        ({"epochs": (1, -1)}, r"epochs=\(1, -1\): must be"),
        ({"epochs": (1, 10**9)}, r"epochs=\(1, 1000000000\): must be between 0 and 10000"),
        ({"epochs": (1,), "lr": 0.0}, r"lr=0\.0: must be"),
    ],
)
def test_wrong_options_are_refused(folder, options, message):
    with pytest.raises(UserError, match=message):
        personalise(folder, **options)


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run that has trained"):
        personalise(tmp_path)


def test_a_folder_of_several_runs_names_one(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "both" / "one")
    shutil.copytree(folder, tmp_path / "both" / "two")
    with pytest.raises(UserError, match=f"is a folder of runs; name one of them, such as {tmp_path / 'both' / 'one'}"):
        personalise(tmp_path / "both")


def test_a_damaged_checkpoint_is_refused(tmp_path, folder):
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "checkpoint" / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="missing or damaged"):
        personalise(copy)


def test_a_diverged_seed_is_left_out(tmp_path, capsys):
    """Seed 0 loses its model; seed 1 is measured as if it had been alone."""
    ff.run(ff.Experiment(**(SMALL | {"seeds": (0, 1)})), out=tmp_path / "run")
    both = personalise(tmp_path / "run", epochs=(1,))
    make_infinite(tmp_path / "run", "trial.0.")
    left = personalise(tmp_path / "run", epochs=(1,))
    assert "seed 0 has diverged and is left out" in capsys.readouterr().err
    assert [row.clients for row in left] == [{1: row.clients[1]} for row in both]


def make_infinite(run, start):
    """Multiply the models in the checkpoint whose names begin with `start` by infinity."""
    path = run / "checkpoint" / "state.safetensors"
    named = {n: t * torch.inf if n.startswith(start) and "params" in n else t for n, t in load_tensors(path).items()}
    save_tensors(path, named)


def test_a_diverged_run_is_refused(tmp_path):
    ff.run(ff.Experiment(**(SMALL | {"lr": 1e30})), out=tmp_path / "run")
    with pytest.raises(UserError, match="seed 0 has diverged"):
        personalise(tmp_path / "run")
