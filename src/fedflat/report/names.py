"""What a run's method is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedflat.runs.read import StoredRun

Chain = list[dict[str, Any]]


def method_names(runs: Sequence[StoredRun]) -> list[str]:
    """Methods as the command line has them, with the hyper-parameters in which namesakes differ: fedsol:rho=2."""
    chains = [_chain(run.config["method"]) for run in runs]
    return [_name(chain, [other for other in chains if _plain(other) == _plain(chain)]) for chain in chains]


def _chain(method: Any) -> Chain:
    """A method and those inside it; a wrapper has its name around FedAvg."""
    parts = {"name": "?", **method} if isinstance(method, Mapping) else {"name": method}
    inside = _chain(parts.pop("inner")) if "inner" in parts else []
    return [parts, *(inside if inside and inside[0]["name"] != "fedavg" else [])]


def _plain(chain: Chain) -> list[Any]:
    return [part["name"] for part in chain]


def _name(chain: Chain, alike: Sequence[Chain]) -> str:
    return "+".join(_part(part, [other[place] for other in alike]) for place, part in enumerate(chain))


def _part(part: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> str:
    """NAME, or NAME:rho=2,beta=10 where others of this name differ in rho and beta."""
    apart = [key for key, value in part.items() if any(other.get(key) != value for other in alike)]
    return f"{part['name']}{':' if apart else ''}{','.join(f'{key}={_short(part[key])}' for key in apart)}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
