"""The leaderboard: ranked by the last tenth of the curve, per setting, with bytes until FedAvg's accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invented_results import store

from fedflat import FedAvg, FedSAM, FedSOL
from fedflat.reproduce.leaderboard import last_tenth, leaderboard_page, method_text
from fedflat.reproduce.results import StoredResults, read_record

LDA = "fedsol/table2 cifar10 lda-0.1"
PARAMETERS = 2_156_490  # of the CNN


def page_rows(folder: Path) -> list[list[str]]:
    page = leaderboard_page(StoredResults(folder))
    lines = [line for line in page.splitlines() if line.startswith("| fed")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_ranking_by_the_last_tenth_and_never_by_the_best_round(tmp_path: Path) -> None:
    """FedSOL's best round is 90, its last two of twenty are 60 and 64; FedAvg ends with 50 and 52."""
    rising = [[15 * n, 40.0] for n in range(1, 19)]
    store(tmp_path, f"{LDA} fedavg", 52.0, curve=[*rising, [285, 50.0], [300, 52.0]])
    assert page_rows(tmp_path) == [], "one method is no ranking"
    store(
        tmp_path, f"{LDA} fedsol", 64.0, 66.0, curve=[*rising[:8], [135, 90.0], *rising[9:], [285, 60.0], [300, 64.0]]
    )
    store(tmp_path, f"{LDA} fedsam", 45.0, curve=[*rising, [285, 45.0], [300, 45.0]])
    rows = page_rows(tmp_path)
    assert [row[0] for row in rows] == ["fedsol", "fedavg", "fedsam"]
    assert [row[1] for row in rows] == ["65.0 ± 1.4", "52.0", "45.0"]
    assert [row[2] for row in rows] == ["62.0", "51.0", "45.0"]
    megabytes = [int(row[4].replace(",", "")) if row[4] != "never" else None for row in rows]
    each_round = 2 * 4 * PARAMETERS * 10 / 1e6
    assert megabytes == [round(135 * each_round), round(300 * each_round), None]
    assert rows[0][7] == (
        '`fedflat reproduce fedsol/table2 --cells "cifar10 lda-0.1 fedsol" --seeds 0 1 --precision tf32`'
    )


def test_the_last_tenth_is_rounded_up(tmp_path: Path) -> None:
    """Two of eleven evaluations."""
    store(tmp_path, f"{LDA} fedavg", 52.0, curve=[*([n, 40.0] for n in range(9)), [285, 50.0], [300, 52.0]])
    assert last_tenth(read_record(next(tmp_path.glob("*/*/*.json"))))[0] == 51.0


def test_every_seed_has_to_reach_the_target_and_time_is_shared(tmp_path: Path) -> None:
    """FedSOL's second seed never reaches FedAvg's 50. Its two seeds and two other runs took 50 seconds together."""
    store(tmp_path, f"{LDA} fedavg", 50.0, curve=[[300, 50.0]])
    store(tmp_path, f"{LDA} fedsol", 60.0, 60.0, curve=[[300, 60.0]])
    path = next(path for path in tmp_path.glob("*/*/*.json") if read_record(path).cell.endswith("fedsol"))
    stored = json.loads(path.read_text())
    stored["seeds"]["1"]["curve"] = [[300, 45.0]]
    stored["runs"][0]["together"] = 4
    path.write_text(json.dumps(stored))
    (fedsol,) = (row for row in page_rows(tmp_path) if row[0] == "fedsol")
    assert (fedsol[4], fedsol[5]) == ("never", "12")


def test_settings_are_not_mixed(tmp_path: Path) -> None:
    store(tmp_path, f"{LDA} fedavg", 52.0, curve=[[300, 52.0]])
    store(tmp_path, f"{LDA} fedsam authors", 50.0, curve=[[300, 50.0]])
    store(tmp_path, f"{LDA} fedsol", 60.0, curve=[[300, 60.0]], data="CIFAR-10 (JPEG)")
    assert page_rows(tmp_path) == []


@pytest.mark.parametrize(
    ("method", "text"),
    [(FedAvg(), "fedavg"), (FedSAM(rho=0.15), "fedsam:rho=0.15"), (FedSOL(lam="dim0"), "fedsol:lam=dim0")],
)
def test_methods_name_what_is_not_their_default(method: FedAvg, text: str) -> None:
    assert method_text(method) == text
