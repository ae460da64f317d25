"""Verdicts, claims and training jobs, on invented results."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from invented_results import find_cell, store

from fedflat import Experiment
from fedflat.errors import UserError
from fedflat.reproduce.cells import find_table
from fedflat.reproduce.claims import (
    CLAIMS,
    FAILS,
    NOT_REPRODUCED,
    OUTSIDE,
    RANKING,
    TRAINS,
    WITHIN,
    Claim,
    allowed_difference,
    our_text,
    verdict,
)
from fedflat.reproduce.final_numbers import accuracy_numbers, thinned_curve
from fedflat.reproduce.render import table_rows
from fedflat.reproduce.results import StoredResults, first_reaching, read_record
from fedflat.reproduce.table import MEASURES
from fedflat.reproduce.train import ReproduceRequest, group_jobs, missing_seeds, training_jobs

FEDAVG = "fedsol/table2 cifar10 lda-0.1 fedavg"  # 56.13 ± 0.78
FEDSOL = "fedsol/table2 cifar10 lda-0.1 fedsol"  # 64.13 ± 0.46


def verdict_on(folder: Path, name: str) -> str:
    return verdict(find_table(name.split()[0]), find_cell(name), StoredResults(folder))


@pytest.mark.parametrize(
    ("fedavg", "fedsol", "expected"),
    [
        ((), (), ""),
        ((), (64.0,), WITHIN),
        ((), (62.0, 66.0, 64.0), WITHIN),
        ((), (70.0,), OUTSIDE),
        ((60.0,), (70.0,), RANKING),
        ((71.0,), (70.0,), NOT_REPRODUCED),
        ((71.0,), (64.0,), WITHIN),
    ],
)
def test_verdicts(tmp_path: Path, fedavg: tuple[float, ...], fedsol: tuple[float, ...], expected: str) -> None:
    for name, values in ((FEDAVG, fedavg), (FEDSOL, fedsol)):
        if values:
            store(tmp_path, name, *values)
    assert verdict_on(tmp_path, FEDSOL) == expected


def test_allowed_distance(tmp_path: Path) -> None:
    store(tmp_path, FEDSOL, 63.0, 64.0, 65.0)
    ours = StoredResults(tmp_path).ours(find_cell(FEDSOL))
    assert allowed_difference(find_cell(FEDSOL), ours) == pytest.approx(2 * math.sqrt(0.46**2 + 1 + 0.5**2))
    assert allowed_difference(find_cell(FEDSOL), None, "clients") == pytest.approx(1.0)
    flat = find_cell("fedgloss/table8 cnn cifar10 alpha-0 fedgloss")
    assert allowed_difference(flat, None) == pytest.approx(2 * math.hypot(0.05, 0.05 * 2.03))


def test_the_order_must_be_that_of_the_paper_for_every_rival(tmp_path: Path) -> None:
    """64.13 is above FedAvg's and FedSAM's numbers; here FedSAM is better."""
    for name, value in ((FEDSOL, 55.0), (FEDAVG, 40.0), ("fedsol/table2 cifar10 lda-0.1 fedsam", 60.0)):
        store(tmp_path, name, value)
    assert verdict_on(tmp_path, FEDSOL) == NOT_REPRODUCED


def test_a_rival_trained_on_other_images_does_not_count(tmp_path: Path) -> None:
    store(tmp_path, FEDSOL, 70.0)
    store(tmp_path, FEDAVG, 60.0, data="CIFAR-10 (JPEG)")
    assert verdict_on(tmp_path, FEDSOL) == OUTSIDE
    store(tmp_path, FEDAVG, 60.0)
    assert verdict_on(tmp_path, FEDSOL) == RANKING


@pytest.mark.parametrize(("method", "last"), [("fedgloss", 50.0), ("scaffold", 70.0)])
def test_an_accuracy_that_only_the_paper_or_only_we_reach(tmp_path: Path, method: str, last: float) -> None:
    """FedAvg's 60 is reached by the paper's FedGloSS, and never by its SCAFFOLD."""
    column = "cnn cifar10 alpha-0"
    store(tmp_path, f"fedgloss/table3 {column} fedavg", 60.0)
    store(tmp_path, f"fedgloss/table3 {column} {method}", last, curve=[[10_000, last]])
    assert verdict_on(tmp_path, f"fedgloss/table10 {column} rounds {method}") == NOT_REPRODUCED


def test_no_verdict_after_fewer_rounds(tmp_path: Path) -> None:
    store(tmp_path, FEDSOL, 64.0, rounds=100)
    assert verdict_on(tmp_path, FEDSOL) == ""
    (row,) = table_rows(
        find_table("fedsol/table2"), [find_cell(FEDSOL)], StoredResults(tmp_path), ReproduceRequest(results=tmp_path)
    )
    assert row[2:] == ("64.00 (1 seed)", "", "100 of 300 rounds")


def test_close_rivals_do_not_count(tmp_path: Path) -> None:
    store(tmp_path, FEDSOL, 70.0)
    store(tmp_path, "fedsol/table2 cifar10 lda-0.1 fedntd", 75.0)  # 63.16±1.02 is no further than allowed from 64.13
    assert verdict_on(tmp_path, FEDSOL) == OUTSIDE


@pytest.mark.parametrize(
    ("value", "diverged", "expected"), [(1.2, False, FAILS), (30.0, True, FAILS), (30.0, False, TRAINS)]
)
def test_what_does_not_converge(tmp_path: Path, value: float, diverged: bool, expected: str) -> None:
    for name in ("fedgloss/table3 cnn cifar100 alpha-0 feddyn", "fedsol/table2 cifar10 lda-0.1 scaffold"):
        store(tmp_path, name, value, diverged=diverged)
        assert verdict_on(tmp_path, name) == expected


def test_lower_is_better_for_eigenvalues(tmp_path: Path) -> None:
    ours, theirs = (f"fedgloss/table8 cnn cifar10 alpha-0 {name}" for name in ("fedgloss", "fedsam"))
    store(tmp_path, ours, 5.0)
    store(tmp_path, theirs, 9.0)
    assert verdict_on(tmp_path, ours) == RANKING
    flattest = Claim("", "fedgloss/table8", "cnn cifar10 alpha-0", "fedgloss", ("fedsam",))
    assert flattest.check(StoredResults(tmp_path)) == "holds"


def test_one_training_serves_several_tables(tmp_path: Path) -> None:
    store(tmp_path, FEDAVG, 56.0)
    stored = StoredResults(tmp_path)
    for name in (
        "fedsol/table1 cifar10 lda-0.1 none",
        "fedsol/table12 cifar10 lda-0.1 A0",
        "fedsol/table5 cifar10 lda-0.1 fedavg",
    ):
        ours = stored.ours(find_cell(name))
        assert ours is not None
        assert ours.mean == 56.0
    assert stored.ours(find_cell("fedsol/figure5 cifar10 lda-0.1 drift.global_local fedavg")) is None


def test_rounds_until_fedavg(tmp_path: Path) -> None:
    column = "cnn cifar10 alpha-0"
    name = f"fedgloss/table10 {column} rounds fedgloss"
    store(tmp_path, f"fedgloss/table3 {column} fedgloss", 80.0, 81.0, curve=[[200, 50.0], [2200, 61.0], [10_000, 80.0]])
    assert StoredResults(tmp_path).ours(find_cell(name)) is None
    store(tmp_path, f"fedgloss/table3 {column} fedavg", 60.0)
    ours = StoredResults(tmp_path).ours(find_cell(name))
    assert ours is not None
    assert ours.values == [2200, 2200]
    assert verdict_on(tmp_path, name) == WITHIN
    store(tmp_path, f"fedgloss/table3 {column} scaffold", 30.0, curve=[[10_000, 30.0]])
    lost = f"fedgloss/table10 {column} rounds scaffold"
    assert verdict_on(tmp_path, lost) == WITHIN
    missed = StoredResults(tmp_path).ours(find_cell(lost))
    assert missed is not None
    assert our_text(find_cell(lost), missed) == "not reached"
    assert first_reaching([[1, 10.0], [2, 20.0], [3, 15.0]], 15.0) == 2


def test_claims(tmp_path: Path) -> None:
    claim = Claim("", "fedsol/table2", "cifar10 lda-*", "fedsol", ("fedavg",))
    assert len(claim.pairs()) == 4
    assert claim.check(StoredResults(tmp_path)) == "not run yet"
    store(tmp_path, FEDSOL, 64.0)
    assert claim.check(StoredResults(tmp_path)) == "not run yet"
    store(tmp_path, FEDAVG, 56.0)
    assert claim.check(StoredResults(tmp_path)) == "holds where run (1 of 4 comparisons)"
    store(tmp_path, "fedsol/table2 cifar10 lda-0.5 fedavg", 76.0)
    store(tmp_path, "fedsol/table2 cifar10 lda-0.5 fedsol", 75.1)
    assert claim.check(StoredResults(tmp_path)) == "undecided (1 of 2 comparisons too close)"
    store(tmp_path, "fedsol/table2 cifar10 lda-0.5 fedsol", 73.0)
    assert claim.check(StoredResults(tmp_path)) == "does not hold here (1 of 2 comparisons fail)"
    numbers = ["fedsol 64.00 (1 seed), fedavg 56.00 (1 seed)", "fedsol 73.00 (1 seed), fedavg 76.00 (1 seed)"]
    assert claim.numbers_text(StoredResults(tmp_path)) == f"lda-0.1: {numbers[0]}; lda-0.5: {numbers[1]}"


def test_a_rival_that_diverged_is_named_and_not_compared(tmp_path: Path) -> None:
    claim = Claim("", "fedsol/table2", "cifar10 lda-0.1", "fedsol", ("fedavg", "fedntd"))
    store(tmp_path, FEDSOL, 64.0)
    store(tmp_path, FEDAVG, 10.0, diverged=True)
    assert claim.check(StoredResults(tmp_path)) == "not run yet; fedavg diverged"
    assert claim.numbers_text(StoredResults(tmp_path)) == ""
    store(tmp_path, "fedsol/table2 cifar10 lda-0.1 fedntd", 60.0)
    assert claim.check(StoredResults(tmp_path)) == "holds where run (1 of 2 comparisons); fedavg diverged"


def test_rivals_that_diverged_do_not_count(tmp_path: Path) -> None:
    store(tmp_path, FEDSOL, 50.0)
    store(tmp_path, FEDAVG, 10.0, diverged=True)
    assert verdict_on(tmp_path, FEDSOL) == OUTSIDE
    store(tmp_path, "fedsol/table2 cifar10 lda-0.1 fedsam", 55.0)
    assert verdict_on(tmp_path, FEDSOL) == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("fedgf", "fedasam", "expected"),
    [
        (70.0, 70.0, "undecided (1 of 1 comparisons too close)"),
        (70.0, 60.0, "holds"),
        (60.0, 70.0, "does not hold here (1 of 1 comparisons fail)"),
        (60.0, 60.0, "undecided (1 of 1 comparisons too close)"),
    ],
)
def test_an_accuracy_never_reached_is_worst(tmp_path: Path, fedgf: float, fedasam: float, expected: str) -> None:
    """FedAvg ends at 65: 70 reaches it in round 5,000, 60 never."""
    fastest = Claim("", "fedgf/figure4", "cifar10", "fedgf", ("fedasam",))
    for name, final in (("fedavg", 65.0), ("fedgf", fedgf), ("fedasam", fedasam)):
        store(tmp_path, f"fedgf/table1 cifar10 alpha-0 cohort-5 {name}", final, curve=[[5000, final]])
    assert fastest.check(StoredResults(tmp_path)) == expected


def test_a_claim_of_the_released_code(tmp_path: Path) -> None:
    claim = Claim("Best", "fedsol/table2", "cifar10 lda-0.1", "fedsol", ("fedavg", "fedsol"))
    released = claim.under("released")
    store(tmp_path, FEDAVG, 56.0)
    store(tmp_path, FEDSOL, 50.0)
    assert claim.check(StoredResults(tmp_path)).startswith("does not hold here")
    assert released.comparisons(StoredResults(tmp_path)) == []
    store(tmp_path, f"{FEDSOL} released", 64.0)
    assert released.check(StoredResults(tmp_path)) == "holds"
    assert released.numbers_text(StoredResults(tmp_path)) == "lda-0.1: fedsol 64.00 (1 seed), fedavg 56.00 (1 seed)"


@pytest.mark.parametrize(
    ("seeds", "expected"), [([60.0, 64.0], "undecided"), ([62.0, 62.0], "holds"), ([62.0], "holds")]
)
def test_claims_use_the_standard_error_of_the_mean(tmp_path: Path, seeds: list[float], expected: str) -> None:
    """FedAvg's printed ± of 0.78 is the error of its one seed: 2 √(0.78² + 0.5²) = 1.85 and 62 − 59 = 3."""
    claim = Claim("", "fedsol/table2", "cifar10 lda-0.1", "fedsol", ("fedavg",))
    store(tmp_path, FEDSOL, *seeds)
    store(tmp_path, FEDAVG, 59.0)
    assert claim.check(StoredResults(tmp_path)).startswith(expected)
    store(tmp_path, FEDAVG, 60.5)
    assert claim.check(StoredResults(tmp_path)).startswith("undecided")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_claims_hold_in_the_papers_themselves(tmp_path: Path, claim: Claim) -> None:
    """Printed numbers as results: what a paper claims, its table must show; figures print none."""
    pairs = claim.pairs()
    assert pairs or claim.table == "fedgloss/table4", "every claim compares cells that can be had"
    for one, other in pairs:
        if one.printed is not None and other.printed is not None:
            sign = 1 if MEASURES[one.measure].higher else -1
            assert sign * (one.printed - other.printed) > claim.margin, (one.name, other.name)


