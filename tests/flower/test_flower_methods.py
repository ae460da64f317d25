"""Every method trains the same model on Flower as in a simulation, also with client states and two exchanges."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.state import ClientStore
from fedflat.engine.participation import Participation
from fedflat.engine.rounds import CohortJob
from fedflat.flower.config import FederationOptions, from_run_config, to_run_config
from fedflat.flower.engine import FlowerEngine, LastReply
from fedflat.flower.messages import ClientInfo
from fedflat.flower.validation import CheckedReply
from fedflat.models import TEXT_MODELS
from fedflat.models.text import transformer
from fedflat.runs import read

sys.path.append(str(Path(__file__).parents[1] / "methods"))
from variants import ALL

every_method = pytest.mark.parametrize("method", ALL.values(), ids=ALL)


@every_method
@pytest.mark.usefixtures("known_noise")
def test_equal_to_a_simulation(method: Method, tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, method=method, lr_decay=0.9, momentum=0.5)
    assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))


@every_method
def test_the_run_configuration_describes_the_experiment(method: Method) -> None:
    experiment = dataclasses.replace(EXPERIMENT, method=method, seeds=(7,), lr=1e-3)
    federation = FederationOptions(out="a folder", round_timeout=12.5, min_nodes=2, min_replies=2)
    flat = to_run_config(experiment, federation)
    assert all(type(value) in (bool, int, float, str) for value in flat.values())
    assert from_run_config(flat) == (experiment, federation)


def test_kept_moments_stay_on_the_nodes(tmp_path: Path) -> None:
    adamw = {"optimiser": "adamw", "optimiser_state": "keep", "lr_in_round": "linear", "lr": 0.01, "rounds": 3}
    experiment = dataclasses.replace(EXPERIMENT, method=ff.FedGloSS(), **adamw)
    assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))


def test_rounds_that_are_not_evaluated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    experiment = dataclasses.replace(EXPERIMENT, rounds=3, eval_every=2)
    with caplog.at_level("INFO"):
        assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))
    lines = [line for line in caplog.messages if line.startswith("round ")]
    assert [line.split(":")[0] for line in lines] == ["round 1", "round 2", "round 3"]
    assert ["accuracy" in line for line in lines] == [False, True, True], "the last round is always evaluated"


def test_text_with_lora_equals_a_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only LoRA's matrices travel; the nodes build the weights beside them from the seed."""
    monkeypatch.setitem(TEXT_MODELS, "small", lambda *_: ff.lora(transformer(256, 8, 8, 1, 2), rank=2))
    (tmp_path / "text").mkdir()
    for k in range(4):
        (tmp_path / "text" / f"{k}.txt").write_text(f"client {k} writes to the others. " * (k + 1))
    own = {"dataset": f"text:{tmp_path / 'text'}", "model": "small", "sequence_length": 8}
    experiment = dataclasses.replace(EXPERIMENT, **own, method=ff.SCAFFOLD(), partition="natural", batch_size=4)
    model = federate(Loopback(experiment), experiment, tmp_path / "run")
    assert model["trial.0.server.params"].numel() == 2 * 2 * 2 * 8
    assert_same(model, simulate(experiment))


def test_a_regression_on_a_table_equals_a_simulation(tmp_path: Path) -> None:
    """Every node takes its client's rows of the table; the server evaluates on the clients' own test samples."""
    rows = [f"{n % 7},{n % 3},{'ab'[n % 2]},{n % 4},{n % 7 - n % 3}" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,client,y", *rows]))
    columns = {"target_column": ("y",), "feature_columns": ("a", "b", "c"), "client_column": "client"}
    own = {"dataset": f"table:{tmp_path / 't.csv'}", "task": "regression", "partition": "natural", "model": "mlp"}
    experiment = dataclasses.replace(EXPERIMENT, **own, **columns, method=ff.SCAFFOLD())
    assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))
    result = read.read_stored_run(tmp_path / "run").result
    assert result is not None
    assert result.training_clients is not None
    assert result.training_clients["clients"] == 4


def test_held_out_clients_are_for_simulations() -> None:
    experiment = dataclasses.replace(EXPERIMENT, holdout_clients=0.25)
    with pytest.raises(ff.UserError, match="is for simulations"):
        from_run_config(to_run_config(experiment, FederationOptions()))


