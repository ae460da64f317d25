"""Options of a federation, and their conversion to and from Flower's run configuration.

A run configuration is a flat mapping of keys to values. Its keys are those of config.yaml with dots between the levels:
rounds, method.name, method.inner.rho, federation.round_timeout. Flower has neither lists nor null, so the key `seed`
(one number) replaces `seeds`, and options that are None are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from fedflat.engine.aggregation import check_cohort_suffices
from fedflat.engine.participation import FIXED_SIZE, Participation, cohort_size
from fedflat.errors import NOT_SHOWN, Spelling, UserError, mention, near_miss, shorten
from fedflat.methods.compression import find_compressed
from fedflat.options import Count, Index, Positive, check, value_words
from fedflat.own_code import is_own_code
from fedflat.probes import refuse_probes
from fedflat.runs.config import experiment_from_dict, experiment_to_dict
from fedflat.runs.experiment import Experiment

ConfigValue = bool | int | float | str
COLUMN_LISTS = ("target_column", "feature_columns")  # lists of names, which Flower's configuration holds as a,b,c


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """What a federation needs besides the experiment."""

    out: str = "run"
    """Folder of the run on the server; a run that was interrupted there is continued."""
    min_nodes: Index = 0
    """Connected clients that a round waits for, but no longer than round_timeout; 0 is the cohort."""
    round_timeout: Positive = 600.0
    """Seconds to wait for replies; the round continues without clients that have not replied by then."""
    min_replies: Count = 1
    """Valid replies that a round needs; with fewer, clients are asked again."""
    attempts: Count = 3
    """How often clients are asked in one round before the run stops; it can be continued later."""
    max_ratio: Positive = 100.0
    """A reply is refused if its norm is more than this many times the norm of the model."""
    max_examples: Index = 0
    """Most examples with which a client counts in the weighted mean; 0 is no limit."""
    secure: bool = False
    """Secure aggregation (SecAgg+): the server sees only the mean of the replies; needs weights = "uniform", and cohort
    and min_nodes of at least 2."""


_KEYS = {"seeds": "seed", "method": "method.name"} | {
    field.name: f"federation.{field.name}" for field in fields(FederationOptions)
}  # options whose key in a run configuration is not simply their name


def run_config_spelling(run_config: Mapping[str, ConfigValue]) -> Spelling:
    """Return the spelling of errors in a federation: options are keys of its run configuration, federation.min_nodes 3.

    Args:
        run_config: tells at which level a hyper-parameter is, such as method.rho or method.inner.rho.
    """

    def spell(option: str, value: Any) -> str:
        keys = [key for key in run_config if key.rpartition(".")[2] == option] or [option]
        key = _KEYS.get(option) or next((key for key in keys if run_config.get(key) == value), keys[0])
        return key if value is NOT_SHOWN else shorten(" ".join([key, *value_words(value)]))

    return spell


class RunConfigError(UserError):
    """A UserError whose text names the keys of a run configuration.

    Args:
        error: the error to show.
        run_config: the configuration of the run in which it occurred.
    """

    def __init__(self, error: UserError, run_config: Mapping[str, ConfigValue]) -> None:
        super().__init__(error.option, error.value, error.problem)
        self.run_config = run_config

    def __str__(self) -> str:
        return self.message(run_config_spelling(self.run_config))


def to_run_config(experiment: Experiment, federation: FederationOptions) -> dict[str, ConfigValue]:
    """Return the run configuration of an experiment; raise UserError if Flower's configuration cannot express it.

    Args:
        experiment: must have one seed, no probes, and a data set and model that are given by name.
        federation: the federation's own options.
    """
    values = experiment_to_dict(experiment)
    _refuse_own_code(values)
    if experiment.probes:
        refuse_probes(experiment.probes)
    if len(experiment.seeds) != 1:
        raise UserError("seeds", experiment.seeds, "a federation trains one seed; keep one in the configuration")
    for name in ("dataset", "model"):
        if not isinstance(getattr(experiment, name), str):
            raise UserError(name, values[name], "must be given by name in a federation, not as a Python object")
    del values["seeds"]
    flat = {"method.name": values["method"]["name"], "seed": experiment.seeds[0]}
    return flat | dict(_flatten(values | {"federation": asdict(federation)}))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, ConfigValue]]:
    """Yield the dotted key and the value of every entry of nested mappings, except None."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple) and name in COLUMN_LISTS:
            yield f"{prefix}{name}", ",".join(value)
        elif isinstance(value, list | tuple):
            raise UserError(None, f"{prefix}{name}", "Flower's configuration has no lists")
        elif value is not None:
            yield f"{prefix}{name}", value


