"""fedflat reproduce on digits for a few rounds: train, interrupt, resume, skip, show."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedflat.cli import main

SMALL = ["--dataset", "digits", "--rounds", "3", "--engine", "sequential"]
CELLS = ["cifar10 lda-0.1 fedavg", "cifar10 shards-2 fedavg"]


class Reproduce:
    """Calls fedflat reproduce with folders of its own."""

    def __init__(self, path: Path) -> None:
        self.results, self.runs = path / "results", path / "runs"

    def __call__(self, *words: str) -> int:
        return main(["reproduce", *words, "--results", str(self.results), "--runs", str(self.runs)])

    def records(self) -> dict[str, dict[str, Any]]:
        return {path.stem: json.loads(path.read_text()) for path in sorted(self.results.glob("*/*/*.json"))}


@pytest.fixture
def reproduce(tmp_path: Path) -> Reproduce:
    return Reproduce(tmp_path)


def test_train_skip_and_add_a_seed(reproduce: Reproduce, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table2", "--cells", *CELLS, *SMALL, "--data-note", "digits (scikit-learn)"]
    assert reproduce(*words, "--seeds", "4") == 0
    out = capsys.readouterr().out
    assert "2 partitions, 2 runs of 3 rounds" in out
    assert "on digits, 3 of 300 rounds" in out
    first = reproduce.records()
    assert set(first) == {"cifar10_lda-0.1_fedavg_@digits_@rounds-3", "cifar10_shards-2_fedavg_@digits_@rounds-3"}
    record = first["cifar10_lda-0.1_fedavg_@digits_@rounds-3"]
    assert (record["rounds"], record["config"]["alpha"], record["config"]["dataset"]) == (3, 0.1, "digits")
    seed, run = record["seeds"]["4"], record["runs"][0]
    assert seed["curve"][-1] == [3, pytest.approx(seed["numbers"]["final"], abs=0.01)]
    assert {"lambda1", "drift.global_local"} <= seed["numbers"].keys()
    assert (run["data"], run["precision"], run["seeds"]) == ("digits (scikit-learn)", "fp32", [4])
    assert {"torch", "hardware"} <= run["versions"].keys()

    assert reproduce(*words, "--seeds", "4") == 0
    assert "partitions" not in capsys.readouterr().out
    assert reproduce.records() == first

    assert reproduce(*words, "--seeds", "4", "5") == 0
    assert "2 partitions, 2 runs" in capsys.readouterr().out
    after = reproduce.records()["cifar10_lda-0.1_fedavg_@digits_@rounds-3"]
    assert after["seeds"]["4"] == seed
    assert after["seeds"]["5"]["run"] == 1
    assert len(after["runs"]) == 2


def test_interrupt_and_resume(reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fedprox", *SMALL, "--rounds", "4", "--seeds", "0"]
    uninterrupted, rounds = Reproduce(tmp_path / "uninterrupted"), []
    assert uninterrupted(*words) == 0

    def interrupt_after_round_2(round: int, rows: list[dict[str, Any]]) -> None:
        rounds.append(round)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedflat.reproduce.train.progress_watcher", lambda *_: interrupt_after_round_2)
    assert reproduce(*words) == 130
    assert not reproduce.records()
    assert reproduce(*words) == 0
    assert rounds == [1, 2, 3, 4]
    (there,), (here,) = uninterrupted.records().values(), reproduce.records().values()
    assert here["seeds"]["0"]["numbers"] == there["seeds"]["0"]["numbers"]


def test_results_lost_after_training_are_read_again(reproduce: Reproduce, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fedprox", *SMALL, "--seeds", "0"]
    assert reproduce(*words) == 0
    before = {name: record["seeds"] for name, record in reproduce.records().items()}
    for path in reproduce.results.glob("*/*/*.json"):
        path.unlink()
    assert reproduce(*words) == 0
    assert {name: record["seeds"] for name, record in reproduce.records().items()} == before


def test_the_same_command_continues_after_the_budget(
    reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fedprox", *SMALL, "--seeds", "0", "--budget", "1h"]
    with monkeypatch.context() as patch:
        now = iter([0.0])  # after round 1
        patch.setattr("fedflat.reproduce.train.time", SimpleNamespace(monotonic=lambda: next(now, math.inf)))
        assert reproduce(*words) == 0
    assert "stopped after round 2; the same command continues" in capsys.readouterr().out
    assert not reproduce.records()
    assert reproduce(*words) == 0
    progress = [line for line in capsys.readouterr().out.splitlines() if ": round " in line]
    assert len(progress) == 1
    assert "round 3 of 3" in progress[0]
    assert reproduce.records()


def test_nothing_is_started_after_the_budget(reproduce: Reproduce, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fed*o*", *SMALL, "--seeds", "0", "--budget", "0.001s"]
    assert reproduce(*words) == 0
    out = capsys.readouterr().out
    assert out.count("not started, the time is over") == 1
    assert not reproduce.records()
    assert not reproduce.runs.exists()


def test_jobs_are_trained_in_the_order_of_the_table(
    reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedflat.cli.reproduce.train_group", lambda *_: None)
    assert reproduce("fedsol/table2", "--cells", "cifar10 lda-0.3 fed*o*", *SMALL, "--seeds", "0") == 0
    labels = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "1 run of 3 rounds" in line]
    assert [label.split()[-1] for label in labels] == ["fedprox", "fednova", "fedsol"]


def test_measures_of_final_models(reproduce: Reproduce, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table9", "--cells", "cifar10 fedbabu *", *SMALL, "--seeds", "0", "--csv"]
    assert reproduce(*words) == 0
    (record,) = reproduce.records().values()
    assert {"tuned-1", "tuned-5"} <= record["seeds"]["0"]["numbers"].keys()
    assert reproduce("fedgf/table3", "--csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out.partition("cell,paper")[2])))
    assert ["models fedgf", "3", "3", "+0.00", "within 2 sd"] in rows


def test_forms(reproduce: Reproduce, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("fedgf/table3", "--markdown", "--cells", "fedavg") == 0
    assert capsys.readouterr().out.splitlines() == [
        "| cell | paper | ours | difference | verdict |",
        "| --- | --- | --- | --- | --- |",
        "| models fedavg | 2 | 2 | +0.00 | within 2 sd |",
    ]
    assert reproduce("fedsol/table1", "--latex", "--show") == 0
    out = capsys.readouterr().out
    assert out.startswith(r"\begin{tabular}{lllll}")
    assert r"cifar10 lda-0.1 none & 56.13 $\pm$ 0.78 & -- &  & " in out
    assert reproduce("--csv") == 0
    assert "fedsol/table2,Test accuracy of baselines and FedSOL,144,0," in capsys.readouterr().out


def test_pages_are_rebuilt_from_results(reproduce: Reproduce, tmp_path: Path) -> None:
    from invented_results import store

    store(reproduce.results, "fedsol/table2 cifar10 lda-0.1 fedsol", 64.0, 65.0)
    store(reproduce.results, "fedsol/table2 cifar10 lda-0.1 fedavg", 56.0, data="CIFAR-10 (JPEG)")
    out = tmp_path / "docs" / "page.md"
    assert reproduce("--show", "--out", str(out)) == 0
    pages = {path.name: path.read_text(encoding="utf-8") for path in out.parent.iterdir()}
    papers = [f"page-{paper}.md" for paper in ("fedsol", "fedgf", "fedgloss", "flsam")]
    assert set(pages) == {"page.md", "leaderboard.md", *papers}
    main_page, fedsol = pages["page.md"], pages["page-fedsol.md"]
    assert "| FedSOL Table 2 | paper | 1 of 144 | 1 | 0 | 0 | 0 |" in main_page
    assert "## Appendix: JPEG images, to be replaced" in main_page
    assert "| fedsol/table2 | FedSOL is best on CIFAR-10 at α = 0.1 |  | not run yet |" in main_page
    assert "| cifar10 lda-0.1 fedsol | 64.13 ± 0.46 | 64.50 ± 0.71 (2 seeds) | +0.37 | within 2 sd |" in fedsol
    assert "| 56.00 (1 seed) | -0.13 | JPEG images, to be replaced: within 2 sd |" in fedsol
    assert "Trained on CIFAR-10 on h, tf32" in fedsol
    assert "starts from ImageNet weights" in pages["page-fedgloss.md"]
    assert reproduce("--show", "--out", str(out)) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in out.parent.iterdir()} == pages


def test_missing_data_and_unavailable_cells(
    reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "empty"))
    assert reproduce("fedsol/table2", "--cells", "cifar10 lda-0.1 fedavg") == 0
    assert "cifar10 is not prepared" in capsys.readouterr().out
    assert reproduce("fedgloss/table4", "--cells", "fedsam") == 0
    assert "unavailable: starts from ImageNet weights" in " ".join(capsys.readouterr().out.split())
    assert not reproduce.records()


def test_training_needs_no_packages_of_reports(reproduce: Reproduce) -> None:
    """The path that trains must run where the packages of reports and downloads are not installed."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['plotly', 'jinja2', 'pooch', 'tensorboard']))"
    words = ["reproduce", "fedgloss/table3", "--cells", "cnn cifar10 alpha-0 fedavg", *SMALL, "--seeds", "0"]
    words += ["--results", str(reproduce.results), "--runs", str(reproduce.runs)]
    code = f"{blocked}; from fedflat.cli import main; sys.exit(main({words!r}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).returncode == 0
    (record,) = reproduce.records().values()
    assert record["seeds"]["0"]["numbers"]["lambda1"] > 0