def test_equal_weights_and_another_seed(tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, method=ff.SCAFFOLD(), weights="uniform", seeds=(3,))
    assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))


def test_replies_are_averaged_where_the_server_computes() -> None:
    """Fake tensors stand for a GPU; operations on tensors of different devices raise."""
    with FakeTensorMode():
        model, states = torch.zeros(5, device="cuda"), ClientStore(LastReply(torch.tensor(-1)))
        sgd = Optimiser(torch.ones((), device="cuda"), 0.0, 0.0)
        job = CohortJob(0, 0, 0, [2, 0], torch.ones(2, device="cuda"), 4, ff.Message(model), states, sgd, ff.FedAvg())
        info = ClientInfo(client=0, examples=7)
        valid = {client: CheckedReply(ff.Reply(model), info, 1.0) for client in job.clients}
        server: Any = SimpleNamespace(
            experiment=EXPERIMENT,
            federation=FederationOptions(),
            participation=Participation([7] * 4, 3),
            nodes=SimpleNamespace(examples=[7] * 4),
            _log_average=lambda *_: None,
        )
        cohort = FlowerEngine._average(server, job, valid).cohort
        assert {cohort.mean.delta.device.type, cohort.uniform.delta.device.type} == {"cuda"}


@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_the_result_equals_that_of_a_simulation(validation: float, tmp_path: Path) -> None:
    from fedflat.runs.read import read_stored_run

    experiment = dataclasses.replace(EXPERIMENT, validation=validation)
    federate(Loopback(experiment), experiment, tmp_path / "run")
    run, simulated = read_stored_run(tmp_path / "run"), ff.run(dataclasses.replace(experiment, engine="sequential"))
    assert run.result
    assert run.result.final == pytest.approx(simulated.final)
    assert [row["loss"] for row in run.rows] == pytest.approx([row["loss"] for row in simulated.history], abs=1e-5)
    assert run.result.bytes_up_per_client_round == simulated.bytes_up_per_client_round
    assert run.result.client_steps_per_second > 0


def test_steps_are_counted_as_in_a_simulation(tmp_path: Path) -> None:
    federate(Loopback(EXPERIMENT), EXPERIMENT, tmp_path / "run")
    ff.run(dataclasses.replace(EXPERIMENT, engine="sequential"), out=tmp_path / "simulated")
    files = [tmp_path / out / "checkpoint" / "state.safetensors" for out in ("run", "simulated")]
    (round, _, steps), (other_round, _, other_steps) = (load_file(file)["counters"].tolist() for file in files)
    assert (round, steps) == (other_round, other_steps)


def test_personalising_needs_the_states_of_clients(tmp_path: Path) -> None:
    """A federation's folder has everything only for methods whose clients keep no state."""
    plain, stateful = (dataclasses.replace(EXPERIMENT, method=m, rounds=1) for m in (ff.FedSAM(), ff.SCAFFOLD()))
    federate(Loopback(plain), plain, tmp_path / "plain")
    assert read.read_trained_run(tmp_path / "plain").trials[0].server.params.isfinite().all()
    federate(Loopback(stateful), stateful, tmp_path / "stateful")
    with pytest.raises(ff.UserError, match="what its clients remember is on their nodes"):
        read.read_trained_run(tmp_path / "stateful")


ATTACKED = dataclasses.replace(EXPERIMENT, attackers=0.25, rounds=2)
DEFENDED: dict[str, dict[str, Any]] = {
    "noise": {"attack": "noise"},
    "labels": {"attack": "labels", "method": ff.SCAFFOLD()},
    "clipped": {"clip_replies": "1x"},
    "median": {"aggregate": "median", "attack": "scale"},
    "krum": {"aggregate": "krum:0"},
}


@pytest.mark.parametrize("options", DEFENDED.values(), ids=DEFENDED)
def test_attackers_and_defences_equal_a_simulation(options: dict[str, Any], tmp_path: Path) -> None:
    """Attackers attack on their nodes, the server averages as a simulation does."""
    experiment = dataclasses.replace(ATTACKED, **options)
    assert_same(federate(Loopback(experiment), experiment, tmp_path / "run"), simulate(experiment))
