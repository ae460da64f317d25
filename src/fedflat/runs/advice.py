"""Warnings about options that have no effect in a run: a table of rules; every one that applies is one line."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.method_check import is_own_method
from fedflat.errors import NOT_SHOWN, UserError, mention
from fedflat.methods.compression import find_compressed
from fedflat.methods.wrappers import innermost_method
from fedflat.probes.probe import state_with
from fedflat.runs.build import BuiltRun, is_own_model, partition_name
from fedflat.runs.experiment import COLUMN_OPTIONS, TABLE_OPTIONS, Experiment, Setting

ONE_STEP_IS_FEDAVG = ("FedSOL", "FedProx", "FedNTD")  # their terms vanish at the model that clients start from
PROBED_STATES = {"fedgf": ("c", "distance"), "fedgloss": ("pseudo_grad",), "fedgloss-exact": ("pseudo_grad",)}


class Rule(NamedTuple):
    """An option that has no effect, or hardly the one that is wanted.

    Args:
        option: the option; the rule applies only if it is not at its default.
        reason: returns what is wrong with it in a run, '' if nothing is.
    """

    option: str
    reason: Callable[[Experiment, BuiltRun], str]


def _unless_partition(uses: Callable[[str], bool]) -> Callable[[Experiment, BuiltRun], str]:
    """The reason for an option that only some partitions use."""

    def reason(experiment: Experiment, built: BuiltRun) -> str:
        name = partition_name(experiment, built.dataset)
        return "" if uses(name) else f"has no effect with the {name} partition"

    return reason


def _natural_clients(experiment: Experiment, built: BuiltRun) -> str:
    natural = partition_name(experiment, built.dataset) == "natural"
    known = len(built.client_rows)
    return f"ignored, the data name {known} clients" if natural and known != experiment.clients else ""


def _large_clients_count_twice(experiment: Experiment, built: BuiltRun) -> str:
    if experiment.sampling != "weighted" or experiment.weights == "uniform":
        return ""
    return f"large clients count twice, in the draw and in the average; use {mention('weights', 'uniform')}"


def _empty_probes(experiment: Experiment, built: BuiltRun) -> str:
    """Name the probes that measure what the method's server does not have."""
    server = experiment.method.init_server(built.initial_params[0])
    needs = {probe: PROBED_STATES[probe] for probe in experiment.probes if probe in PROBED_STATES}
    empty = [probe for probe, fields in needs.items() if state_with(server, *fields) is None]
    return f"{', '.join(empty)} measures nothing of this method; fedflat probes says of which" if empty else ""


def _unless_dataset(kinds: str, example: str = "table:FILE") -> Callable[[Experiment, BuiltRun], str]:
    """The reason for an option that only data sets of some kinds use."""

    def reason(experiment: Experiment, built: BuiltRun) -> str:
        kind = experiment.dataset.partition(":")[0] if isinstance(experiment.dataset, str) else ""
        return "" if kind in kinds.split() else f"has no effect without {mention('dataset', example)}"

    return reason


def _endless_warm_up(experiment: Experiment, built: BuiltRun) -> str:
    if experiment.lr_warmup < experiment.rounds:
        return ""
    return f"the learning rate never reaches {mention('lr', experiment.lr)} in {mention('rounds', experiment.rounds)}"


def _unless_attacked(experiment: Experiment, built: BuiltRun) -> str:
    return "" if experiment.attackers else f"has no effect without {mention('attackers')}"


def _mostly_zeros(experiment: Experiment, built: BuiltRun) -> str:
    compressed = find_compressed(experiment.method)
    if compressed is None or compressed.compressor == "quantise" or compressed.keep > 0.5:
        return ""
    if experiment.aggregation().rule not in ("median", "trimmed"):
        return ""
    most = f"is 0 wherever most replies are, as with {mention('keep', compressed.keep)} of compress"
    return f"{most}; use {mention('compressor', 'quantise')}"


def _constant_steps(experiment: Experiment, built: BuiltRun) -> str:
    if experiment.lr_schedule != "step":
        return ""
    if experiment.lr_decay == 1:
        return f"the learning rate stays constant; give {mention('lr_decay', 0.1)}"
    if experiment.lr_warmup + experiment.lr_step < experiment.rounds:
        return ""
    few, step = mention("rounds", experiment.rounds), mention("lr_step", experiment.lr_step)
    return f"the learning rate stays constant in {few} with {step}"


def _in_one_step(experiment: Experiment, built: BuiltRun) -> str:
    return "has no effect with one local step in a round" if _one_step(experiment, built) else ""


def _momentum_of_one_step(experiment: Experiment, built: BuiltRun) -> str:
    counts = experiment.optimiser != "sgd" or experiment.optimiser_state == "keep"
    return "" if counts else _in_one_step(experiment, built)