def test_one_process_only(
    reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert reproduce("fedgf/table3") == 2
    assert "one process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["fedsol/table22"], ["fedsol/table22", "did you mean fedsol/table2?"]),
        (["fedsol/table1", "fedsol/table0"], ["reproduce fedsol/table0: unknown table"]),
        (["fedgf/table1", "fedgf/table5", "--cells", "c-2"], ["no cell of fedgf/table1, fedgf/table5 matches"]),
        (["fedsol/table2", "--cells", "cifar11 *"], ["--cells cifar11 *", "mnist shards-2 fedavg"]),
        (["fedsol/table2", "--budget", "soon"], ["--budget soon", "20m"]),
        (["fedsol/table2", "--budget", "0m"], ["--budget 0m"]),
        (["fedsol/table2", "--variant", "relesed"], ["--variant relesed", "did you mean released?"]),
        (["fedgf/table3", "--variant", "released"], ["--variant released", "there are none"]),
        (["fedgf/table1", "--variant", "released"], ["variants are threshold-0.2, threshold-0.3"]),
        (["fedsol/table2", "--rounds", "0"], ["--rounds 0"]),
        (["fedsol/table2", "--latex", "--csv"], ["--latex --csv", "choose one"]),
        (["--cells", "cifar10 *"], ["--cells", "TABLE"]),
        (["--show"], ["--results", "no such folder"]),
        (["fedsol/table2", "--seeds", "1", "1"], ["--seeds 1 1", "once"]),
        (
            ["fedsol/table2", "--dataset", "digit", "--cells", "cifar10 lda-0.1 fedavg"],
            ["digit", "did you mean digits?"],
        ),
    ],
)
def test_mistakes_are_one_line(
    reproduce: Reproduce, capsys: pytest.CaptureFixture[str], words: list[str], parts: list[str]
) -> None:
    assert reproduce(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--results a.txt", "--results a.txt: is a file, must be a folder"),
        ("fedsol/table2 --results a.txt", "--results a.txt: is a file, must be a folder"),
        ("fedsol/table2 --show --results a.txt", "--results a.txt: is a file, must be a folder"),
        ("fedsol/table2 --results a.txt/below", "--results a.txt/below: cannot be written"),
        ("fedsol/table2 --results /proc/new", "--results /proc/new: cannot be written"),
        ("--show --results . --out .", "--out .: is a folder"),
        ("--show --results . --out a.txt", "--out a.txt: must be a file that ends in .md"),
        ("--show --results . --out a.txt/page.md", "--out a.txt/page.md: cannot be written"),
    ],
)
def test_paths_are_checked_before_training(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("mine")
    assert main(["reproduce", *words.split(), *SMALL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "mine")]


def test_tables_share_results_with_equal_settings(reproduce: Reproduce, capsys: pytest.CaptureFixture[str]) -> None:
    """FedAvg is the first row of both; only FedSOL's Table 5 has a FedSOL among these cells."""
    tables = ["fedsol/table1", "fedsol/table5", "--cells", "none", "fedavg", "rho-2.0 head"]
    assert reproduce(*tables, *SMALL, "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert out.count("1 run of 3 rounds") == len(reproduce.records()) == 2
    for text in ("fedsol/table1: Gradient projection", "fedsol/table5: Partial", "rho-2.0 head"):
        assert text in out


def test_data_sets_that_are_not_prepared_are_named(
    reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path))
    assert reproduce("fedsol/table2", "--cells", "cifar10 lda-0.1 fedavg") == 0
    assert "cifar10 is not prepared" in capsys.readouterr().err
    assert reproduce("fedsol/table2", "--cells", "cifar10 lda-0.1 fedavg", "--show") == 0
    assert capsys.readouterr().err == ""
