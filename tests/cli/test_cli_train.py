"""fedflat run and compare: what they print, which files they write, and that both can be repeated."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedflat.cli import main
from fedflat.progress import TrainingBar

SMALL = shlex.split(
    "--rounds 4 --clients 4 --cohort 2 --partition iid --model mlp --local-epochs 1 --engine sequential"
)
FIELDS = shlex.split(
    "method seeds final_accuracy_per_seed final_accuracy last10_accuracy_per_seed last10_accuracy rounds seconds "
    "client_steps_per_second bytes_down_per_client_round bytes_up_per_client_round diverged"
)


def metrics(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(line).items() if name != "seconds"} for line in lines]


def test_files_of_a_run(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    assert main(["run", "fedsol", "--rho", "0.5", *SMALL, "--seeds", "3", "4", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "result.json",
        "checkpoint",
        "report.html",
    }
    result = json.loads((out / "result.json").read_text())
    assert set(FIELDS) <= result.keys()
    assert (result["method"], result["seeds"], result["rounds"], result["diverged"]) == ("fedsol", [3, 4], 4, False)
    assert result["final_accuracy"] == pytest.approx(sum(result["final_accuracy_per_seed"]) / 2)
    assert result["bytes_up_per_client_round"] == 4 * result["parameters"]
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["method"] == {**config["method"], "name": "fedsol", "rho": 0.5}
    printed = capsys.readouterr()
    assert str(out / "report.html") in printed.out
    assert not printed.err, "quiet when not on a terminal"


def test_personalise(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["run", "fedavg", *SMALL, "--out", str(out)]) == 0
    assert main(["personalise", str(out), "--epochs", "0", "1", "--no-alone"]) == 0
    schemes = {row["scheme"] for row in json.loads((out / "personalise.json").read_text())}
    assert schemes == {"FedAvg-FT", "FedAvg + kNN-Per"}


def test_config_is_rerunnable_and_flags_override_it(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert main(["run", "fedgf", "--rho", "0.3", *SMALL, "--seeds", "1", "--out", str(first)]) == 0
    again = ["run", "--config", str(first / "config.yaml"), "--out"]
    assert main([*again, str(second)]) == 0
    assert metrics(second) == metrics(first)
    assert (second / "config.yaml").read_bytes() == (first / "config.yaml").read_bytes()
    assert main([*again, str(third), "--rho", "0.4", "--rounds", "2"]) == 0
    changed = yaml.safe_load((third / "config.yaml").read_text())
    assert (changed["method"]["rho"], changed["rounds"], changed["seeds"]) == (0.4, 2, [1])


def test_what_is_switched_off_stays_so_when_the_same_command_continues(tmp_path: Path, capsys) -> None:
    command = ["run", "fedsmoo", "--no-regularise", *SMALL, "--out", str(tmp_path)]
    assert main(command) == 0
    assert main([*command, "--resume", "--rounds", "5"]) == 0
    assert len(metrics(tmp_path)) == 5
    assert main([*command, "--resume", "--rounds", "5", "--regularise"]) == 2
    assert "--regularise: False in the folder, True given" in capsys.readouterr().err


def test_the_command_of_a_sweep_switches_options_on_and_off(tmp_path: Path, capsys) -> None:
    grid = ["fedsmoo", "regularise=true,false", *SMALL, "--validation", "0.1", "--rounds", "1"]
    assert main(["sweep", *grid, "--out", str(tmp_path / "sweep")]) == 0
    printed = capsys.readouterr().out
    (command,) = re.findall(r"^train it on all samples: fedflat (.*)", printed, re.M)
    assert re.search(r"^best: --(no-)?regularise$", printed, re.M)
    assert main([*shlex.split(command), "--out", str(tmp_path / "best")]) == 0


def test_a_search_and_a_method_may_both_have_an_option_keep(tmp_path: Path) -> None:
    search = ["tune", "compress:compressor=topk,keep=0.3+fedavg", "--space", "lr=0.1,0.2", "--keep", "0.5"]
    assert main([*search, *SMALL, "--trials", "2", "--validation", "0.1", "--out", str(tmp_path)]) == 0
    configs = [yaml.safe_load(path.read_text()) for path in tmp_path.glob("*/config.yaml")]
    assert {config["method"]["keep"] for config in configs} == {0.3}


@pytest.mark.parametrize("words", ["sweep fedavg lr=1e29,1e30", "tune fedavg --space lr=1e29..1e30 --trials 2"])
def test_no_point_is_the_best_where_all_diverge(words: str, tmp_path: Path, capsys) -> None:
    assert main([*words.split(), *SMALL, "--validation", "0.1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert re.search("no best .*: every one of .* diverged, for at least one seed", printed)
    assert "best: " not in printed
    assert "train it" not in printed
    stored = tmp_path / "tune.json"
    assert not stored.exists() or json.loads(stored.read_text())["best"] is None


def test_seeds_may_be_separated_by_commas(tmp_path: Path) -> None:
    assert main(["run", "fedavg", *SMALL, "--rounds", "1", "--seeds", "0,1", "2", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "result.json").read_text())["seeds"] == [0, 1, 2]


def test_numbers_in_yaml_as_people_write_them(tmp_path: Path) -> None:
    file, out = tmp_path / "own.yaml", tmp_path / "run"
    file.write_text("lr: 1e-2\nalpha: 1\nmethod: {name: fedsam, rho: 5e-2}\n")
    assert main(["run", "fedsam", "--config", str(file), *SMALL, "--out", str(out)]) == 0
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["lr"], config["method"]["rho"]) == (0.01, 0.05)


def test_default_folder_is_named_after_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "fedavg", *SMALL]) == 0
    (out,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"fedavg-\d{8}-\d{6}", out.name)


def test_default_folder_of_another_process_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Two commands that begin in the same second; a third is refused and leaves nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20300101-000000")
    (tmp_path / "runs" / "fedavg-20300101-000000").mkdir(parents=True)
    assert main(["run", "fedavg", *SMALL]) == 0
    assert main(["run", "fedavg", *SMALL, "--cohort", "5"]) == 2
    folders = {path.name: len(list(path.iterdir())) for path in (tmp_path / "runs").iterdir()}
    assert folders == {"fedavg-20300101-000000": 0, "fedavg-20300101-000000-2": 5}


def test_compare_tries_every_method_before_it_trains_one(tmp_path: Path, capsys) -> None:
    out = tmp_path / "both"
    assert main(["compare", "fedavg", "fedsol-ablation:proximal=moon", *SMALL, "--out", str(out)]) == 2
    assert "method fedsol-ablation:proximal=moon: --perturb head: " in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_terminal_lacks(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fedsol's help has ρ and Λ."""
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding=encoding, write_through=True))
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(err, encoding=encoding, write_through=True))
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedsol", "--help"])
    assert not stop.value.code
    assert main(["run", "fedρ"]) == 2
    assert b"Strength ? of the perturbation" in out.getvalue()
    assert b"method fed?: unknown" in err.getvalue()


