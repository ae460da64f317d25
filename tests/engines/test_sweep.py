"""Points of a sweep are lanes of one engine: each learns what it would learn alone, and one step serves all."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedflat as ff
from fedflat.core.method import Method, hyper_parameters, with_hyper_parameters
from fedflat.core.optimiser import Optimiser
from fedflat.engine import lane_training
from fedflat.engine.batched import Batched, takes_lane_values
from fedflat.engine.rounds import Trial, cohort_jobs, update_servers
from fedflat.engine.sequential import Sequential, client_batches
from fedflat.errors import UserError
from fedflat.runs import sweep as sweeps
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.train_together import real_hyper_parameters

sys.path.append(str(Path(__file__).parents[1] / "methods"))
import tiny_problem as tiny
from variants import DEFAULTS

RATES = (0.1, 0.03)


def changed(value: float) -> float:
    """Return another value that every range allows."""
    return 0.4 * value if 0 < value < math.inf else 0.25


def lane_fields(method: Method) -> list[str]:
    """Return the hyper-parameters over which the method's step can be vectorised."""
    batch = next(client_batches(tiny.client_data(), 0, 0, 0, 0))
    names = real_hyper_parameters(method)
    return [n for n in names if takes_lane_values(method, n, tiny.task(), tiny.params(), batch)]


def train(engine: Any, methods: list[Method]) -> list[Trial]:
    """Train two methods, each with its own learning rate, side by side."""
    trials, source = [Trial(0, method, tiny.params()) for method in methods], tiny.client_data()
    for r in range(2):
        cohort = tiny.COHORTS[r]
        weights = source.sizes[cohort].double()
        for exchange in range(methods[0].exchanges):
            jobs = [
                cohort_jobs(m, [t], r, exchange, [cohort], [weights], 4, Optimiser(torch.tensor(lr).double(), 0.5))[0]
                for m, t, lr in zip(methods, trials, RATES, strict=True)
            ]
            for method, trial, trained in zip(methods, trials, engine.train(jobs), strict=True):
                update_servers(method, [trial], [trained])
    return trials


@pytest.mark.parametrize("method", DEFAULTS.values(), ids=DEFAULTS)
def test_a_point_learns_what_it_would_learn_alone(method: Method) -> None:
    fields, values = lane_fields(method), hyper_parameters(method)
    pair = [method, with_hyper_parameters(method, {name: changed(values[name]) for name in fields})]
    together = train(Batched(method, tiny.task(), tiny.client_data(), lane_fields=fields), pair)
    alone = train(Sequential(method, tiny.task(), tiny.client_data()), pair)
    for one, other in zip(together, alone, strict=True):
        theirs = other.pack()
        for name, value in one.pack().items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-10, msg=name)


def test_most_hyper_parameters_can_be_lanes() -> None:
    own = {name: lane_fields(method) for name, method in DEFAULTS.items() if name in ("fedsol", "fedsam", "fedprox")}
    assert own == {"fedsol": ["rho", "temperature"], "fedsam": ["rho"], "fedprox": ["mu"]}
    assert "inner.rho" in lane_fields(ff.ServerMomentum(inner=ff.FedSAM()))


@dataclasses.dataclass(frozen=True)
class Branching(ff.Method):
    """A method whose step cannot be vectorised over rho."""

    rho: ff.NonNegative = 0.1
    scale: ff.Positive = 1.0

    def step(self, task: ff.Task, w: Any, batch: ff.Batch, msg: Any, client: Any) -> tuple[Any, Any]:
        g = self.scale * task.grad(w, batch)
        return (g + self.rho * w, client) if self.rho > 0.5 else (g, client)


def test_a_hyper_parameter_that_decides_what_is_computed_is_no_lane() -> None:
    assert lane_fields(Branching()) == ["scale"]


BASE = ff.Experiment(
    method=ff.FedSOL(perturb="all"),
    clients=4,
    cohort=2,
    model="mlp",
    local_epochs=1,
    rounds=2,
    validation=0.2,
    checkpoint_every=1,
)
GRID = {"rho": [0.5, 2.0], "lr": [0.01, 0.1], "momentum": [0.0, 0.9]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[ff.SweepPoint], int]:
    """A sweep of eight points, and how many steps were traced for it."""
    traced: list[int] = []
    out, trace = tmp_path_factory.mktemp("sweep"), lane_training.Lanes._trace_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_training.Lanes, "_trace_step", lambda *inputs: traced.append(1) or trace(*inputs))
        return out, ff.sweep(BASE, GRID, out), len(traced)


