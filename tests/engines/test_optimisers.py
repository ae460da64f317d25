"""Clients' optimisers: torch's own as an oracle, every engine alike, nothing traced twice, kept states resumed."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedflat as ff
from fedflat.cli import main
from fedflat.core.local_training import local_update, reply_uses_steps
from fedflat.core.optimiser import Optimiser, optimiser_step
from fedflat.engine import lane_training
from fedflat.engine.rounds import Trial
from fedflat.errors import UserError
from fedflat.methods import METHODS
from fedflat.runs.build import build_run

sys.path.append(str(Path(__file__).parents[1] / "methods"))
import tiny_problem as tiny


def _double(*values: float) -> Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64)


LR, DECAY = _double(0.1), _double(1e-2)
SGD_RULES = {
    "nesterov": Optimiser(LR, _double(0.9), DECAY, name="nesterov"),
    "momentum kept": Optimiser(LR, _double(0.5), DECAY, keeps_state=True),
    "clipped": Optimiser(LR, 0.0, DECAY, _double(0.2)),
    "linear in a round": Optimiser(LR, 0.0, DECAY, in_round="linear"),
    "a rate for each client": Optimiser(_double(0.1, 0.03), 0.0, DECAY),
}
ADAMW = {
    "adamw": Optimiser(_double(0.01), 0.0, DECAY, name="adamw"),
    "adamw kept, cosine in a round, clipped": Optimiser(
        _double(0.01), 0.0, DECAY, _double(1.0), "adamw", "cosine", keeps_state=True
    ),
}
METHODS_TRIED = {"fedavg": ff.FedAvg(), "fedsol": ff.FedSOL(rho=0.5, perturb="all"), "fedgloss": ff.FedGloSS()}
CASES = [(rule, "fedavg") for rule in SGD_RULES | ADAMW] + [
    ("momentum kept", "fedgloss"),
    ("adamw kept, cosine in a round, clipped", "fedgloss"),
    ("a rate for each client", "fedgloss"),
    ("linear in a round", "fedsol"),
]
every_case = pytest.mark.parametrize(("rule", "method"), CASES)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda p: torch.optim.SGD([p], 0.1, 0.9, weight_decay=1e-2), Optimiser(LR, 0.9, 1e-2)),
        (lambda p: torch.optim.SGD([p], 0.1, 0.9, weight_decay=1e-2, nesterov=True), SGD_RULES["nesterov"]),
        (lambda p: torch.optim.AdamW([p], 0.01, weight_decay=1e-2), ADAMW["adamw"]),
    ],
    ids=["sgd", "nesterov", "adamw"],
)
def test_steps_are_those_of_torch(theirs: Any, ours: Optimiser) -> None:
    task, source, w = tiny.task(), tiny.client_data(), tiny.params()
    batches = [
        source.batch(type(plan)(*(t[0, 0] for t in plan))) for plan in (source.plan([s], 0, [2]) for s in range(6))
    ]
    parameter = w.clone().requires_grad_()
    optimiser = theirs(parameter)
    for batch in batches:
        parameter.grad = task.grad(parameter.detach(), batch)
        optimiser.step()
    end, _, _ = local_update(ff.Method(), task, ours, ff.Message(w), (), batches)
    torch.testing.assert_close(end, parameter.detach(), rtol=0, atol=1e-12)


@every_case
def test_engines_agree(rule: str, method: str) -> None:
    trained = [_train(rule, method, engine, range(3)) for engine in ("batched", "sequential")]
    for one, other in zip(*trained, strict=True):
        ours, theirs = one.pack(), other.pack()
        assert ours.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-10, msg=name)


def _train(rule: str, method: str, engine: str, rounds: range, trials: Any = None) -> list[Trial]:
    chosen = (SGD_RULES | ADAMW)[rule]
    return tiny.train(METHODS_TRIED[method], engine, rounds, optimiser=chosen, trials=trials)


@pytest.mark.parametrize("engine", ["batched", "sequential"])
@pytest.mark.parametrize("rule", ["momentum kept", "adamw kept, cosine in a round, clipped"])
def test_kept_states_are_part_of_a_trial(rule: str, engine: str) -> None:
    whole = _train(rule, "fedgloss", engine, range(4))
    resumed = _train(rule, "fedgloss", engine, range(0))
    for trial, first in zip(resumed, _train(rule, "fedgloss", engine, range(2)), strict=True):
        assert any("moments" in name for name in first.pack())
        trial.unpack(first.pack())
    _train(rule, "fedgloss", engine, range(2, 4), resumed)
    for one, other in zip(whole, resumed, strict=True):
        assert all(torch.equal(value, other.pack()[name]) for name, value in one.pack().items())


def test_a_kept_state_differs_from_one_that_is_reset() -> None:
    kept, reset = (Optimiser(LR, 0.9, keeps_state=keep) for keep in (True, False))
    first, second = (tiny.train(ff.FedAvg(), rounds=range(4), optimiser=o)[0].server.params for o in (kept, reset))
    assert float((first - second).abs().max()) > 1e-3


class Stepping(ff.FedAvg):
    """Gradients that fade out over the steps of a round."""

    def step(self, task: ff.Task, w: Tensor, batch: ff.Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        return task.grad(w, batch) * (1 - batch.step / batch.steps), client


def test_a_step_knows_its_number_and_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[int] = []
    trace = lane_training.Lanes._trace_step
    monkeypatch.setattr(lane_training.Lanes, "_trace_step", lambda *inputs: traced.append(1) or trace(*inputs))
    trained = {engine: tiny.train(Stepping(), engine, momentum=0.0) for engine in ("batched", "sequential")}
    falling = tiny.train(ff.FedAvg(), optimiser=Optimiser(LR, in_round="linear"))
    plain = [trial.server.params for trial in trained["sequential"]]
    assert traced == [1]
    for trial, expected in zip(trained["batched"], plain, strict=True):
        torch.testing.assert_close(trial.server.params, expected, rtol=0, atol=1e-10)
    without_decay = tiny.train(Stepping(), optimiser=Optimiser(LR))
    for trial, other in zip(without_decay, falling, strict=True):
        torch.testing.assert_close(trial.server.params, other.server.params, rtol=0, atol=1e-12)


@given(clip=st.floats(1e-3, 1e3), length=st.floats(0, 1e3))
def test_directions_are_no_longer_than_the_clip(clip: float, length: float) -> None:
    w, direction = torch.zeros(3).double(), length * _double(2 / 3, -1 / 3, 2 / 3)
    end, _ = optimiser_step(Optimiser(_double(1.0), clip=_double(clip)), w, (), direction, LR, LR)
    assert float(end.norm()) == pytest.approx(min(clip, length), rel=1e-12)
    assert float((end + direction * min(1.0, clip / max(length, 1e-300))).abs().max()) <= 1e-9


@pytest.mark.parametrize("in_round", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_reply_is_told_the_mean_learning_rate(in_round: Any, steps: int) -> None:
    optimiser, ones, moved = Optimiser(LR, in_round=in_round), torch.ones(1).double(), torch.zeros(1).double()
    for j in range(steps):
        moved, _ = optimiser_step(optimiser, moved, (), -ones, _double(j), _double(steps))
    assert float(moved) == pytest.approx(float(steps * optimiser.mean_lr(_double(steps))), rel=1e-12)


@given(
    schedule=st.sampled_from(["exponential", "constant", "step", "cosine"]),
    warmup=st.integers(0, 6),
    rounds=st.integers(1, 30),
    step=st.integers(1, 9),
)
def test_learning_rates_over_rounds(schedule: Any, warmup: int, rounds: int, step: int) -> None:
    decay = 0.5 if schedule in ("exponential", "step") else 1.0
    setting = ff.Experiment(lr=0.2, lr_schedule=schedule, lr_decay=decay, lr_step=step, lr_warmup=warmup, rounds=rounds)
    setting.check()
    rates = [setting.lr_at(r) for r in range(rounds)]
    assert all(0 < rate <= 0.2 for rate in rates)
    expected = {
        "exponential": lambda r: 0.5**r,
        "constant": lambda r: 1.0,
        "step": lambda r: 0.5 ** (r // step),
        "cosine": lambda r: math.cos(math.pi * r / (2 * (rounds - warmup))) ** 2,
    }[schedule]
    after = [0.2 * expected(r) for r in range(rounds - warmup)]
    rising = [0.2 * (r + 1) / (warmup + 1) for r in range(min(warmup, rounds))]
    assert rates == pytest.approx(rising + after, rel=1e-9)


BASE = ff.Experiment(clients=4, cohort=2, model="mlp", partition="iid", local_epochs=1, rounds=2, eval_every=2)


def test_methods_that_divide_by_steps_are_found() -> None:
    found = {name for name, cls in METHODS.items() if reply_uses_steps(cls(), tiny.params())}
    assert found >= {"scaffold", "fedgamma", "fednova", "mofedsam"}
    assert not found & {"fedavg", "fedsol", "fedgloss", "feddyn", "moon"}


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"optimiser": "adamw"}, "optimiser"),
        ({"optimiser": "nesterov", "momentum": 0.9}, "optimiser"),
        ({"momentum": 0.9, "optimiser_state": "keep"}, "momentum"),
        ({"momentum": 0.9, "lr_in_round": "linear"}, "momentum"),
    ],
)
def test_methods_that_divide_by_steps_need_plain_steps(options: dict[str, Any], option: str) -> None:
    with pytest.raises(UserError, match="length of the clients' steps") as error:
        build_run(dataclasses.replace(BASE, method=ff.SCAFFOLD(), **options))
    assert error.value.option == option
    build_run(dataclasses.replace(BASE, method=ff.FedAvg(), **options))
    build_run(dataclasses.replace(BASE, method=ff.SCAFFOLD(), momentum=0.9))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--optimiser nesterov", "--optimiser nesterov: needs momentum"),
        ("--optimiser adamw --momentum 0.9", "--momentum 0.9: is for --optimiser sgd"),
        ("--optimiser-state keep", "--optimiser-state keep: sgd without --momentum"),
        ("--lr-schedule cosine --lr-decay 0.9", "--lr-decay 0.9: is for --lr-schedule exponential or step"),
        ("--clip-grad 0", "--clip-grad 0"),
        ("--optimiser adamv", "did you mean adamw?"),
        ("--optim adamw", "did you mean --optimiser?"),
    ],
)
def test_mistakes_are_one_line(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", *words.split()]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1