def test_compare_continues_after_divergence(tmp_path: Path, capsys) -> None:
    out = tmp_path / "both"
    specs = ["fedsol:rho=1", "fedsol:rho=1e30,lam=fixed", "fedavg"]
    assert main(["compare", *specs, *SMALL, "--out", str(out), "--target", "0.5"]) == 0
    results = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/result.json")}
    diverged = {name: result["diverged"] for name, result in results.items()}
    assert diverged == {"fedsol-rho=1": False, "fedsol-rho=1e30-lam=fixed": True, "fedavg": False}
    table = capsys.readouterr().out
    for words in (
        "FedSOL, ρ = 1, ",
        "FedSOL, ρ = 1e+30, ",
        "λ = fixed",
        "FedAvg",
        "rounds to 50%",
        "diverged: seed 0",
        str(out / "report.html"),
    ):
        assert words in table
    page = (out / "report.html").read_text()
    assert all(name in page for name in results)
    assert "% ±" not in table + page, "one seed has no spread"


def test_resumed_comparison_keeps_finished_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out, words = tmp_path / "both", ["compare", "fedavg", "fedgloss", *SMALL, "--checkpoint-every", "1"]

    def update(bar: TrainingBar, round: int, rows: object) -> None:
        if round == 2 and bar.label == "fedgloss (2 of 2)":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingBar, "update", update)
        assert main([*words, "--out", str(out)]) == 130
    kept = {path.name: path.read_bytes() for path in (out / "fedavg").iterdir() if path.is_file()}
    assert main([*words, "--out", str(out)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*words, "--out", str(out), "--resume", "--lr", "0.9"]) == 2
    assert "another configuration" in capsys.readouterr().err
    assert main([*words, "--out", str(out), "--resume"]) == 0
    assert {path.name: path.read_bytes() for path in (out / "fedavg").iterdir() if path.is_file()} == kept
    assert main(["run", "fedgloss", *SMALL, "--checkpoint-every", "1", "--out", str(tmp_path / "whole")]) == 0
    assert metrics(out / "fedgloss") == metrics(tmp_path / "whole")
    (out / "fedavg" / "config.yaml").write_bytes(b"\xff\xfe\x00")
    assert main([*words, "--out", str(out), "--resume"]) == 2
    assert "config.yaml cannot be read" in capsys.readouterr().err