def test_missing_seeds_and_measures(tmp_path: Path) -> None:
    cell, request = find_cell(FEDAVG), ReproduceRequest(results=tmp_path, seeds=(0, 1, 2))
    assert missing_seeds([cell], StoredResults(tmp_path), request) == (0, 1, 2)
    store(tmp_path, FEDAVG, 56.0, 57.0)
    record = read_record(next(tmp_path.glob("*/*/*.json")))
    assert set(record.seeds) == {"0", "1"}
    assert missing_seeds([cell], StoredResults(tmp_path), request) == (0, 1, 2), "λ1 is asked for by Figure 7"
    for seed in record.seeds.values():
        seed["numbers"]["lambda1"] = None
    next(tmp_path.glob("*/*/*.json")).write_text(json.dumps(asdict(record)), encoding="utf-8")
    assert missing_seeds([cell], StoredResults(tmp_path), request) == (2,)


def test_partitions_are_trained_together(tmp_path: Path) -> None:
    cells = [cell for cell in find_table("fedsol/table2").cells if cell.words[0] == "cifar10"]
    request = ReproduceRequest(results=tmp_path, dataset="digits")
    groups = [*group_jobs(training_jobs(cells, request.stored(), request)).values()]
    assert [len(group) for group in groups] == [8] * 8
    assert len({group[0].experiment.method for group in groups}) == 8


