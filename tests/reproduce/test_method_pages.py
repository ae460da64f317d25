"""The section "Results" of docs/methods/NAME.md is what the stored results say, by the leaderboard's rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from invented_results import store

from fedflat.methods import METHODS
from fedflat.reproduce.method_pages import (
    BEGIN,
    END,
    NO_RESULT,
    results_by_method,
    with_results,
    write_method_results,
)
from fedflat.reproduce.results import StoredResults

ROOT = Path(__file__).parents[2]
LDA = "fedsol/table2 cifar10 lda-0.1"
RISING = [[15 * n, 40.0] for n in range(1, 19)]


@pytest.fixture(scope="module")
def published() -> dict[str, str]:
    return results_by_method(StoredResults(ROOT / "results"))


@pytest.mark.parametrize("name", METHODS)
def test_the_pages_are_current(name: str, published: dict[str, str]) -> None:
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert page.count(f"\n## Results\n\n{BEGIN}\n") == 1, f"the page needs ## Results, {BEGIN} and {END}"
    assert page == with_results(page, published[name]), "run fedflat reproduce --show"


def test_the_last_tenth_beside_that_of_fedavg(tmp_path: Path) -> None:
    """FedSOL's best round is 90, its last two of twenty are 60 and 64; FedAvg ends with 50 and 52."""
    curve = [*RISING[:8], [135, 90.0], *RISING[9:], [285, 60.0], [300, 64.0]]
    store(tmp_path, f"{LDA} fedsol", 64.0, 66.0, curve=curve)
    assert results_by_method(StoredResults(tmp_path))["fedsol"] == NO_RESULT, "one method is no comparison"
    store(tmp_path, f"{LDA} fedavg", 52.0, curve=[*RISING, [285, 50.0], [300, 52.0]])
    results = results_by_method(StoredResults(tmp_path))
    assert "| `fedsol` | 62.0 | 51.0 | 2 |" in results["fedsol"]
    assert "| `fedavg` | 51.0 | 1 |" in results["fedavg"]
    assert results["fedsam"] == NO_RESULT


def test_jpeg_images_are_named_and_not_shown(tmp_path: Path) -> None:
    store(tmp_path, f"{LDA} fedsol", 64.0, curve=[[300, 64.0]], data="CIFAR-10 (JPEG)")
    store(tmp_path, f"{LDA} fedavg", 52.0, curve=[[300, 52.0]], data="CIFAR-10 (JPEG)")
    results = results_by_method(StoredResults(tmp_path))["fedsol"]
    assert "JPEG" in results
    assert results.endswith("[FedSOL](../reproduction-fedsol.md).")
    assert "64" not in results


def test_only_what_is_between_the_marks_is_written(tmp_path: Path) -> None:
    page, other = tmp_path / "fedsol.md", tmp_path / "fedavg.md"
    page.write_text(f"# FedSOL\n\n{BEGIN}\n\nold\n\n{END}\n\nby hand\n", encoding="utf-8")
    other.write_text("# FedAvg\n", encoding="utf-8")
    assert write_method_results(StoredResults(tmp_path / "none"), tmp_path) == [page]
    assert page.read_text(encoding="utf-8") == f"# FedSOL\n\n{BEGIN}\n\n{NO_RESULT}\n\n{END}\n\nby hand\n"
    assert other.read_text(encoding="utf-8") == "# FedAvg\n"
    assert write_method_results(StoredResults(tmp_path / "none"), tmp_path) == []
