"""Every method, stateful ones and those of two exchanges included, learns on Flower what it learns in a simulation."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate

import fedflat as ff
from fedflat.flower.config import Federation, from_run_config, to_run_config
from fedflat.method import Method

sys.path.append(str(Path(__file__).parents[1] / "methods"))
from variants import ALL

every_method = pytest.mark.parametrize("method", ALL.values(), ids=ALL)


@every_method
def test_equal_to_a_simulation(method: Method, tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, method=method, lr_decay=0.9, momentum=0.5)
    assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))


@every_method
def test_survives_flowers_configuration(method: Method) -> None:
    experiment = dataclasses.replace(EXPERIMENT, method=method, seeds=(7,), lr=1e-3)
    federation = Federation(out="a folder", round_timeout=12.5, min_replies=2)
    flat = to_run_config(experiment, federation)
    assert all(type(value) in (bool, int, float, str) for value in flat.values())
    assert from_run_config(flat) == (experiment, federation)


def test_equal_weights_and_another_seed(tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, method=ff.SCAFFOLD(), weights="uniform", seeds=(3,))
    assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))


def test_the_result_is_a_run_like_any_other(tmp_path: Path) -> None:
    from fedflat.report.runs import read_run

    federate(Loopback(EXPERIMENT), EXPERIMENT, tmp_path / "run")
    run, simulated = read_run(tmp_path / "run"), ff.run(dataclasses.replace(EXPERIMENT, engine="sequential"))
    assert run.result
    assert run.result.final_accuracy == pytest.approx(simulated.final_accuracy)
    assert [row["loss"] for row in run.rows] == pytest.approx([row["loss"] for row in simulated.history], abs=1e-5)
    assert run.result.bytes_up_per_client_round == simulated.bytes_up_per_client_round
    assert run.result.client_steps_per_second > 0
