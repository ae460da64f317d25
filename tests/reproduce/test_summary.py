"""The first page: what is counted, which variant answers a claim, and the causes of what was not reproduced."""

from __future__ import annotations

from pathlib import Path

import pytest
from invented_results import store

from fedflat.errors import UserError
from fedflat.reproduce.claims import Claim
from fedflat.reproduce.results import StoredResults
from fedflat.reproduce.summary import (
    believed_claim,
    cause_rows,
    cell_verdicts,
    count_rows,
    read_causes,
    without_replaced,
)

LDA = "fedsol/table2 cifar10 lda-0.1"
JPEG = "CIFAR-10 (JPEG)"


def counted(folder: Path) -> list[tuple[str, ...]]:
    verdicts = without_replaced(cell_verdicts(StoredResults(folder)))
    return [row for row in count_rows(verdicts) if row[0] == "FedSOL Table 2"]


def test_jpeg_results_are_not_counted_beside_original_ones(tmp_path: Path) -> None:
    store(tmp_path, f"{LDA} fedavg", 40.0, data=JPEG)
    store(tmp_path, f"{LDA} fedsol", 64.0, data=JPEG)
    assert counted(tmp_path) == [("FedSOL Table 2", "paper", "2 of 144", "1", "1", "0", "0")]
    store(tmp_path, f"{LDA} fedavg authors", 56.0)
    assert counted(tmp_path) == [
        ("FedSOL Table 2", "paper", "1 of 144", "1", "0", "0", "0"),
        ("FedSOL Table 2", "authors", "1 of 80", "1", "0", "0", "0"),
    ]


def test_what_fails_as_printed_is_reproduced(tmp_path: Path) -> None:
    store(tmp_path, f"{LDA} scaffold", 10.0)
    store(tmp_path, f"{LDA} fednova", 40.0)
    assert counted(tmp_path) == [("FedSOL Table 2", "paper", "2 of 144", "1", "0", "1", "0")]


def test_cells_that_are_printed_as_failed_can_be_reproduced_too(tmp_path: Path) -> None:
    """Six of the 66 numbers of FedGloSS's Table 3 are an X."""
    store(tmp_path, "fedgloss/table3 cnn cifar100 alpha-0 feddyn", 1.0)
    rows = count_rows(cell_verdicts(StoredResults(tmp_path)))
    assert [row[2:] for row in rows if row[0] == "FedGloSS Table 3"] == [("1 of 66", "1", "0", "0", "0")]


def test_the_authors_variant_answers_a_claim_and_original_images_do_before_jpeg(tmp_path: Path) -> None:
    claim = Claim("", "fedsol/table2", "cifar10 lda-0.1", "fedsol", ("fedavg",))
    assert believed_claim(claim, StoredResults(tmp_path)).variant == ""
    for variant, data in ((" authors", JPEG), ("", "CIFAR-10"), (" authors", "CIFAR-10")):
        for name in ("fedavg", "fedsol"):
            store(tmp_path, f"{LDA} {name}{variant}", 60.0, data=data)
        if data == JPEG:
            assert believed_claim(claim, StoredResults(tmp_path)).variant == "authors"
        elif not variant:
            assert believed_claim(claim, StoredResults(tmp_path)).variant == ""
    assert believed_claim(claim, StoredResults(tmp_path)).variant == "authors"


def test_no_cause_is_sought_on_jpeg_images(tmp_path: Path) -> None:
    store(tmp_path, f"{LDA} fednova", 40.0, data=JPEG)
    stored = StoredResults(tmp_path)
    assert [each.verdict for each in cell_verdicts(stored)]
    assert cause_rows(cell_verdicts(stored), stored, tmp_path) == []


def test_causes(tmp_path: Path) -> None:
    store(tmp_path, f"{LDA} fednova", 40.0)
    stored = StoredResults(tmp_path)
    verdicts = cell_verdicts(stored)
    assert cause_rows(verdicts, stored, tmp_path)[0][3] == "no cause found yet"
    read_causes.cache_clear()
    causes = ["{cells: fedsol/table2 fedavg, cause: other}", "{cells: fedsol/table2 lda-* fednova, excluded: data}"]
    (tmp_path / "causes.yaml").write_text("".join(f"- {cause}\n" for cause in causes))
    assert cause_rows(verdicts, stored, tmp_path)[0][3] == "cause not known; excluded: data"
    read_causes.cache_clear()
    (tmp_path / "causes.yaml").write_text("- {pattern: x}\n")
    with pytest.raises(UserError, match="not a list of causes"):
        read_causes(tmp_path)


def test_the_stored_causes_can_be_read() -> None:
    for cause in read_causes(Path(__file__).parents[2] / "results"):
        assert bool(cause.cause) != bool(cause.excluded)
