"""How much privacy training has spent: (ε, δ) of clipped replies and Gaussian noise, for one client's whole data.

Neighbouring federations differ in one client's data, so a sum of replies no longer than C differs by at most 2C, and
noise z C on the sum is a Gaussian mechanism of multiplier z / 2. A method of two exchanges uses it twice in a round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedflat.engine.rounds import cohort
from fedflat.method import Method
from fedflat.wrappers.private import Private


def private(method: Method) -> Private | None:
    """The wrapper that makes a method private, if it has one."""
    if isinstance(method, Private):
        return method
    inner = getattr(method, "inner", None)
    return private(inner) if inner is not None else None


def spent(method: Method, cohorts: Sequence[Sequence[int]], population: int, sampled: bool) -> dict[str, Any] | None:
    """What rounds with these cohorts have cost; None for a method without clipping and noise.

    `epsilon_known_cohorts` holds even against those who know who took part in which round: it counts the rounds of the
    client that took part most often. Where cohorts were `sampled` from all clients, `epsilon` is the smaller
    one that holds against those who do not know.
    """
    found = private(method)
    if found is None:
        return None
    rounds = Counter(client for each in cohorts for client in each)
    known = _epsilon(found, method.exchanges * max(rounds.values(), default=0))
    size = max(map(len, cohorts), default=0)
    drawn = _epsilon(found, method.exchanges, len(cohorts), population, size) if sampled else known
    return {
        "epsilon": min((e for e in (drawn, known) if e is not None), default=None),
        "epsilon_known_cohorts": known,
        "delta": found.privacy_delta,
        "clip": found.clip,
        "noise": found.noise,
        "note": "" if _accounting() else "install fedflat[privacy] to have epsilon computed",
    }


def simulated(method: Method, seeds: Sequence[int], rounds: int, population: int, size: int) -> dict[str, Any] | None:
    """What a simulation has spent: that of the seed with the busiest client."""
    if private(method) is None:
        return None
    cohorts = [[cohort(seed, r, population, size) for r in range(rounds)] for seed in seeds]
    found = [spent(method, each, population, sampled=True) for each in cohorts]
    return max((each for each in found if each), key=lambda each: each["epsilon"] or 0.0, default=None)


def describe(found: dict[str, Any]) -> str:
    """One line about what was spent."""
    if found["note"]:
        return f"privacy: {found['note']}"
    numbers = ("infinite" if e is None else f"{e:.3g}" for e in (found["epsilon"], found["epsilon_known_cohorts"]))
    return "privacy: ε = {} ({} where the cohorts are known) at δ = {:g}, for one client's data".format(
        *numbers, found["delta"]
    )


def _accounting() -> Any:
    """The package dp-accounting, None where it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        return None
    return dp_accounting


def _epsilon(found: Private, uses: int, rounds: int = 1, population: int = 1, size: int = 1) -> float | None:
    """ε of `uses` of the mechanism in each round; None where there is no bound or nothing to compute it with."""
    dp = _accounting()
    if dp is None or not found.noise:
        return None
    if not uses or not rounds:
        return 0.0
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(found.noise / 2), uses)
    if size < population:
        event = dp.SampledWithoutReplacementDpEvent(population, size, event)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, rounds).get_epsilon(found.privacy_delta))