RULES = (
    *(Rule(name, _unless_dataset("table hf" if name in COLUMN_OPTIONS else "table")) for name in TABLE_OPTIONS),
    Rule("clients", _natural_clients),
    Rule("alpha", _unless_partition(lambda name: name not in ("iid", "shards", "natural"))),
    Rule("shards", _unless_partition(lambda name: name == "shards")),
    Rule("partition_seed", _unless_partition(lambda name: name != "natural")),
    Rule("sequence_length", _unless_dataset("text sklearn-text hf", "text:PATH")),
    Rule("lr_schedule", _constant_steps),
    Rule("lr_in_round", _in_one_step),
    Rule("momentum", _momentum_of_one_step),
    Rule("lr_warmup", _endless_warm_up),
    Rule("attack", _unless_attacked),
    Rule("attack_strength", _unless_attacked),
    Rule("aggregate", _mostly_zeros),
    Rule("lr_step", lambda e, b: "" if e.lr_schedule == "step" else f"needs {mention('lr_schedule', 'step')}"),
    Rule("sampling", _large_clients_count_twice),
    Rule("straggler_work", lambda e, b: "" if e.stragglers else f"has no effect without {mention('stragglers')}"),
    Rule("probe_every", lambda e, b: "" if e.probes else f"has no effect without {mention('probes')}"),
    Rule("probes", _empty_probes),
)


class MethodRule(NamedTuple):
    """A hyper-parameter that has an effect only with some values of another one.

    Args:
        method: the method's class.
        option: the hyper-parameter; the rule applies only if it is not at its default.
        other: the other hyper-parameter.
        values: the values of `other` with which it has an effect.
    """

    method: str
    option: str
    other: str
    values: tuple[Any, ...]


METHOD_RULES = (
    MethodRule("Compressed", "bits", "compressor", ("quantise",)),
    MethodRule("Compressed", "keep", "compressor", ("topk", "randomk")),
    MethodRule("FedGF", "threshold", "static_c", (None,)),
    MethodRule("FedGF", "window", "static_c", (None,)),
    MethodRule("FedLESAM", "dyn_alpha", "base", ("feddyn",)),
    MethodRule("FedLESAM", "steps", "base", ("scaffold",)),
    MethodRule("FedSMOO", "beta", "regularise", (True,)),
    MethodRule("FedSMOO", "dual", "regularise", (True,)),
)


def advice(experiment: Experiment, built: BuiltRun) -> Iterator[str]:
    """Yield one line for every option that has no effect, and for a method that is FedAvg in this setting.

    Args:
        experiment: what is trained.
        built: its data and models.
    """
    for option, reason in RULES:
        value = getattr(experiment, option)
        if value != getattr(Setting, option) and (why := reason(experiment, built)):
            yield str(UserError(option, value, why))
    yield from _method_advice(experiment.method)
    if experiment.task == "auto" and _is_one_hot(built.dataset.y):
        problem = (
            f"every row of the targets has a single 1, taken for the targets of {mention('task', built.task.name)}"
        )
        yield str(UserError(None, "data", f"{problem}; give classes, y.argmax(1)"))
    if is_own_model(experiment) and built.task.class_scores and _gives_probabilities(built):
        problem = "gives probabilities, and cross entropy takes scores; leave its softmax out"
        yield str(UserError("model", NOT_SHOWN, problem))
    name = type(innermost_method(experiment.method)).__name__
    if name in ONE_STEP_IS_FEDAVG and _one_step(experiment, built):
        yield f"{name} with one local step in a round is FedAvg: it differs from the second step on"


def _is_one_hot(y: Tensor) -> bool:
    """Return whether targets have a single 1 in each row, and 0 elsewhere."""
    if y.dim() != 2 or y.shape[1] < 2:
        return False
    return bool((((y == 0) | (y == 1)).all(1) & (y.sum(1) == 1)).all())


@torch.no_grad()
def _gives_probabilities(built: BuiltRun) -> bool:
    """Return whether the outputs of the initial model are from 0 to 1 and sum to 1."""
    if not len(built.dataset.y):
        return False
    outputs = built.task.outputs(built.initial_params[0], built.client_data.samples(torch.tensor([0])))
    return bool((outputs >= 0).all()) and torch.allclose(outputs.sum(-1), torch.ones(1).to(outputs), atol=1e-3)


def _method_advice(method: Method) -> Iterator[str]:
    """Yield one line for every hyper-parameter or function without effect, of a method and of those that it wraps."""
    yield from _misspelt_functions(method)
    for rule in METHOD_RULES:
        if type(method).__name__ == rule.method and getattr(method, rule.other) not in rule.values:
            value = getattr(method, rule.option)
            if value != getattr(type(method), rule.option):
                problem = f"has no effect with {mention(rule.other, getattr(method, rule.other))}"
                yield str(UserError(rule.option, value, problem))
    if isinstance(inner := getattr(method, "inner", None), Method):
        yield from _method_advice(inner)


def _misspelt_functions(method: Method) -> Iterator[str]:
    """Yield one line for every function of a method of the user's that has nearly the name of one of Method's."""
    names = [name for name, value in vars(Method).items() if isfunction(value) and not name.startswith("_")]
    for name, value in vars(type(method)).items() if is_own_method(method) else ():
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        if isfunction(value) and close and name not in names:
            yield f"method {type(method).__name__}: no engine calls its function {name} (did you mean {close[0]}?)"


def _one_step(experiment: Experiment, built: BuiltRun) -> bool:
    """Whether no client takes more than one local step in a round."""
    if experiment.client_settings or experiment.local_steps:
        return experiment.local_steps == 1 and not experiment.client_settings
    largest = max(len(rows) for rows in built.client_rows)
    return experiment.epochs * math.ceil(largest / experiment.batch_size) == 1


_told: set[str] = set()  # lines that this process has printed


def print_advice(experiment: Experiment, built: BuiltRun) -> None:
    """Print every line of `advice` to stderr that was not printed before."""
    for line in advice(experiment, built):
        if line not in _told:
            print(f"fedflat: warning: {line}", file=sys.stderr)
            _told.add(line)
