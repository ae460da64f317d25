"""Hyper-parameters outside their range are refused by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.method import Message, Method
from fedflat.core.task import Batch, Task
from fedflat.options import check
from fedflat.runs.config import dump_yaml, method_to_dict, same_run

WRONG: list[tuple[Method, str]] = [
    (ff.FedSAM(rho=-0.1), "rho=-0.1: must be at least 0"),
    (ff.FedASAM(rho=-1.0), "rho=-1.0: must be at least 0"),
    (ff.FedASAM(eta=-0.1), "eta=-0.1: must be at least 0"),
    (ff.FedSOL(rho=-2.0), "rho=-2.0: must be at least 0"),
    (ff.FedGF(rho=-0.1), "rho=-0.1: must be at least 0"),
    (ff.FedGF(window=0), "window=0: must be between 1 and"),
    (ff.FedGF(static_c=1.5), "static_c=1.5: must be between 0 and 1"),
    (ff.FedGloSS(beta=0.0), "beta=0.0: must be more than 0"),
    (ff.FedGloSS(rho_local=-0.1), "rho_local=-0.1: must be at least 0"),
    (ff.FedGloSS(dual="mine"), 'dual="mine": must be one of paper, released'),  # type: ignore[arg-type]
    (ff.NaiveFedGloSS(beta=0.0), "beta=0.0: must be more than 0"),
    (ff.FedSMOO(beta=0.0), "beta=0.0: must be more than 0"),
    (ff.FedSMOO(regularise=1), "regularise=1: must be true or false"),  # type: ignore[arg-type]
    (ff.FedDyn(dyn_alpha=0.0), "dyn_alpha=0.0: must be more than 0"),
    (ff.FedDyn(rho=math.nan), "rho=nan: must be a number"),
    (ff.FedSpeed(lam=0.0), "lam=0.0: must be more than 0"),
    (ff.FedSpeed(mix=1.1), "mix=1.1: must be between 0 and 1"),
    (ff.FedNTD(tau=0.0), "tau=0.0: must be more than 0"),
    (ff.MOON(tau=-1.0), "tau=-1.0: must be more than 0"),
    (ff.MOON(mu=-1.0), "mu=-1.0: must be at least 0"),
    (ff.FedProx(mu=-1.0), "mu=-1.0: must be at least 0"),
    (ff.MoFedSAM(beta=2.0), "beta=2.0: must be between 0 and 1"),
    (ff.FedGAMMA(rho=-0.1), "rho=-0.1: must be at least 0"),
    (ff.SCAFFOLD(steps="momentun"), 'steps="momentun": must be one of plain, momentum'),  # type: ignore[arg-type]
    (ff.ServerMomentum(beta=-0.1), "beta=-0.1: must be between 0 and 1"),
    (ff.ServerMomentum(inner=ff.FedSAM(rho=-0.1)), "rho=-0.1: must be at least 0"),
    (ff.ServerAdam(tau=0.0), "tau=0.0: must be more than 0"),
    (ff.ServerYogi(beta2=1.5), "beta2=1.5: must be between 0 and 1"),
    (ff.ServerAdagrad(server_lr=0.0), "server_lr=0.0: must be more than 0"),
    (ff.Averaged(every=0), "every=0: must be between 1 and"),
]


@pytest.mark.parametrize(("method", "message"), WRONG, ids=[f"{type(m).__name__}-{text[:15]}" for m, text in WRONG])
def test_refused_by_name(method: Method, message: str) -> None:
    with pytest.raises(ff.UserError) as refusal:
        check(method)
    assert str(refusal.value).startswith(message)


def test_refused_before_training_starts() -> None:
    with pytest.raises(ff.UserError, match="rho=-1"):
        ff.run(ff.Experiment(method=ff.FedSAM(rho=-1.0)))


@pytest.mark.parametrize("method", [ff.MOON(), ff.FedDecorr()], ids=["moon", "feddecorr"])
def test_features_need_a_model_in_two_parts(method: Method) -> None:
    task, batch = Task(nn.Linear(4, 3)), Batch(torch.ones(2, 4), torch.tensor([0, 1]), torch.ones(2).bool(), None)
    w = torch.zeros(task.size)
    with pytest.raises(ff.UserError, match=f"method {type(method).__name__.lower()}: the model has no parts"):
        method.step(task, w, batch, Message(w), method.init_client(w))


def test_a_configuration_from_before_an_option_is_the_same_run() -> None:
    method = ff.ServerMomentum(inner=ff.FedDyn(dyn_alpha=0.2))
    today = method_to_dict(method)
    old = today | {"inner": {name: value for name, value in today["inner"].items() if name != "dual"}}
    assert same_run(dump_yaml({"method": old}), dump_yaml({"method": today}))
    other = today | {"inner": today["inner"] | {"dual": "released"}}
    assert not same_run(dump_yaml({"method": old}), dump_yaml({"method": other}))
