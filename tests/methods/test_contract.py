"""The contract that every method must fulfil. A new entry of METHODS is tested here without a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import number_problem
import pytest
import tiny_problem as tiny
import token_problem
import torch
from torch.func import vmap
from variants import ALL, AVERAGED, DEFAULTS

from fedflat.core.local_training import finish_local_training, local_step, local_update, start_local_training
from fedflat.core.method import Cohort, Method
from fedflat.core.state import pack_state, stack_states, tree_map
from fedflat.engine import ENGINES
from fedflat.engine.rounds import Trial
from fedflat.errors import UserError
from fedflat.methods.wrappers import Wrapper
from fedflat.options import check
from fedflat.runs.config import method_from_dict, method_to_dict

STEPS = {name: method for name, method in DEFAULTS.items() if not isinstance(method, Wrapper)}  # a wrapper has none

COMPARE_CLASS_SCORES = ("FedNTD", "FedSOL", "FedSOLAblation", "FedGMT")

every_method = pytest.mark.parametrize("method", (ALL | AVERAGED).values(), ids=ALL | AVERAGED)


@every_method
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "sequential"])
def test_engines_agree(method: Method, engine: str) -> None:
    for trial, theirs in zip(tiny.train(method, engine, range(3)), tiny.packed(method, 3), strict=True):
        ours = trial.pack()
        assert ours.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsam", "fedgloss", "fednova"])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "sequential"])
def test_engines_agree_on_tokens_with_lora(name: str, engine: str) -> None:
    trials = [token_problem.train(DEFAULTS[name], each) for each in (engine, "sequential")]
    for ours, theirs in zip(*trials, strict=True):
        for key, value in theirs.pack().items():
            torch.testing.assert_close(ours.pack()[key], value, rtol=0, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedgloss", "fedgf", "fednova", "naivefedgloss"])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "sequential"])
def test_engines_agree_on_a_regression(name: str, engine: str) -> None:
    trials = [number_problem.train(DEFAULTS[name], each) for each in (engine, "sequential")]
    for ours, theirs in zip(*trials, strict=True):
        for key, value in theirs.pack().items():
            torch.testing.assert_close(ours.pack()[key], value, rtol=0, atol=1e-10, msg=key)


@pytest.mark.parametrize("method", ALL.values(), ids=ALL)
def test_a_regression_is_trained_or_refused_by_name(method: Method) -> None:
    inner = method
    while isinstance(inner, Wrapper):
        inner = inner.inner
    if type(inner).__name__ in COMPARE_CLASS_SCORES:
        with pytest.raises(UserError, match='task="regression": this method compares class scores'):
            number_problem.train(method, "sequential", rounds=range(1))
        return
    (trial, _) = number_problem.train(method, "sequential", rounds=range(1))
    assert bool(trial.server.params.isfinite().all())


@every_method
def test_stop_and_resume_changes_nothing(method: Method) -> None:
    resumed = tiny.train(method, rounds=range(1, 3), trials=tiny.played(method, 1))
    for trial, whole in zip(resumed, tiny.packed(method, 3), strict=True):
        assert all(torch.equal(value, whole[name]) for name, value in trial.pack().items())


@every_method
def test_inputs_are_left_alone(method: Method) -> None:
    trial = tiny.played(method, 1)[0]
    client = tree_map(lambda t: t[0], trial.clients.gather([0]))
    server, task, batch = trial.server, tiny.task(method), _batches()[0]
    message = _guarded(method.broadcast, server)
    carry = start_local_training(tiny.sgd(), message, client)
    _guarded(lambda w, m, c: method.step(task, w, batch, m, c), carry.w + 0.1, message, client)
    moved = carry._replace(w=carry.w + 0.1)
    reply, _ = _guarded(
        lambda m, c: finish_local_training(method, tiny.sgd(), c, m, torch.tensor(3.0).double()), message, moved
    )
    _guarded(lambda s, r: method.update(s, Cohort(r, r, 2, 4)), server, reply)


def _guarded(function: Callable[..., Any], *inputs: Any) -> Any:
    """Return the function's result; fail if the function changed its arguments."""
    before = [tree_map(torch.clone, value) for value in inputs]
    result = function(*inputs)
    for old, new in zip(before, inputs, strict=True):
        assert all(torch.equal(value, pack_state(new)[name]) for name, value in pack_state(old).items())
    return result


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_shapes_and_dtypes_are_stable(method: Method, dtype: torch.dtype) -> None:
    fresh = Trial(0, method, tiny.params(dtype))
    trial = tiny.train(method, rounds=range(2), source=tiny.client_data(dtype=dtype))[0]
    kept = tree_map(lambda t: t[0], trial.clients.gather([0]))
    pairs = [(trial.server, fresh.server), (kept, method.init_client(tiny.params(dtype)))]
    pairs.append((method.broadcast(trial.server), method.broadcast(fresh.server)))
    for now, then in pairs:
        assert {n: (t.shape, t.dtype) for n, t in pack_state(now).items()} == {
            n: (t.shape, t.dtype) for n, t in pack_state(then).items()
        }
        assert {t.dtype for t in pack_state(now).values()} <= {dtype}
        assert all(bool(t.isfinite().all()) for t in pack_state(now).values())


