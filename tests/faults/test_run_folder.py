"""A folder that is complete, of another run, in use or damaged is refused in one line and not changed."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest
import torch
from interrupted_run import RUN, SMALL, refused
from safetensors.torch import load_file

from fedflat.cli import flag_spelling, main
from fedflat.errors import UserError
from fedflat.runs.config import config_differences
from fedflat.runs.folder import RunFolder


def test_interrupted_run_continues(interrupted: Path, tmp_path: Path) -> None:
    assert not (interrupted / "result.json").exists()
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0
    assert main([*RUN, "--out", str(tmp_path / "whole")]) == 0
    states = [load_file(folder / "checkpoint" / "state.safetensors") for folder in (interrupted, tmp_path / "whole")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0].keys() - {"counters"})


def test_unfinished_run_needs_resume(interrupted: Path, capsys) -> None:
    refused(RUN, interrupted, "add --resume", capsys)


def test_other_configuration(interrupted: Path, capsys) -> None:
    refused([*RUN, "--resume", "--lr", "0.1"], interrupted, "another configuration", capsys)


def test_what_differs_and_how_to_continue(interrupted: Path, capsys) -> None:
    """Options that are not given are the folder's; what cannot change is named with both values."""
    capsys.readouterr()
    assert main(["run", "fedgloss", "--rho", "0.7", "--lr", "0.2", "--out", str(interrupted), "--resume"]) == 2
    err = capsys.readouterr().err
    for text in ("--rho: ", " in the folder, 0.7 given", "--lr: 0.05 in the folder, 0.2 given"):
        assert text in err
    assert "--rounds" not in err, "is the folder's"
    assert main(shlex.split(err.partition("or continue that one: fedflat ")[2])) == 0


def test_differences_by_name() -> None:
    stored = "method: {name: fedavgm, beta: 0.9, inner: {name: fedsol, rho: 2.0}}\nseeds: [0, 1]\nlr: 0.1"
    given = "method: {name: fedavgm, beta: 0.9, inner: {name: fedsol, rho: 1.0}}\nseeds: [0]\nlr: 0.1\nprobes: [drift]"
    differences = [UserError(None, "", text).message(flag_spelling) for text in config_differences(stored, given)]
    assert [text.removeprefix(": ") for text in differences] == [
        "inner --rho: 2.0 in the folder, 1.0 given",
        "--seeds: 0 1 in the folder, 0 given",
        "--probes: none in the folder, drift given",
    ]
    assert config_differences("method: fedavg", "method: fedprox")[0].endswith(": fedavg in the folder, fedprox given")
    first = config_differences("method: {name: fedavg}", "method: {name: fedprox, mu: 0.1}")[0]
    assert first == "method: fedavg in the folder, fedprox given", "before its hyper-parameters"
    for damaged in ("lr: [", "- lr", ""):
        assert config_differences(damaged, given) == ["its config.yaml cannot be read"]


def test_comparison_of_other_options(tmp_path: Path, capsys) -> None:
    words = ["compare", "fedavg", "--out", str(tmp_path / "some folder")]
    assert main([*words, *SMALL]) == 0
    assert main([*words, "--resume"]) == 0
    capsys.readouterr()
    assert main([*words, "--resume", "--clients", "5"]) == 2
    err = capsys.readouterr().err
    assert "--clients: 4 in the folder, 5 given" in err
    assert main(shlex.split(err.partition("or continue that one: fedflat ")[2])) == 0


def test_a_folder_without_training_may_be_used_by_another_run(tmp_path: Path) -> None:
    RunFolder(tmp_path, "lr: 0.1\n", resume=False).close()
    RunFolder(tmp_path, "lr: 0.2\n", resume=False).close()
    assert (tmp_path / "config.yaml").read_text() == "lr: 0.2\n"
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "seed": 0, "accuracy": 0.5, "loss": null}\n')
    with pytest.raises(UserError, match="another configuration"):
        RunFolder(tmp_path, "lr: 0.3\n", resume=False)


def test_complete_run(interrupted: Path, capsys) -> None:
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0
    refused(RUN, interrupted, "holds a complete run; choose another folder, or add --resume", capsys)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "garbage", "empty"])
def test_damaged_checkpoint(interrupted: Path, damage: str, capsys) -> None:
    checkpoint = interrupted / "checkpoint" / "state.safetensors"
    data = checkpoint.read_bytes()
    flipped = data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]
    bad = {"truncated": data[: len(data) // 2], "flipped": flipped, "garbage": b"\x00garbage" * 99, "empty": b""}
    checkpoint.write_bytes(bad[damage])
    refused([*RUN, "--resume"], interrupted, "damaged", capsys)


def test_any_flipped_byte_is_noticed(interrupted: Path) -> None:
    """Also in the header: either refused, or the tensors are the same."""
    config = (interrupted / "config.yaml").read_text()
    folder = RunFolder(interrupted, config, resume=True)
    whole, data, generator = folder.load(), folder.checkpoint.read_bytes(), random.Random(0)
    assert whole
    for at in [*range(0, 200, 3), *(generator.randrange(len(data)) for _ in range(50))]:
        folder.checkpoint.write_bytes(data[:at] + bytes([data[at] ^ (1 << generator.randrange(8))]) + data[at + 1 :])
        try:
            named = folder.load()
        except UserError:
            continue
        assert named
        assert named.keys() == whole.keys()
        assert all(torch.equal(named[name], whole[name]) for name in whole), at
    folder.close()


def test_folder_in_use(interrupted: Path, capsys) -> None:
    other = RunFolder(interrupted, (interrupted / "config.yaml").read_text(), resume=True)
    refused([*RUN, "--resume"], interrupted, "another process", capsys)
    other.close()


def test_incomplete_last_line_of_metrics(interrupted: Path, tmp_path: Path) -> None:
    """A crash in the middle of a line costs nothing: rounds after the checkpoint are trained again."""
    with (interrupted / "metrics.jsonl").open("a") as file:
        file.write('{"round": 6, "seed": 0, "accu')
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0
    assert main([*RUN, "--out", str(tmp_path / "whole")]) == 0
    texts = [(folder / "metrics.jsonl").read_text() for folder in (interrupted, tmp_path / "whole")]
    assert [line.partition(', "seconds"')[0] for line in texts[0].splitlines()] == [
        line.partition(', "seconds"')[0] for line in texts[1].splitlines()
    ]


def test_full_disk(interrupted: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RunFolder, rows: object) -> None:
        raise OSError(28, "No space left on device", str(self.metrics))

    monkeypatch.setattr(RunFolder, "log", full)
    capsys.readouterr()
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.undo()
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0
