"""ε from dp-accounting, which shares the environment of the Flower tests: known answers and directions."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.engine.participation import choose_cohort
from fedflat.methods.differential_privacy import describe_privacy, privacy_spent
from fedflat.runs.build import build_participation
from fedflat.runs.result import privacy_of_simulation

pytest.importorskip("dp_accounting")
ALL_TEN = [list(range(10))] * 6


def epsilon(method: ff.Method, rounds: int = 60, population: int = 100, size: int = 10, sampled: bool = True) -> float:
    found = privacy_spent(method, [choose_cohort(0, r, population, size) for r in range(rounds)], population, sampled)
    assert found
    return float(found["epsilon"])


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """The exact δ of one Gaussian mechanism of sensitivity 1 (Balle and Wang, 2018, Theorem 8)."""

    def phi(x: float) -> float:
        return (1 + math.erf(x / 2**0.5)) / 2

    a, b = 1 / (2 * multiplier), epsilon * multiplier
    return phi(a - b) - math.exp(epsilon) * phi(-a - b)


def test_all_clients_in_every_round_is_one_gaussian_mechanism() -> None:
    """Six rounds of multiplier z / 2 are one of z / (2 √6); the bound is above the exact value, by little."""
    found = privacy_spent(ff.Private(noise=10.0), ALL_TEN, 10, sampled=True)
    assert found
    assert found["epsilon"] == found["epsilon_known_cohorts"]
    exact = gaussian_delta(found["epsilon"], 10.0 / 2 / 6**0.5)
    assert 1e-7 < exact < 1e-5


def test_two_exchanges_spend_what_twice_the_rounds_do() -> None:
    two = privacy_spent(ff.Private(noise=10.0, inner=ff.NaiveFedGloSS()), ALL_TEN[:3], 10, sampled=True)
    one = privacy_spent(ff.Private(noise=10.0), ALL_TEN, 10, sampled=True)
    assert two
    assert one
    assert two["epsilon"] == pytest.approx(one["epsilon"])


def test_directions() -> None:
    usual = epsilon(ff.Private(noise=4.0))
    assert epsilon(ff.Private(noise=8.0)) < usual < epsilon(ff.Private(noise=2.0))
    assert epsilon(ff.Private(noise=4.0), rounds=30) < usual < epsilon(ff.Private(noise=4.0), rounds=120)
    assert epsilon(ff.Private(noise=4.0), population=1000) < usual < epsilon(ff.Private(noise=4.0), population=20)
    assert epsilon(ff.Private(noise=4.0, privacy_delta=1e-3)) < usual < epsilon(ff.Private(noise=4.0), sampled=False)
    assert epsilon(ff.Private(noise=4.0, clip=9.0)) == usual


def test_without_noise_there_is_no_bound() -> None:
    found = privacy_spent(ff.Private(noise=0.0), ALL_TEN, 10, sampled=True)
    assert found
    assert found["epsilon"] is None
    assert "infinite" in describe_privacy(found)


def test_a_run_reports_it() -> None:
    experiment = ff.Experiment(method=ff.Private(noise=4.0), rounds=2, model="mlp", local_epochs=1, engine="sequential")
    found = ff.run(experiment).to_json()["privacy"]
    assert found["epsilon"] == epsilon(ff.Private(noise=4.0), rounds=2, population=20, size=5)
    assert describe_privacy(found).startswith(f"privacy: ε = {found['epsilon']:.3g} (")


def test_poisson_sampling_of_everybody_is_the_plain_gaussian_mechanism() -> None:
    """Present or absent, a client moves the sum by C: six rounds of multiplier z are one of z / √6."""
    found = privacy_spent(ff.Private(noise=5.0), ALL_TEN, 10, sampled=False, poisson_size=10)
    assert found
    assert found["epsilon"] == found["epsilon_known_cohorts"]
    assert 1e-7 < gaussian_delta(found["epsilon"], 5.0 / 6**0.5) < 1e-5
    assert found["neighbours"] == "present or absent"
    replaced = privacy_spent(ff.Private(noise=10.0), ALL_TEN, 10, sampled=True)
    assert replaced
    assert found["epsilon"] == pytest.approx(replaced["epsilon"]), "half the noise for half the sensitivity"


def test_poisson_sampling_hides_who_takes_part() -> None:
    """One round with probability q: δ(ε) of the mixture, summed on a grid, is below the δ that is promised."""
    q, z = 0.1, 1.0
    found = privacy_spent(ff.Private(noise=z), [[0]], 10, sampled=False, poisson_size=1)
    assert found
    assert found["epsilon"] < found["epsilon_known_cohorts"]
    step = 1e-3
    grid = [i * step for i in range(-12_000, 12_000)]
    absent = [math.exp(-(x**2) / (2 * z**2)) for x in grid]
    present = [(1 - q) * a + q * math.exp(-((x - 1) ** 2) / (2 * z**2)) for x, a in zip(grid, absent, strict=True)]
    total, bound = sum(absent), math.exp(found["epsilon"])
    for p, other in ((present, absent), (absent, present)):
        delta = sum(max(0.0, a - bound * b) for a, b in zip(p, other, strict=True)) / total
        assert delta <= 1e-5


def test_a_simulation_accounts_for_its_sampling() -> None:
    """Poisson and uniform sampling are amplified; sizes, turns and traces tell who takes part, and are not."""
    base = {"method": ff.Private(noise=4.0), "clients": 100, "cohort": 0.1}
    spent = {}
    for sampling in ("uniform", "poisson", "weighted", "cyclic", "round-robin", "released"):
        who = build_participation(ff.Experiment(sampling=sampling, **base), [1 + n % 3 for n in range(100)])
        found = privacy_of_simulation(base["method"], [0, 1], 20, who)
        assert found
        spent[sampling] = found["epsilon"] < found["epsilon_known_cohorts"]
    assert spent == {"uniform": True, "poisson": True} | dict.fromkeys(
        ("weighted", "cyclic", "round-robin", "released"), False
    )


@pytest.mark.parametrize("poisson", [None, 10], ids=["without replacement", "poisson"])
@pytest.mark.parametrize("noise", [2.0, 8.0])
def test_the_accountant_of_the_main_tests_agrees(
    noise: float, poisson: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/methods/renyi_accountant.py stands for the package where it cannot be installed."""
    cohorts = [choose_cohort(0, r, 100, 10) for r in range(60)]
    given = (ff.Private(noise=noise), cohorts, 100, poisson is None, poisson)
    package = privacy_spent(*given)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "methods"))
    renyi = importlib.import_module("renyi_accountant")
    monkeypatch.setitem(sys.modules, "dp_accounting", renyi)
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", renyi.rdp)
    own = privacy_spent(*given)
    assert package
    assert own
    assert own["epsilon_known_cohorts"] == pytest.approx(package["epsilon_known_cohorts"], rel=0.05)
    looser = 1.05 if poisson else 2.0  # the package has a tighter bound for Gaussian noise without replacement
    assert 0.95 * package["epsilon"] < own["epsilon"] < looser * package["epsilon"]
