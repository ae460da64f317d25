"""The trajectory: rounds are replayed as they were trained, the plane is that of the principal components."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from finished_runs import SMALL, quick, read
from hypothesis import given, settings
from hypothesis import strategies as st

import fedflat as ff
from fedflat.cli import main
from fedflat.errors import UserError
from fedflat.flatness.finished_run import FinishedRun
from fedflat.flatness.objective import mean_loss
from fedflat.flatness.trajectory import (
    RecordedRound,
    axes_around,
    clients_in_plane,
    principal_plane,
    replay_rounds,
    share_in_plane,
    spread_rounds,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two seeds and five rounds."""
    path = tmp_path_factory.mktemp("trajectory") / "run"
    ff.run(ff.Experiment(method=ff.FedDyn(), seeds=(3, 5), rounds=5, **SMALL), out=path)
    return path


def test_replayed_rounds_are_those_of_the_training(folder):
    run = FinishedRun(folder, quick("trajectory"))
    recorded = {each.round: each for each in replay_rounds(run.trained, 5, [1, 2, 5])}
    assert [*recorded] == [1, 2, 5]
    with ff.Federation(ff.Experiment(method=ff.FedDyn(), seeds=(5,), rounds=5, **SMALL)) as federation:
        before = run.trained.built.initial_params[1]
        for number in federation:
            if each := recorded.get(number):
                assert torch.equal(each.before, before)
                assert each.clients == federation.cohort
                assert torch.equal(each.ends, federation.local_models)
                assert torch.equal(each.after, federation.server.params)
            before = federation.server.params


def test_the_document_holds_the_path_the_clients_and_the_surface(folder):
    assert (
        main(
            [
                "analyse",
                str(folder),
                *["--what", "trajectory", "--trajectory-rounds", "3", "--grid", "4", "--samples", "30"],
            ]
        )
        == 0
    )
    found = read(folder, "trajectory")["seeds"]["5"]
    assert found["round"] == [0, 1, 3, 5]
    assert [each["round"] for each in found["clients"]] == [1, 3, 5]
    assert (found["server_x"][-1], found["server_y"][-1]) == (0, 0), "the last model is the origin"
    assert found["replay_distance"] < 1e-6
    assert found["server_loss"][-1] == pytest.approx(found["model_loss"], rel=1e-4)
    assert 0 < found["explained_2"] <= found["explained_1"] <= 1
    assert 0 < found["client_share"] < 1
    first = found["clients"][0]
    assert (first["start_x"], first["start_y"]) == pytest.approx((found["server_x"][0], found["server_y"][0]))
    everyone = [*found["server_x"], *(x for each in found["clients"] for x in each["x"])]
    assert min(found["x"]) < min(everyone) < max(everyone) < max(found["x"])
    rows = list(csv.DictReader((folder / "analysis" / "trajectory.csv").open()))
    assert len([row for row in rows if row["client"] == ""]) == 2 * 4
    assert len(rows) == 2 * (4 + 3 * 3)
    run = FinishedRun(folder, quick("trajectory"))
    recorded = replay_rounds(run.trained, 5, [1, 3, 5])
    plane = principal_plane(torch.stack([recorded[0].before, *(each.after for each in recorded)]))
    w = plane.origin + found["x"][1] * plane.directions[0] + found["y"][2] * plane.directions[1]
    assert found["loss"][2][1] == pytest.approx(float(mean_loss(run.task, w.float(), run.data)), rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 8), st.integers(0, 1000))
def test_the_plane_is_that_of_a_singular_value_decomposition(points, seed):
    path = np.random.default_rng(seed).normal(size=(points, 11)).cumsum(0)
    plane = principal_plane(torch.from_numpy(path))
    centred = path - path.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    assert plane.explained.numpy() == pytest.approx(sizes[:2] ** 2 / (sizes**2).sum())
    assert abs(plane.directions.numpy() @ directions[:2].T) == pytest.approx(np.eye(2), abs=1e-6)
    assert plane.project(torch.from_numpy(path[-1:])).numpy() == pytest.approx(np.zeros((1, 2)))
    assert (plane.directions.numpy() @ centred[0] >= 0).all(), "the sign does not depend on the library"


def test_clients_in_the_plane_are_seen_whole_and_others_in_part():
    plane = principal_plane(torch.tensor([[2.0, 0, 0], [0, 1, 0], [0, 0, 0]]))
    before = torch.tensor([1.0, 1, 0])
    flat, raised = (before + torch.tensor([[0.0, 2, up]]) for up in (0.0, 2.0))
    rounds = [RecordedRound(1, [4], before, end, before) for end in (flat, raised)]
    assert share_in_plane(plane, rounds[:1]) == pytest.approx(1)
    assert share_in_plane(plane, rounds[1:]) == pytest.approx(0.5)
    (found,) = clients_in_plane(plane, rounds[1:])
    assert found["client"] == [4]
    assert np.hypot(found["x"][0] - found["start_x"], found["y"][0] - found["start_y"]) == pytest.approx(2)
    nobody = RecordedRound(2, [], before, flat[:0], before)
    assert clients_in_plane(plane, [nobody])[0]["x"] == []


def test_rounds_are_spread_and_axes_cover_all_points():
    assert spread_rounds(60, 4) == [1, 21, 40, 60]
    assert spread_rounds(3, 20) == [1, 2, 3]
    x, y = axes_around(torch.tensor([[0.0, 4.0], [10.0, 5.0]]), 3)
    assert (x.tolist(), y.tolist()) == (pytest.approx([-1.5, 5, 11.5]), pytest.approx([3.85, 4.5, 5.15]))


def test_a_path_without_a_plane_is_refused():
    with pytest.raises(UserError, match="needs two rounds at least, and there is 1"):
        spread_rounds(1, 20)
    with pytest.raises(UserError, match="moves in two directions"):
        principal_plane(torch.tensor([[0.0, 0], [1, 1], [2, 2]]))


def test_runs_share_a_plane(folder, tmp_path):
    other = tmp_path / "other"
    ff.run(ff.Experiment(method=ff.FedAvg(), seeds=(5, 7), rounds=4, **SMALL), out=other)
    ff.analyse([folder, other], quick("trajectory", trajectory_rounds=3, plane="shared"))
    one, two = read(folder, "trajectory"), read(other, "trajectory")
    assert one["plane_shared_by"] == two["plane_shared_by"] == ["run", "other"]
    (here, there), alone = (each["seeds"]["5"] for each in (one, two)), one["seeds"]["3"]
    assert [here[key] for key in ("x", "y", "loss", "explained_1")] == [
        there[key] for key in ("x", "y", "loss", "explained_1")
    ]
    assert (here["round"], there["round"]) == ([0, 1, 3, 5], [0, 1, 2, 4])
    assert (here["server_x"][0], here["server_y"][0]) == pytest.approx((there["server_x"][0], there["server_y"][0]))
    assert np.mean(here["server_x"] + there["server_x"]) == pytest.approx(0, abs=1e-6), "the mean of all is the origin"
    assert (alone["server_x"][-1], alone["server_y"][-1]) == (0, 0), "nobody shares the plane of seed 3"
    points = [
        torch.cat([each.before[None] for each in rounds[:1]] + [each.after[None] for each in rounds])
        for rounds in (
            replay_rounds(FinishedRun(path, quick("trajectory")).trained, 5, found["round"][1:])
            for path, found in ((folder, here), (other, there))
        )
    ]
    plane = principal_plane(*points)
    assert plane.project(points[1])[:, 1].tolist() == pytest.approx(there["server_y"], abs=1e-6)
