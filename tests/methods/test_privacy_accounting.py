"""What is asked of the privacy accountant, and its answers: beside one of our own in float64, and exact values."""

from __future__ import annotations

import math
import sys

import pytest
import renyi_accountant
from scipy.optimize import brentq
from scipy.stats import norm

import fedflat as ff
from fedflat.engine.participation import choose_cohort
from fedflat.methods.differential_privacy import privacy_spent
from fedflat.runs.build import build_participation
from fedflat.runs.result import privacy_of_simulation

ALL_TEN = [list(range(10))] * 6


@pytest.fixture(autouse=True)
def own_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute ε with the accountant of the tests, whether or not dp-accounting is installed."""
    monkeypatch.setitem(sys.modules, "dp_accounting", renyi_accountant)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", renyi_accountant.rdp)  # type: ignore[arg-type]


def exact_epsilon(multiplier: float, delta: float = 1e-5) -> float:
    """The exact ε of one Gaussian mechanism of sensitivity 1 (Balle and Wang, 2018, Theorem 8)."""
    a = 1 / (2 * multiplier)

    def excess(e: float) -> float:
        b = e * multiplier
        return float(norm.cdf(a - b) - math.exp(e) * norm.cdf(-a - b)) - delta

    return float(brentq(excess, 0, 200))


def epsilon(method: ff.Method, cohorts: list[list[int]], population: int, poisson: int | None = None) -> float:
    found = privacy_spent(method, cohorts, population, sampled=poisson is None, poisson_size=poisson)
    assert found
    return float(found["epsilon"])


@pytest.mark.parametrize("noise", [1.0, 4.0, 10.0])
def test_rounds_with_all_clients_are_one_gaussian_mechanism_of_half_the_noise(noise: float) -> None:
    """Replacing a client's data changes the sum by up to 2C, so the multiplier is z / 2; six rounds divide it by √6."""
    exact = exact_epsilon(noise / 2 / 6**0.5)
    assert exact < epsilon(ff.Private(noise=noise), ALL_TEN, 10) < 1.25 * exact


def test_poisson_sampling_of_everybody_has_the_whole_noise() -> None:
    """Without a client's data the sum changes by up to C only."""
    exact = exact_epsilon(4.0 / 6**0.5)
    assert exact < epsilon(ff.Private(noise=4.0), ALL_TEN, 10, poisson=10) < 1.25 * exact


@pytest.mark.parametrize("poisson", [None, 10])
def test_sampling_helps_and_is_bounded_by_known_cohorts(poisson: int | None) -> None:
    cohorts = [choose_cohort(0, r, 100, 10) for r in range(60)]
    found = privacy_spent(ff.Private(noise=8.0), cohorts, 100, sampled=poisson is None, poisson_size=poisson)
    assert found
    assert 0 < found["epsilon"] < found["epsilon_known_cohorts"]
    most = max(sum(client in cohort for cohort in cohorts) for client in range(100))
    exact = exact_epsilon((8.0 if poisson else 4.0) / most**0.5)
    assert exact < found["epsilon_known_cohorts"] < 1.25 * exact


def test_two_exchanges_are_two_uses() -> None:
    two = epsilon(ff.Private(noise=10.0, inner=ff.NaiveFedGloSS()), ALL_TEN[:3], 10)
    assert two == pytest.approx(epsilon(ff.Private(noise=10.0), ALL_TEN, 10))


def test_the_worst_seed_counts_also_where_cohorts_are_known() -> None:
    """The ε of secret cohorts is that of all seeds alike."""
    method = ff.Private(noise=4.0)
    who = build_participation(ff.Experiment(method=method, clients=20, cohort=5), [30] * 20)
    alone = [privacy_of_simulation(method, [seed], 15, who) for seed in range(4)]
    known = [each["epsilon_known_cohorts"] for each in alone if each]
    assert known[0] < max(known)
    together = privacy_of_simulation(method, range(4), 15, who)
    assert together
    assert together["epsilon_known_cohorts"] == max(known)


def test_bookkeeping_tells_who_took_part_so_sampling_does_not_help() -> None:
    cohorts = [choose_cohort(0, r, 100, 10) for r in range(60)]
    found = privacy_spent(ff.Private(noise=8.0, inner=ff.FedNova()), cohorts, 100, sampled=True)
    assert found
    assert found["epsilon"] == found["epsilon_known_cohorts"]
    assert found["not_covered"] == ["steps"]