def test_lines_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("fedflat.progress.SECONDS_BETWEEN_LINES", 0.0)
    out = tmp_path / "both"
    assert main(["compare", "fedavg", "fedsol", *SMALL, "--eval-every", "2", "--out", str(out)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        f"{name}: round {round} of 4" for name in ("fedavg (1 of 2)", "fedsol (2 of 2)") for round in (1, 2, 3, 4)
    ]
    last = metrics(out / "fedsol")[-1]["accuracy"]
    assert lines[-1] == f"fedsol (2 of 2): round 4 of 4, accuracy {last:.1%}"
    assert main(["personalise", str(out / "fedavg"), "--epochs", "0", "--no-alone"]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("personalising: 8 of 8, client 3 of seed 0")
    assert main(["analyse", str(out / "fedavg"), "--what", "lpf", "path", "--draws", "4", "--grid", "2"]) == 0
    assert capsys.readouterr().err.splitlines() == ["fedavg: measuring lpf", "fedavg: measuring path"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [("--what local --clients 99", "--clients 99: "), ("--what barrier", "there is only one")],
)
def test_an_analysis_that_measures_nothing(words: str, problem: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    assert main(["run", "fedavg", *SMALL, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["analyse", str(out), *words.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("fedflat: analyse: nothing was measured; ")
    assert printed.err.count("\n") == 1
    assert problem in printed.err
    assert not printed.out
    assert not (out / "analysis").exists()


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ("120", r"fedavg .*4/4 accuracy [\d.]+% +loss [\d.]+ +[\d.]+ rounds/s"),
        ("80", r"fedavg .*4/4 accuracy [\d.]+% 0:"),
    ],
)
def test_progress_bar_on_a_terminal(columns: str, shown: str, tmp_path: Path) -> None:
    reading, terminal = pty.openpty()
    words = [sys.executable, "-m", "fedflat", "run", "fedavg", *SMALL, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=terminal, env=os.environ | {"TERM": "xterm", "COLUMNS": columns}
    )
    os.close(terminal)
    received = b""
    while True:
        try:
            chunk = os.read(reading, 4096)
        except OSError:  # the other end is closed
            break
        received += chunk
    assert process.wait() == 0
    os.close(reading)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", received.decode())
    assert re.search(shown, text)
