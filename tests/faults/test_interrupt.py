"""Ctrl-C at any moment: one line that fits the command, and no half-trained round on disk."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedflat as ff
from fedflat.cli import main
from fedflat.runs import train_together, training

SMALL = {"rounds": 4, "clients": 4, "cohort": 2, "partition": "iid", "model": "mlp", "local_epochs": 1}
EXPERIMENT = ff.Experiment(method=ff.SCAFFOLD(), engine="sequential", checkpoint_every=100, **SMALL)
WORDS = shlex.split(
    "--rounds 3 --clients 4 --cohort 2 --partition iid --model mlp --local-epochs 1 --engine sequential"
)


@pytest.fixture(autouse=True)
def _the_handler_stays() -> Iterator[None]:
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "a run leaves the handler as it was"
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def press(times: int, monkeypatch: pytest.MonkeyPatch, number: signal.Signals = signal.SIGINT) -> None:
    """Press Ctrl-C in the middle of the second round: clients have trained, the server is not updated yet."""
    update, calls = training.update_servers, []

    def interrupted(*args: object) -> None:
        calls.append(args)
        for _ in range(times if len(calls) == 2 else 0):
            signal.raise_signal(number)
        update(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "update_servers", interrupted)


def state(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint" / "state.safetensors")


def test_the_round_under_way_is_finished_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        ff.run(EXPERIMENT, tmp_path / "run")
    monkeypatch.undo()
    assert state(tmp_path / "run")["counters"][0] == 2
    assert ff.run(EXPERIMENT, tmp_path / "run", resume=True).rounds == 4
    ff.run(EXPERIMENT, tmp_path / "whole")
    states = [state(tmp_path / name) for name in ("run", "whole")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1].keys() - {"counters"})


def test_a_second_one_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        ff.run(EXPERIMENT, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint" / "state.safetensors").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_experiments_side_by_side_are_saved(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `reproduce` saves the round under way like `sweep` and `tune`."""
    experiments = [replace(EXPERIMENT, partition_seed=seed) for seed in (0, 1)]
    folders = [tmp_path / name for name in ("one", "other")]
    with monkeypatch.context() as patch:
        press(1, patch, number)  # at the second experiment's update
        with pytest.raises(KeyboardInterrupt):
            train_together.run_together(experiments, folders)
    assert [state(folder)["counters"][0] for folder in folders] == [1, 1]
    resumed = train_together.run_together(experiments, folders, resume=True)
    assert [result.rounds for result in resumed] == [4, 4]


def test_a_run_that_ignores_hang_ups_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nohup fedflat run … &` goes on when the terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(training, "update_servers", update_after_hang_up(training.update_servers))
        assert ff.run(EXPERIMENT, tmp_path / "run").rounds == 4
    finally:
        signal.signal(signal.SIGHUP, before)


def update_after_hang_up(update: Callable[..., None]) -> Callable[..., None]:
    """Return the function, with a hang-up before every call."""
    return lambda *args: (signal.raise_signal(signal.SIGHUP), update(*args))[1]


def test_without_a_folder_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    press(1, monkeypatch)
    rounds: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        ff.run(EXPERIMENT, watch=lambda round, rows: rounds.append(round))
    assert rounds == [1]


def test_after_the_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the result is written: the result is complete, and the interrupt is raised."""
    monkeypatch.setattr(training, "software_versions", lambda size: signal.raise_signal(signal.SIGINT) or {})
    with pytest.raises(KeyboardInterrupt):
        ff.run(EXPERIMENT, tmp_path / "run")
    assert (tmp_path / "run" / "result.json").exists()


def test_while_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    paths = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    words = [sys.executable, "-m", "fedflat", "run", "fedavg"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | paths, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fedflat: interrupted\n")


@pytest.mark.parametrize(
    ("words", "function", "hint"),
    [
        ("analyse run", "fedflat.cli.analyse.parse_options", "analysis/ of each run"),
        ("personalise run", "fedflat.cli.personalise.print_personalised", "nothing was written"),
        ("reproduce fedsol/table2", "fedflat.cli.reproduce.reproduce_tables", "the same command continues"),
        ("run fedavg --out run", "fedflat.cli.train.run", "nothing was written"),
    ],
)
def test_the_message_fits_the_command(
    words: str, function: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function, interrupted)
    assert main(words.split()) == 130
    err = capsys.readouterr().err
    assert err.startswith("fedflat: interrupted; ")
    assert hint in err
    assert "--resume" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_outside_of_training(number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("fedflat.cli.personalise.print_personalised", lambda *_: signal.raise_signal(number))
    assert main(["personalise", str(tmp_path)]) == 143
    assert capsys.readouterr().err == "fedflat: interrupted; nothing was written\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_saves_the_round_under_way(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press(1, monkeypatch, number)
    assert main(["run", "fedavg", *WORDS, "--out", str(tmp_path / "run")]) == 143
    assert state(tmp_path / "run")["counters"][0] == 2


def test_the_command_that_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """It is printed for runs without --out and for comparisons too."""
    monkeypatch.chdir(tmp_path)
    for words in (["run", "fedsol", "--rho", "0.5"], ["compare", "fedavg", "fedsol:rho=0.5"]):
        with monkeypatch.context() as patch:
            press(1, patch)
            assert main([*words, *WORDS]) == 130
        command = capsys.readouterr().err.rpartition("continue with: fedflat ")[2]
        (out,) = tmp_path.glob(f"runs/{words[0].replace('run', 'fedsol')}-*")
        assert f"--out {out.relative_to(tmp_path)} --resume" in command
        assert main(shlex.split(command)) == 0
        assert list(out.rglob("fedsol*/result.json")) or (out / "result.json").exists()


def test_the_command_that_continues_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """It trains as many points side by side as before, in no more memory."""
    out = tmp_path / "sweep"
    words = ["sweep", "fedavg", "lr=0.1,0.2", "--validation", "0.1", "--at-once", "1", "--out", str(out)]
    with monkeypatch.context() as patch:
        press(1, patch)
        assert main([*words, *WORDS]) == 130
    command = capsys.readouterr().err.rpartition("continue with: fedflat ")[2]
    assert "--at-once 1" in command
    assert main(shlex.split(command)) == 0
    assert (out / "sweep.json").exists()


def test_while_the_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("fedflat.report.tables.print_results", lambda *_: signal.raise_signal(signal.SIGINT))
    assert main(["run", "fedavg", *WORDS, "--out", str(tmp_path / "run")]) == 130
    assert f"training is complete; for the report: fedflat report {tmp_path / 'run'}" in capsys.readouterr().err


def test_the_command_that_continues_keeps_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    words = ["compare", "fedavg", *WORDS, "--out", str(tmp_path / "both"), "--target", "0.35"]
    with monkeypatch.context() as patch:
        press(1, patch)
        assert main(words) == 130
    again = shlex.split(capsys.readouterr().err.rpartition("continue with: fedflat ")[2])
    with monkeypatch.context() as patch:
        patch.setattr("fedflat.report.tables.print_results", lambda *_: signal.raise_signal(signal.SIGINT))
        assert main(again) == 130
    assert f"fedflat report {tmp_path / 'both' / 'fedavg'} --target 0.35\n" in capsys.readouterr().err
    assert main(again) == 0
    assert "rounds to 35%" in capsys.readouterr().out
