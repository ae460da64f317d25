"""The experiment and the federation's own options as Flower's flat run configuration, and back.

Keys are those of config.yaml with dots between levels: rounds, method.name, method.inner.rho, federation.round_timeout.
Flower knows no lists and no null, so one seed stands for `seeds` and what is None is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedflat.errors import UserError, near_miss
from fedflat.options import Count, Positive, check, flag
from fedflat.probes import refuse_probes
from fedflat.runs.config import experiment_from_dict, experiment_to_dict
from fedflat.runs.experiment import Experiment

ConfigValue = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """What a federation needs besides the experiment."""

    out: str = "run"
    """Folder of the run on the server; a run that was interrupted there continues."""
    min_nodes: Count = 1
    """Connected clients that a round waits for, though not longer than its timeout."""
    round_timeout: Positive = 600.0
    """Seconds after which a round goes on without the clients that have not replied."""
    min_replies: Count = 1
    """Good replies without which a round does not count and clients are asked again."""
    attempts: Count = 3
    """How often clients are asked in one round before the run stops, to be continued later."""
    max_ratio: Positive = 100.0
    """A reply whose length is more than this many times the model's is refused."""
    secure: bool = False
    """Let the server see the mean of the replies only (SecAgg+); needs weights = "uniform" and min_nodes > 1."""


@contextmanager
def keys_for_flags() -> Iterator[None]:
    """Let refusals of the federation's own options name Flower's keys: federation.out for --out."""
    keys = {flag(field.name): f"federation.{field.name}" for field in fields(FederationOptions)}
    try:
        yield
    except UserError as error:
        option, space, rest = str(error).partition(" ")
        if option not in keys:
            raise
        raise UserError(f"{keys[option]}{space}{rest}") from None


def to_run_config(experiment: Experiment, federation: FederationOptions) -> dict[str, ConfigValue]:
    """Both as flat keys and plain values."""
    values = experiment_to_dict(experiment)
    if experiment.probes:
        refuse_probes(experiment.probes)
    if len(experiment.seeds) != 1:
        raise UserError(f"--seeds {' '.join(map(str, experiment.seeds))}: a federation trains one seed; give one")
    for name in ("dataset", "model"):
        if not isinstance(getattr(experiment, name), str):
            raise UserError(f"--{name} {values[name]}: a federation's configuration can only name it")
    del values["seeds"]
    flat = {"method.name": values["method"]["name"], "seed": experiment.seeds[0]}
    return flat | dict(_flatten(values | {"federation": asdict(federation)}))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, ConfigValue]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            raise UserError(f"{prefix}{name}: Flower's configuration has no lists")
        elif value is not None:
            yield f"{prefix}{name}", value


def from_run_config(flat: Mapping[str, ConfigValue]) -> tuple[Experiment, FederationOptions]:
    """The inverse; everything is checked as if it came from the command line."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, name = key.split(".")
        level = values
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = value
    if "probes" in values:
        refuse_probes(str(values["probes"]).split())
    own = _federation(values.pop("federation", {}))
    seed = values.pop("seed", 0)
    experiment = experiment_from_dict(values | {"seeds": [seed]}, "run config")
    experiment.check()
    if own.secure:
        _check_secure(experiment, own)
    return experiment, own


def check_reachable(own: FederationOptions, cohort: int, clients: int) -> None:
    """Refuse to wait for nodes or replies of which there can never be so many."""
    if own.min_nodes > clients:
        raise UserError(f"federation.min_nodes {own.min_nodes}: must be at most the number of clients, {clients}")
    if own.min_replies > cohort:
        raise UserError(f"federation.min_replies {own.min_replies}: must be at most the cohort, {cohort}")


def _check_secure(experiment: Experiment, own: FederationOptions) -> None:
    """A mean of one reply is that reply, and there is one mean only."""
    if experiment.weights != "uniform":
        raise UserError(f"--weights {experiment.weights}: must be uniform with federation.secure, which gives one mean")
    for name, value in (("--cohort", experiment.cohort), ("federation.min_nodes", own.min_nodes)):
        if value < 2:
            raise UserError(f"{name} {value}: must be at least 2 with federation.secure, which hides no one alone")


def _federation(own: Mapping[str, ConfigValue]) -> FederationOptions:
    known = [field.name for field in fields(FederationOptions)]
    for key in own:
        if key not in known:
            raise UserError(f"run config: unknown key 'federation.{key}'{near_miss(key, known)}")
    federation = FederationOptions(**own)  # type: ignore[arg-type]
    with keys_for_flags():
        check(federation)
    return federation