def test_one_step_serves_all_points_of_a_group(swept: tuple[Path, list[ff.SweepPoint], int]) -> None:
    out, points, traced = swept
    assert len(points) == 8
    assert traced == 2  # with and without momentum
    assert [p.score for p in points] == sorted((p.score for p in points), reverse=True)
    stored = json.loads((out / "sweep.json").read_text())
    assert [point["options"] for point in stored] == [p.values for p in points]
    assert (out / stored[0]["folder"] / "result.json").exists()


def test_a_folder_holds_what_a_single_run_would(swept: tuple[Path, list[ff.SweepPoint], int], tmp_path: Path) -> None:
    point = next(p for p in swept[1] if p.values == {"rho": 2.0, "lr": 0.1, "momentum": 0.9})
    ff.run(point.experiment, tmp_path / "alone")
    assert point.folder
    assert (point.folder / "config.yaml").read_text() == (tmp_path / "alone" / "config.yaml").read_text()
    ours, alone = (load_tensors(f / "checkpoint" / "state.safetensors") for f in (point.folder, tmp_path / "alone"))
    assert ours
    assert alone
    for name in ours.keys() - {"counters"}:
        torch.testing.assert_close(ours[name], alone[name], rtol=1e-4, atol=1e-5)


def test_an_interrupted_sweep_continues(swept: tuple[Path, list[ff.SweepPoint], int], tmp_path: Path) -> None:
    def stop(rounds: int, rows: Any) -> None:
        if rounds == 4 * 2 + 4:  # the second group of four points, after the first of its two rounds
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ff.sweep(BASE, GRID, tmp_path, watch=stop)
    assert len(list(tmp_path.glob("*/result.json"))) == 4
    with pytest.raises(UserError, match="already holds"):
        ff.sweep(BASE, GRID, tmp_path)
    resumed = {p.folder.name: p for p in ff.sweep(BASE, GRID, tmp_path, resume=True) if p.folder}
    for point in swept[1]:
        assert point.folder
        assert point.result.history == [
            {**row, "seconds": old["seconds"]}
            for row, old in zip(resumed[point.folder.name].result.history, point.result.history, strict=True)
        ]


def test_no_more_points_at_once_than_wanted() -> None:
    experiments = [
        each for _, each in sweeps.grid_points(BASE, {"lr": [0.1, 0.2, 0.3, 0.4, 0.5], "batch_size": [8, 16]})
    ]
    groups = sweeps.group_experiments(experiments, at_once=3)
    assert sorted(map(len, groups)) == [2, 2, 3, 3]
    assert all(len({experiments[n].batch_size for n in group}) == 1 for group in groups)


def test_options_of_a_wrapped_method() -> None:
    wrapped = dataclasses.replace(BASE, method=ff.ServerMomentum(inner=ff.FedSAM()))
    experiment = sweeps.with_options(wrapped, {"rho": 0.7, "beta": 0.5, "lr": 0.3})
    assert hyper_parameters(experiment.method) == {"inner.rho": 0.7, "beta": 0.5, "server_lr": 1.0}
    assert experiment.lr == 0.3
    both = dataclasses.replace(BASE, method=ff.ServerMomentum(inner=ff.FedSMOO(beta=10.0)))
    assert sweeps.with_options(both, {"beta": 0.5}).method == ff.ServerMomentum(beta=0.5, inner=ff.FedSMOO(beta=10.0))


def test_points_with_attackers_train_one_by_one() -> None:
    """Attacks are functions of a client's number, which lanes of several points would shift."""
    attacked = dataclasses.replace(BASE, attackers=0.5)
    experiments = [each for _, each in sweeps.grid_points(attacked, {"lr": [0.1, 0.2]})]
    assert sweeps.group_experiments(experiments, at_once=8) == [[0], [1]]


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        ({"rhoo": [1.0]}, "did you mean rho"),
        ({"seeds": [0, 1]}, "is the same for all points"),
        ({"rho": []}, "list of values"),
        ({"rho": 1.0}, "list of values"),
        ({"rho": "1.0"}, "list of values"),
        ({"rho": [1.0, 1.0]}, "may appear once"),
        ({"rho": [-1.0]}, "at least 0"),
    ],
)
def test_grids_that_cannot_be_used(grid: dict[str, list[Any]], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        ff.sweep(BASE, grid)


def test_points_are_not_chosen_on_the_test_set() -> None:
    with pytest.raises(UserError, match="held-out training samples"):
        ff.sweep(dataclasses.replace(BASE, validation=0.0), GRID)
