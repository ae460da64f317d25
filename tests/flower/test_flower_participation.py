"""A federation draws, loses and slows down the clients that a simulation does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from loopback import EXPERIMENT, Loopback, federate, run_server_app

import fedflat as ff
from fedflat.flower.app import RunConfigError
from fedflat.runs.read import read_stored_run

STRAGGLING = dataclasses.replace(
    EXPERIMENT, method=ff.SCAFFOLD(), sampling="poisson", dropout_rate=0.2, stragglers=0.5, straggler_work=0.4, rounds=4
)


def test_equal_to_a_simulation(tmp_path: Path) -> None:
    """The server sends the number of steps and the learning rate; only the server has the files."""
    (tmp_path / "own.csv").write_text("client,lr,local_epochs,local_steps\n0,0.2,2,\n1,,,5\n3,0.01,,\n")
    (tmp_path / "trace.csv").write_text("client,from,to\n0,1,\n1,1,2\n2,1,\n3,2,\n")
    files = {"client_settings": str(tmp_path / "own.csv"), "availability": str(tmp_path / "trace.csv")}
    experiment = dataclasses.replace(STRAGGLING, **files)  # type: ignore[arg-type]
    grid = Loopback(experiment)
    simulated = ff.run(dataclasses.replace(experiment, engine="sequential"))
    federate(grid, experiment, tmp_path / "run", min_nodes=4)
    run = read_stored_run(tmp_path / "run")
    assert run.result
    assert [row["loss"] for row in run.rows] == pytest.approx([row["loss"] for row in simulated.history], abs=1e-5)
    assert run.result.clients_replied_per_round == simulated.clients_replied_per_round


def test_weighted_sampling_is_refused(tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, sampling="weighted")
    with pytest.raises(RunConfigError, match="sampling weighted: a federation learns the sizes"):
        run_server_app(Loopback(experiment), experiment, tmp_path / "run")


SMALL_ROUNDS = {
    "replies": ({}, {"federation.min_replies": 2}, "federation.min_replies 2: must be at most 1: with these options"),
    "rule": ({"aggregate": "median"}, {}, "aggregate median: needs a cohort of at least 3; with these options a round"),
}


@pytest.mark.parametrize(("changes", "options", "message"), SMALL_ROUNDS.values(), ids=SMALL_ROUNDS)
@pytest.mark.usefixtures("tracebacks")
def test_more_replies_than_a_round_may_ask_are_refused(
    changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Such a round would be repeated forever, since the draw of a round is always the same."""
    experiment = dataclasses.replace(EXPERIMENT, sampling="poisson", **changes)
    with pytest.raises(RunConfigError, match=message):
        run_server_app(Loopback(experiment), experiment, tmp_path / "run", **options)


@pytest.mark.parametrize(("option", "value"), [("sampling", "poisson"), ("dropout_rate", 0.1)])
def test_secure_aggregation_needs_cohorts_of_a_fixed_size(option: str, value: object, tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, weights="uniform", **{option: value})  # type: ignore[arg-type]
    secure = {"federation.secure": True, "federation.min_nodes": 2}
    with pytest.raises(RunConfigError, match=f"{option} {value}: cannot be used with federation.secure"):
        run_server_app(Loopback(experiment), experiment, tmp_path / "run", **secure)