def test_damaged_results_are_named(tmp_path: Path) -> None:
    path = tmp_path / "fedsol" / "table2" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r'x\.json": not a stored result'):
        StoredResults(tmp_path)


class FakeResult:
    """A result with this history."""

    def __init__(self, accuracies: dict[int, float]) -> None:
        self.rounds = max(accuracies)
        self.history: list[dict[str, Any]] = [{"round": r, "seed": 0, "accuracy": a} for r, a in accuracies.items()]


def test_numbers_of_a_history() -> None:
    result = FakeResult({r: r / 1000 for r in range(10, 1001, 10)})
    numbers = accuracy_numbers(result, 0, Experiment(rounds=1000, eval_every=10))  # type: ignore[arg-type]
    assert numbers == {
        "final": 100.0,
        "last50": pytest.approx(98.0),
        "last100": pytest.approx(95.5),
        "half": pytest.approx(45.5),
    }
    points = thinned_curve(result, 0)  # type: ignore[arg-type]
    assert len(points) == 50
    assert points[0] == [20, 2.0]
    assert points[-1] == [1000, 100.0]


@pytest.mark.parametrize(("rounds", "last100", "half"), [(1000, 10.0, 50.0), (740, 22.0, 50.0), (2000, 10.0, 10.0)])
def test_a_run_that_ends_early_keeps_its_last_accuracy(rounds: int, last100: float, half: float) -> None:
    """All its models have diverged in round 680: more rounds would not change them."""
    ended = FakeResult({r: 0.5 if r < 680 else 0.1 for r in range(10, 681, 10)})
    numbers = accuracy_numbers(ended, 0, Experiment(rounds=rounds, eval_every=10))  # type: ignore[arg-type]
    assert (numbers["final"], numbers["last50"]) == (10.0, pytest.approx(10.0))
    assert (numbers["last100"], numbers["half"]) == (pytest.approx(last100), pytest.approx(half))


def test_probes_count_as_they_were_measured_last() -> None:
    """Of a list, such as accuracies by class, the lowest value counts; the last round was not probed."""
    ended = FakeResult({10: 0.1, 20: 0.2, 30: 0.3})
    for row, drift in zip(ended.history, (3.0, 2.0), strict=False):
        row["probes"] = {"drift": drift, "classes": [0.9, None, drift / 10, 0.5]}
    numbers = accuracy_numbers(ended, 0, Experiment(rounds=30, eval_every=10))  # type: ignore[arg-type]
    assert (numbers["drift"], numbers["classes"]) == (2.0, 0.2)