def from_run_config(run_config: Mapping[str, ConfigValue]) -> tuple[Experiment, FederationOptions]:
    """Return the experiment and the federation's options that a run configuration describes.

    This is the inverse of `to_run_config`. Raises UserError if a key is unknown or a value is not allowed.
    """
    values = _nest(run_config)
    if "probes" in values:
        refuse_probes(str(values["probes"]).split())
    federation = _federation_options(values.pop("federation", {}))
    seed = values.pop("seed", 0)
    _refuse_own_code(values)
    values |= {name: [values[name]] for name in COLUMN_LISTS if isinstance(values.get(name), str)}
    experiment = experiment_from_dict(values | {"seeds": [seed]})
    experiment.check()
    if experiment.holdout_clients:
        problem = "is for simulations; in a federation a client that is held out is a node that is not started"
        raise UserError("holdout_clients", experiment.holdout_clients, problem)
    if experiment.sampling == "weighted":
        problem = "a federation learns the sizes of its clients from themselves, after it has drawn them; use uniform"
        raise UserError("sampling", experiment.sampling, problem)
    if federation.secure:
        _check_secure(experiment, federation)
    return experiment, federation


def _refuse_own_code(values: Mapping[str, Any]) -> None:
    """Raise UserError for code that is named by its file or module: no configuration may run what is on a node."""
    named = [name for name in (values.get("dataset"), values.get("model")) if is_own_code(name)]
    for name in [*named, *(name for name in _method_names(values.get("method")) if ":" in name)]:
        problem = "files and modules are not sent to nodes; use what the package has, or fedflat.register in the app"
        raise UserError(None, f"run config {name}", problem)


def _method_names(method: Any) -> list[str]:
    """The names of a method and of those inside it."""
    if not isinstance(method, Mapping):
        return [str(method)] if method else []
    return [str(method.get("name", "")), *_method_names(method.get("inner"))]


def _nest(flat: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """Return nested dicts from dotted keys."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, name = key.split(".")
        level = values
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = value
    return values


def check_reachable(experiment: Experiment, federation: FederationOptions, who: Participation) -> None:
    """Raise UserError if a round would wait for more nodes or replies than there can be: it would be repeated forever.

    Args:
        experiment: what is trained.
        federation: the options to check.
        who: who takes part.
    """
    if federation.min_nodes and federation.min_nodes > who.population:
        raise UserError("min_nodes", federation.min_nodes, f"must be at most the number of clients, {who.population}")
    varies = who.sampling == "poisson" or who.availability is not None or who.loses_replies
    fewest, why = (1 if varies else who.smallest_size), "with these options a round may ask one client alone"
    if federation.min_replies > fewest:
        problem = f"must be at most 1: {why}" if varies else f"must be at most the cohort, {fewest}"
        raise UserError("min_replies", federation.min_replies, problem)
    check_cohort_suffices(replace(experiment.aggregation(), clip=None), experiment.aggregate, fewest, why)


def _check_secure(experiment: Experiment, federation: FederationOptions) -> None:
    """Raise UserError if the server could see single replies, or needs more than the plain mean."""
    if find_compressed(experiment.method):
        problem = f"saves nothing with {mention('secure')}, which masks every number of a reply; leave one of them out"
        raise UserError(None, "method compress", problem)
    unseen = f"{mention('secure')}, where the server does not see single replies"
    if experiment.aggregate != "mean":
        raise UserError("aggregate", experiment.aggregate, f"must be mean with {unseen}")
    if experiment.clip_replies is not None:
        raise UserError("clip_replies", experiment.clip_replies, f"cannot be used with {unseen}")
    if experiment.weights != "uniform":
        problem = f"must be uniform with {mention('secure')}, which computes only the plain mean"
        raise UserError("weights", experiment.weights, problem)
    sampling, size = experiment.sampling, cohort_size(experiment.cohort, experiment.clients)
    losing = [name for name in ("availability", "dropout_rate") if getattr(experiment, name)]
    losing += ["stragglers"] if experiment.stragglers and not experiment.straggler_work else []
    if losing or sampling not in FIXED_SIZE:
        name, value = (losing[0], getattr(experiment, losing[0])) if losing else ("sampling", sampling)
        problem = f"cannot be used with {mention('secure')}: a round could have one reply, and its mean is that reply"
        raise UserError(name, value, problem)
    for name, value in (("cohort", size), ("min_nodes", federation.min_nodes or size)):
        if value < 2:
            raise UserError(
                name, value, f"must be at least 2 with {mention('secure')}: the mean of one reply is that reply"
            )


def _federation_options(values: Mapping[str, ConfigValue]) -> FederationOptions:
    known = [field.name for field in fields(FederationOptions)]
    for name in values:
        if name not in known:
            raise UserError(None, "run config", f"unknown key 'federation.{name}'{near_miss(name, known)}")
    federation = FederationOptions(**values)  # type: ignore[arg-type]
    check(federation)
    return federation
