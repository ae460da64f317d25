"""The queue: every entry has cells, a group is trained by one process, JPEG results are replaced and deleted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from invented_results import find_cell, store

from fedflat.cli import main
from fedflat.reproduce import queue
from fedflat.reproduce.cells import find_table
from fedflat.reproduce.claims import NOT_REPRODUCED, OUTSIDE, Claim, verdict
from fedflat.reproduce.queue import QUEUE, QueueEntry, claim_group
from fedflat.reproduce.results import StoredResults, default_results, read_record
from fedflat.reproduce.train import ReproduceRequest, missing_seeds

FEDAVG, FEDSOL = (f"fedsol/table2 cifar10 lda-0.1 {name}" for name in ("fedavg", "fedsol"))
TRY = ["--dataset", "digits", "--rounds", "2", "--engine", "sequential"]


@pytest.mark.parametrize("entry", QUEUE, ids=lambda entry: entry.text)
def test_every_entry_has_cells(entry: QueueEntry) -> None:
    cells = entry.find_cells()
    assert cells
    for pattern in entry.cells:
        assert any(cell.matches([pattern]) for cell in cells), pattern


def test_a_group_is_claimed_by_one_process(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from fedflat.reproduce.queue import claim_group\n"
    code += "with claim_group(Path(sys.argv[1]), sys.argv[2]) as claimed: print(claimed)"

    def claim_elsewhere(key: str) -> str:
        return subprocess.run([sys.executable, "-c", code, str(tmp_path), key], capture_output=True, text=True).stdout

    with claim_group(tmp_path, "one") as claimed:
        assert claimed
        assert claim_elsewhere("one") == "False\n"
        assert claim_elsewhere("another") == "True\n"
    assert claim_elsewhere("one") == "True\n"


def test_a_link_in_place_of_a_claim_empties_no_file(tmp_path: Path) -> None:
    with claim_group(tmp_path, "one"):
        (lock,) = tmp_path.glob("claims/*")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    lock.unlink()
    lock.symlink_to(precious)
    with claim_group(tmp_path, "one") as claimed:
        assert claimed
    assert precious.read_text() == "mine"


def test_the_queue_skips_what_another_process_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [QueueEntry(("fedsol/table2",), (f"cifar10 lda-0.3 {name}",)) for name in ("fedprox", "fedavg")]
    monkeypatch.setattr("fedflat.cli.reproduce.QUEUE", entries)
    words = ["reproduce", "--queue", *TRY, "--results", str(tmp_path / "results"), "--runs", str(tmp_path)]
    assert main([*words, "--show"]) == 0
    assert capsys.readouterr().out.count("--seeds 0") == 2
    with monkeypatch.context() as patch:
        keys: list[str] = []

        def claim_all_but_the_first(runs: Path, key: str) -> object:
            keys.append(key)
            return queue.claim_group(runs, key if len(keys) > 1 else "held")

        patch.setattr("fedflat.cli.reproduce.claim_group", claim_all_but_the_first)
        with claim_group(tmp_path, "held"):
            assert main(words) == 0
    assert [path.stem for path in (tmp_path / "results").glob("*/*/*")] == ["cifar10_lda-0.3_fedavg_@digits_@rounds-2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.count("1 run of 2 rounds") == 2
    assert len([*(tmp_path / "results").glob("*/*/*")]) == 2


def test_jpeg_results_are_replaced_and_never_mixed(tmp_path: Path) -> None:
    cell, request = find_cell(FEDAVG), ReproduceRequest(results=tmp_path, seeds=(0,))
    store(tmp_path, FEDAVG, 50.0, 51.0, 52.0, data="CIFAR-10 (JPEG)")
    assert missing_seeds([cell], StoredResults(tmp_path), request) == (0,)
    store(tmp_path, FEDAVG, 56.0, data="CIFAR-10 (original pixels)")
    store(tmp_path, FEDAVG, 50.0, 51.0, data="CIFAR-10 (JPEG)")
    (path,) = tmp_path.glob("*/*/*.json")
    record = read_record(path)
    assert (set(record.seeds), record.jpeg) == ({"0"}, False)
    assert record.numbers(0) == {"final": 56.0}


def test_jpeg_results_are_not_compared_with_others(tmp_path: Path) -> None:
    claim = Claim("", "fedsol/table2", "cifar10 lda-0.1", "fedsol", ("fedavg",))
    store(tmp_path, FEDSOL, 70.0)
    store(tmp_path, FEDAVG, 75.0, data="CIFAR-10 (JPEG)")
    table = find_table("fedsol/table2")
    assert verdict(table, find_cell(FEDSOL), StoredResults(tmp_path)) == OUTSIDE
    assert claim.check(StoredResults(tmp_path)) == "not run yet"
    store(tmp_path, FEDAVG, 75.0)
    assert verdict(table, find_cell(FEDSOL), StoredResults(tmp_path)) == NOT_REPRODUCED


def test_rivals_of_a_variant_are_of_the_variant(tmp_path: Path) -> None:
    store(tmp_path, f"{FEDSOL} authors", 70.0)
    store(tmp_path, FEDAVG, 75.0)
    table, cell = find_table("fedsol/table2"), find_cell(f"{FEDSOL} authors")
    assert verdict(table, cell, StoredResults(tmp_path)) == OUTSIDE
    store(tmp_path, f"{FEDAVG} authors", 75.0)
    assert verdict(table, cell, StoredResults(tmp_path)) == NOT_REPRODUCED


def test_jpeg_results_are_deleted_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, FEDAVG, 50.0, data="CIFAR-10 (JPEG)")
    store(tmp_path, FEDSOL, 64.0)
    assert main(["reproduce", "--delete-jpeg", "--results", str(tmp_path)]) == 0
    assert f"deleted: 1 file in {tmp_path}" in capsys.readouterr().out
    assert [path.stem for path in tmp_path.glob("*/*/*.json")] == ["cifar10_lda-0.1_fedsol"]
    assert main(["reproduce", "fedsol/table2", "--delete-jpeg"]) == 2
    assert "--delete-jpeg: is about all tables" in capsys.readouterr().err


def test_results_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkout = Path(__file__).parents[2] / "results"
    assert default_results() == checkout
    assert main(["reproduce"]) == 0
    assert f"stored results: {checkout}" in capsys.readouterr().out
    installed = tmp_path / "lib" / "python" / "site-packages" / "fedflat" / "reproduce" / "results.py"
    monkeypatch.setattr("fedflat.reproduce.results.__file__", str(installed))
    assert default_results() == Path("results")
