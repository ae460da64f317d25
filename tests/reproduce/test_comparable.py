"""Which stored results count: only those after all rounds, and only rivals that differ clearly in the paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from invented_results import find_cell, store

from fedflat.reproduce.cells import find_table
from fedflat.reproduce.claims import OUTSIDE, RANKING, Claim, verdict
from fedflat.reproduce.results import StoredResults
from fedflat.reproduce.train import ReproduceRequest, missing_seeds

FEDAVG = "fedsol/table2 cifar10 lda-0.1 fedavg"  # 56.13 ± 0.78
FEDSOL = "fedsol/table2 cifar10 lda-0.1 fedsol"  # 64.13 ± 0.46


def verdict_on(folder: Path, name: str) -> str:
    return verdict(find_table(name.split()[0]), find_cell(name), StoredResults(folder))


@pytest.mark.parametrize(("rounds", "expected"), [(100, OUTSIDE), (300, RANKING)])
def test_rivals_count_after_all_rounds(tmp_path: Path, rounds: int, expected: str) -> None:
    store(tmp_path, FEDSOL, 70.0)
    store(tmp_path, FEDAVG, 60.0, rounds=rounds)
    assert verdict_on(tmp_path, FEDSOL) == expected


def test_the_larger_allowed_distance_decides_which_rivals_count(tmp_path: Path) -> None:
    """73.90 ± 0.66 and 75.49 ± 0.21 are 1.59 apart: more than the latter's 2 √(0.21² + 0.5²) = 1.08, not than 1.66."""
    names = [f"fedsol/table2 cifar10 lda-0.5 {method}" for method in ("fedavg", "scaffold")]
    for name, value in zip(names, (85.0, 80.0), strict=True):
        store(tmp_path, name, value)
    assert [verdict_on(tmp_path, name) for name in names] == [OUTSIDE, OUTSIDE]


@pytest.mark.parametrize("short", [FEDAVG, FEDSOL])
def test_short_runs_say_nothing_about_claims(tmp_path: Path, short: str) -> None:
    claim = Claim("", "fedsol/table2", "cifar10 lda-0.1", "fedsol", ("fedavg",))
    for name, value in ((FEDAVG, 56.0), (FEDSOL, 64.0)):
        store(tmp_path, name, value, rounds=100 if name == short else None)
    assert claim.check(StoredResults(tmp_path)) == "not run yet"
    assert claim.numbers_text(StoredResults(tmp_path)) == ""
    store(tmp_path, short, 60.0)
    assert claim.check(StoredResults(tmp_path)) == "holds"


@pytest.mark.parametrize(
    ("margin", "fedsol", "expected"),
    [(0.0, 64.0, "holds"), (4.0, 64.0, "undecided"), (8.0, 64.0, "does not hold here"), (-8.0, 56.0, "holds")],
)
def test_the_lead_is_compared_with_the_margin(tmp_path: Path, margin: float, fedsol: float, expected: str) -> None:
    """Leads of 4 and −4 points; 2 √(0.78² + 0.46² + 0.5²) = 2.07 may be by chance."""
    store(tmp_path, FEDAVG, 60.0)
    store(tmp_path, FEDSOL, fedsol)
    claim = Claim("", "fedsol/table2", "cifar10 lda-0.1", "fedsol", ("fedavg",), margin)
    assert claim.check(StoredResults(tmp_path)).startswith(expected)


def test_a_shorter_stored_run_is_trained_again(tmp_path: Path) -> None:
    name = "fedsol/table2 mnist lda-0.1 fedavg"
    request = ReproduceRequest(results=tmp_path, seeds=(0, 1))
    store(tmp_path, name, 90.0, 91.0, rounds=100)
    assert missing_seeds([find_cell(name)], StoredResults(tmp_path), request) == (0, 1)
    store(tmp_path, name, 90.0, 91.0)
    assert missing_seeds([find_cell(name)], StoredResults(tmp_path), request) == ()
