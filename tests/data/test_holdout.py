"""Held-out training samples: always the same, never trained on, and used in place of the test set."""

import numpy as np
import pytest
import torch

import fedflat
from fedflat.data.dataset import hold_out
from fedflat.errors import UserError
from fedflat.runs.build import build_run
from fedflat.runs.config import dump_experiment, experiment_from_dict, experiment_to_dict


def numbered_samples(clients=None):
    """Return samples whose only value is their row number; test samples are -1."""
    x = np.arange(50, dtype=np.float32)[:, None]
    return fedflat.Dataset.from_arrays(x, np.arange(50) % 5, -np.ones((7, 1)), np.zeros(7, int), clients)


def test_the_same_rows_are_held_out_every_time():
    one, two = (hold_out(numbered_samples(), 0.3) for _ in range(2))
    assert torch.equal(one.x_test, two.x_test)
    assert sorted(torch.cat([one.x, one.x_test]).flatten().tolist()) == list(range(50))
    assert len(one.x_test) == 15
    assert torch.equal(one.y_test, one.x_test.flatten().long() % 5)
    assert hold_out(numbered_samples(), 0.0).x_test.min() == -1


def test_natural_clients_keep_their_other_samples():
    clients = [list(range(20)), list(range(20, 48))]  # two samples belong to no client
    data = hold_out(numbered_samples(clients), 0.3)
    rows = data.x.flatten().long()
    expected = torch.where(rows < 20, 0, torch.where(rows < 48, 1, -1))
    assert torch.equal(data.owner, expected)


def test_clients_whose_samples_are_all_held_out_are_dropped():
    held_out = int(hold_out(numbered_samples(), 0.3).x_test[0])
    rest = [n for n in range(50) if n != held_out]
    data = hold_out(numbered_samples([[held_out], rest]), 0.3)
    assert data.owner.unique().tolist() == [0]


def test_runs_are_evaluated_on_the_held_out_samples():
    experiment = fedflat.Experiment(rounds=1, local_epochs=1, validation=0.2)
    plain = build_run(fedflat.Experiment())
    built = build_run(experiment)
    assert len(built.client_data.test().y) == round(0.2 * len(plain.dataset.y))
    assert len(built.dataset.y) == len(plain.dataset.y) - len(built.dataset.y_test) > max(map(max, built.client_rows))
    assert fedflat.run(experiment).rounds == 1


def test_the_option_is_stored_only_if_it_is_used():
    assert "validation" not in dump_experiment(fedflat.Experiment())
    experiment = fedflat.Experiment(validation=0.25)
    assert experiment_from_dict(experiment_to_dict(experiment)).validation == 0.25


@pytest.mark.parametrize("share", [0.001, 0.95])
def test_invalid_shares(share):
    with pytest.raises(UserError, match=f"validation={share}: "):
        fedflat.run(fedflat.Experiment(dataset=numbered_samples(), model="mlp", clients=2, cohort=1, validation=share))