@every_method
def test_lanes_equal_the_loop(method: Method) -> None:
    carries, batches, message = _lanes(method)
    lanes = vmap(_advance(method), in_dims=(0, 0, None))(carries, stack_states(batches), message)
    for lane, batch in enumerate(batches):
        alone = _advance(method)(tree_map(lambda t: t[lane], carries), batch, message)
        for name, value in pack_state(alone).items():
            torch.testing.assert_close(pack_state(lanes)[name][lane], value, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("method", STEPS.values(), ids=STEPS)
def test_the_step_traces_without_graph_breaks(method: Method) -> None:
    torch._dynamo.reset()  # or dynamo gives up on the eighth method
    carries, batches, message = _lanes(method)
    step = vmap(_advance(method), in_dims=(0, 0, None))
    traced = torch.compile(step, fullgraph=True, backend="eager")(carries, stack_states(batches), message)
    torch.testing.assert_close(traced.w, step(carries, stack_states(batches), message).w, rtol=0, atol=1e-12)


def _advance(method: Method) -> Callable[..., Any]:
    task, sgd = tiny.task(method), tiny.sgd()
    return lambda carry, batch, message: local_step(method, task, sgd, carry, batch, message)


def _lanes(method: Method) -> tuple[Any, list[Any], Any]:
    """Return the states of three clients after one round, with different models, a batch for each, and a message."""
    trial = tiny.played(method, 1)[0]
    message = method.broadcast(trial.server)
    carries = [
        start_local_training(tiny.sgd(), message, tree_map(lambda t: t[k], trial.clients.gather([0, 1, 2])))
        for k in range(3)
    ]
    shifted = [carry._replace(w=carry.w + 0.01 * k * carry.w.sin()) for k, carry in enumerate(carries, 1)]
    return stack_states(shifted), _batches(), message


def _batches() -> list[Any]:
    client_data = tiny.client_data()
    plan = client_data.plan([0] * 3, 0, [0, 1, 2])
    step, steps = torch.tensor([0.0, 6.0]).double()
    return [client_data.batch(type(plan)(*(t[k, 0] for t in plan)))._replace(step=step, steps=steps) for k in range(3)]


@every_method
def test_padding_does_not_matter(method: Method) -> None:
    trial, short = tiny.played(method, 1)[0], _batches()[1]
    real = short._replace(**{name: getattr(short, name)[short.mask] for name in ("x", "y", "mask", "key")})
    client, message = tree_map(lambda t: t[0], trial.clients.gather([1])), method.broadcast(trial.server)
    assert not bool(short.mask.all())
    padded, alone = (
        pack_state(local_update(method, tiny.task(method), tiny.sgd(), message, client, [batch] * 2))
        for batch in (short, real)
    )
    for name, value in padded.items():
        torch.testing.assert_close(value, alone[name], rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("method", ALL.values(), ids=ALL)
def test_options_survive_a_config_file(method: Method) -> None:
    check(method)
    assert method_from_dict(method_to_dict(method)) == method
