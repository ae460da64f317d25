"""fedflat reproduce, on digits and for a few rounds: run, interrupt, resume, skip, show."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import main
from fedflat.reproduce.train import TimeBudget

SMALL = ["--dataset", "digits", "--rounds", "3", "--engine", "sequential"]
CELLS = ["cifar10 lda-0.1 fedavg", "cifar10 shards-2 fedavg"]


class Place:
    """Folders of one test, and the command in them."""

    def __init__(self, path: Path) -> None:
        self.results, self.runs = path / "results", path / "runs"

    def __call__(self, *words: str) -> int:
        return main(["reproduce", *words, "--results", str(self.results), "--runs", str(self.runs)])

    def records(self) -> dict[str, dict[str, Any]]:
        return {path.stem: json.loads(path.read_text()) for path in sorted(self.results.glob("*/*/*.json"))}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_train_skip_and_add_a_seed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table2", "--cells", *CELLS, *SMALL, "--data-note", "digits (scikit-learn)"]
    assert place(*words, "--seeds", "4") == 0
    out = capsys.readouterr().out
    assert "2 partitions, 2 runs of 3 rounds" in out
    assert "on digits, 3 of 300 rounds" in out
    first = place.records()
    assert set(first) == {"cifar10_lda-0.1_fedavg_@digits_@rounds-3", "cifar10_shards-2_fedavg_@digits_@rounds-3"}
    record = first["cifar10_lda-0.1_fedavg_@digits_@rounds-3"]
    assert (record["rounds"], record["config"]["alpha"], record["config"]["dataset"]) == (3, 0.1, "digits")
    seed, run = record["seeds"]["4"], record["runs"][0]
    assert seed["curve"][-1] == [3, pytest.approx(seed["numbers"]["final"], abs=0.01)]
    assert {"lambda1", "drift.global_local"} <= seed["numbers"].keys()
    assert (run["data"], run["precision"], run["seeds"]) == ("digits (scikit-learn)", "fp32", [4])
    assert {"torch", "hardware"} <= run["versions"].keys()

    assert place(*words, "--seeds", "4") == 0
    assert "partitions" not in capsys.readouterr().out
    assert place.records() == first

    assert place(*words, "--seeds", "4", "5") == 0
    assert "2 partitions, 2 runs" in capsys.readouterr().out
    after = place.records()["cifar10_lda-0.1_fedavg_@digits_@rounds-3"]
    assert after["seeds"]["4"] == seed
    assert after["seeds"]["5"]["run"] == 1
    assert len(after["runs"]) == 2


def test_interrupt_and_resume(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fedprox", *SMALL, "--rounds", "4", "--seeds", "0"]
    untouched, rounds = Place(tmp_path / "untouched"), []
    assert untouched(*words) == 0
    watch = TimeBudget.__call__

    def interrupted(self: TimeBudget, round: int, rows: list[dict[str, Any]]) -> None:
        watch(self, round, rows)
        rounds.append(round)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(TimeBudget, "__call__", interrupted)
    assert place(*words) == 130
    assert not place.records()
    assert place(*words) == 0
    assert rounds == [1, 2, 3, 4]
    (there,), (here,) = untouched.records().values(), place.records().values()
    assert here["seeds"]["0"]["numbers"] == there["seeds"]["0"]["numbers"]


def test_results_lost_after_training_are_read_again(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fedprox", *SMALL, "--seeds", "0"]
    assert place(*words) == 0
    before = place.records()
    for path in place.results.glob("*/*/*.json"):
        path.unlink()
    assert place(*words) == 0
    assert {name: r["seeds"] for name, r in place.records().items()} == {name: r["seeds"] for name, r in before.items()}


def test_budget_stops_before_it_is_spent(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fedprox", *SMALL, "--seeds", "0"]
    assert place(*words, "--budget", "1s") == 0
    assert "stopped in round 1" in capsys.readouterr().out
    assert not place.records()
    assert place(*words, "--budget", "1h") == 0
    assert place.records()


def test_what_is_too_long_waits_for_what_is_not(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fed*o*", *SMALL, "--seeds", "0", "--budget", "1h"]
    needed = {"fedprox": 7200.0, "fednova": 7200.0, "fedsol": 1.0}
    monkeypatch.setattr("fedflat.cli.reproduce.estimate_seconds", lambda group, *_: needed[group[0].cells[0].row])
    assert place(*words) == 0
    out = capsys.readouterr().out
    trained = [line.split(":")[0] for line in out.splitlines() if "1 run of 3 rounds" in line]
    assert [name.split()[-1] for name in trained] == ["fedprox", "fednova", "fedsol", "fedprox", "fednova"]
    assert out.count("put off, 60 min left") == 2
    assert len(place.records()) == 3


def test_what_is_too_long_does_not_wait_for_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fedsol/table2", "--cells", "cifar10 lda-0.3 fedprox", *SMALL, "--seeds", "0", "--budget", "1h"]
    monkeypatch.setattr("fedflat.cli.reproduce.estimate_seconds", lambda *_: 7200.0)
    assert place(*words) == 0
    assert "put off" not in capsys.readouterr().out
    assert place.records()


def test_measures_of_final_models(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedsol/table9", "--cells", "cifar10 fedbabu *", *SMALL, "--seeds", "0", "--csv"]
    assert place(*words) == 0
    (record,) = place.records().values()
    assert {"tuned-1", "tuned-5"} <= record["seeds"]["0"]["numbers"].keys()
    assert place("fedgf/table3", "--csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out.partition("cell,paper")[2])))
    assert ["models fedgf", "3", "3", "+0.00", "within 2 sd"] in rows


def test_forms(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place("fedgf/table3", "--markdown", "--cells", "fedavg") == 0
    assert capsys.readouterr().out.splitlines() == [
        "| cell | paper | ours | difference | verdict |",
        "| --- | --- | --- | --- | --- |",
        "| models fedavg | 2 | 2 | +0.00 | within 2 sd |",
    ]
    assert place("fedsol/table1", "--latex", "--show") == 0
    out = capsys.readouterr().out
    assert out.startswith(r"\begin{tabular}{lllll}")
    assert r"cifar10 lda-0.1 none & 56.13 $\pm$ 0.78 & -- &  & " in out
    assert place("--csv") == 0
    assert "fedsol/table2,Test accuracy of baselines and FedSOL,144,0," in capsys.readouterr().out


def test_page_is_rebuilt_from_results(place: Place, tmp_path: Path) -> None:
    from made_up import store

    store(place.results, "fedsol/table2 cifar10 lda-0.1 fedsol", 64.0, 65.0)
    out = tmp_path / "docs" / "page.md"
    assert place("--show", "--out", str(out)) == 0
    text = out.read_text(encoding="utf-8")
    assert "| cifar10 lda-0.1 fedsol | 64.13 ± 0.46 | 64.50 ± 0.71 (2 seeds) | +0.37 | within 2 sd |" in text
    assert "| fedsol/table2 | FedSOL is best on CIFAR-10 at α = 0.1 | not run yet |" in text
    assert "starts from ImageNet weights" in text
    assert "Trained on CIFAR-10 (JPEG) on h, tf32." in text
    before = text
    assert place("--show", "--out", str(out)) == 0
    assert out.read_text(encoding="utf-8") == before


def test_data_that_are_not_here(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "empty"))
    assert place("fedsol/table2", "--cells", "cifar10 lda-0.1 fedavg") == 0
    assert "cifar10 is not prepared" in capsys.readouterr().out
    assert place("fedgloss/table4", "--cells", "fedsam") == 0
    assert "unavailable: starts from ImageNet weights" in " ".join(capsys.readouterr().out.split())
    assert not place.records()


def test_needs_only_what_training_needs(place: Place) -> None:
    """The path that trains must run where the packages of reports and downloads are not installed."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['plotly', 'jinja2', 'pooch', 'tensorboard']))"
    words = ["reproduce", "fedgloss/table3", "--cells", "cnn cifar10 alpha-0 fedavg", *SMALL, "--seeds", "0"]
    words += ["--results", str(place.results), "--runs", str(place.runs)]
    code = f"{blocked}; from fedflat.cli import main; sys.exit(main({words!r}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).returncode == 0
    (record,) = place.records().values()
    assert record["seeds"]["0"]["numbers"]["lambda1"] > 0


def test_one_process_only(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert place("fedgf/table3") == 2
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
    place: Place, capsys: pytest.CaptureFixture[str], words: list[str], parts: list[str]
) -> None:
    assert place(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("words", "said"),
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
def test_paths_are_looked_at_first(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("mine")
    assert main(["reproduce", *words.split(), *SMALL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "mine")]


def test_several_tables_share_what_is_trained(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """FedAvg is the first row of both; only FedSOL's Table 5 has a FedSOL among these cells."""
    tables = ["fedsol/table1", "fedsol/table5", "--cells", "none", "fedavg", "rho-2.0 head"]
    assert place(*tables, *SMALL, "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert out.count("1 run of 3 rounds") == len(place.records()) == 2
    for text in ("fedsol/table1: Gradient projection", "fedsol/table5: Partial", "rho-2.0 head"):
        assert text in out


def test_what_cannot_be_trained_is_said(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path))
    assert place("fedsol/table2", "--cells", "cifar10 lda-0.1 fedavg") == 0
    assert "cifar10 is not prepared" in capsys.readouterr().err
    assert place("fedsol/table2", "--cells", "cifar10 lda-0.1 fedavg", "--show") == 0
    assert capsys.readouterr().err == ""
