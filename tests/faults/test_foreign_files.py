"""A run is only continued from its own files: checkpoint, configuration and metrics must belong together."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from interrupted_run import RUN, SMALL, refused

import fedflat as ff
from fedflat.cli import main
from fedflat.errors import UserError
from fedflat.runs.checkpoint import load_tensors, save_tensors
from fedflat.runs.config import same_run
from fedflat.runs.folder import RunFolder
from fedflat.runs.metrics import read_json_lines

RUN_FILES = ("config.yaml", "metrics.jsonl", "result.json", "checkpoint/state.safetensors", "checkpoint/.lock")


def edit(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize("words", [[], ["--resume"]], ids=["anew", "resumed"])
@pytest.mark.parametrize("kept", ["checkpoint", "metrics"])
def test_a_run_without_its_configuration(interrupted: Path, words: list[str], kept: str, capsys) -> None:
    (interrupted / "config.yaml").unlink()
    (interrupted / {"checkpoint": "metrics.jsonl", "metrics": "checkpoint/state.safetensors"}[kept]).unlink()
    refused(["run", "fedavg", *SMALL, *words], interrupted, "no config.yaml", capsys)


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("lr: 0.05", "lr: 0.1", "--lr: 0.05 in the checkpoint, 0.1 given"),
        ("clients: 4", "clients: 5", "--clients: 4 in the checkpoint, 5 given"),
        ("seeds:\n- 0", "seeds:\n- 1", "--seeds: 0 in the checkpoint, 1 given"),
        ("model: mlp", "model: digits-cnn", "--model: mlp in the checkpoint, digits-cnn given"),
    ],
)
def test_an_edited_configuration(interrupted: Path, old: str, new: str, difference: str, capsys) -> None:
    config = interrupted / "config.yaml"
    edit(config, old, new)
    refused(["run", "--config", str(config), "--resume"], interrupted, difference, capsys)


def test_another_engine_may_continue(interrupted: Path) -> None:
    edit(interrupted / "config.yaml", "engine: sequential", "engine: batched")
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0


def test_a_checkpoint_from_before_configurations_were_kept(interrupted: Path) -> None:
    checkpoint = interrupted / "checkpoint" / "state.safetensors"
    save_tensors(checkpoint, load_tensors(checkpoint) or {})
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0


def test_the_same_configuration_written_differently(interrupted: Path) -> None:
    config = interrupted / "config.yaml"
    edit(config, "seeds:\n- 0\n", "\nseeds: [0]  # just one\n")
    edit(config, "lr: 0.05", "lr: 0.050")
    text = config.read_text()
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0
    assert config.read_text() == text


def test_what_makes_two_configurations_the_same() -> None:
    assert same_run("lr: 0.1\nengine: batched", "engine: auto\nlr: 1e-1 # fast")
    assert not same_run("lr: 0.1\nmethod: {name: fedsol, rho: 1.0}", "lr: 0.1\nmethod: {name: fedsol, rho: 2.0}")
    assert not same_run("[", "[")
    assert not same_run("lr: 0.1", "lr: 0.1\nrounds: 5")


def test_yaml_aliases_that_stand_for_billions_of_values(interrupted: Path, capsys) -> None:
    """Comparing the values would never end."""
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    (interrupted / "config.yaml").write_text(bomb)
    refused([*RUN, "--resume"], interrupted, "config.yaml cannot be read", capsys)


def second_line_incomplete(lines: list[bytes]) -> bytes:
    return b"".join([*lines[:1], lines[1][:20] + b"\n", *lines[2:]])


DAMAGE = {
    "second line incomplete": (second_line_incomplete, "line 2 is damaged"),
    "empty": (lambda lines: b"", "lacks rounds up to the checkpoint's 4, the first is round 1"),
    "last lines missing": (
        lambda lines: b"".join(lines[:2]),
        "lacks rounds up to the checkpoint's 4, the first is round 3",
    ),
    "last line incomplete": (lambda lines: b"".join(lines[:3]) + lines[3][:9], "the first is round 4"),
    "binary": (lambda lines: b"\xff\xfe\x00\n" * 9, "line 1 is damaged"),
    "numbers": (lambda lines: b"1\n2\n", "line 1 is damaged"),
    "another metric in one row": (
        lambda lines: b"".join([lines[0].replace(b"accuracy", b"accurac}"), *lines[1:]]),
        "line 2 has another metric than line 1",
    ),
    "another metric": (lambda lines: b"".join(lines).replace(b"accuracy", b"accurac}"), "has rows without accuracy"),
    "another program's": (lambda lines: b'{"step": 1, "loss": 0.5}\n', "line 1 was not written by a run"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_metrics(interrupted: Path, kind: str, capsys) -> None:
    damage, problem = DAMAGE[kind]
    metrics = interrupted / "metrics.jsonl"
    metrics.write_bytes(damage(metrics.read_bytes().splitlines(keepends=True)))
    refused([*RUN, "--resume"], interrupted, problem, capsys)


def test_metrics_missing_after_the_last_round(interrupted: Path, capsys) -> None:
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0
    for name in ("result.json", "report.html", "metrics.jsonl"):
        (interrupted / name).unlink()
    refused([*RUN, "--resume"], interrupted, "lacks rounds up to the checkpoint's 6, the first is round 1", capsys)


def test_rows_of_a_file_that_is_being_written(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert read_json_lines(file) == []
    file.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert read_json_lines(file) == [{"round": 1}, {"round": 2}]
    file.write_text('{"round": 1}\n{"rou\n')
    with pytest.raises(UserError, match="line 2"):
        read_json_lines(file)


@pytest.mark.parametrize("text", ["# mine\nrounds: 6\n", "services:\n  web: {}\n", "{", "[1, 2]\n"])
def test_a_users_configuration_is_not_overwritten(tmp_path: Path, text: str, capsys) -> None:
    (tmp_path / "config.yaml").write_text(text)
    refused(RUN, tmp_path, "was not written there by a run", capsys)


def test_a_users_copy_of_the_configuration_is_kept(interrupted: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    text = "# mine\n" + (interrupted / "config.yaml").read_text()
    (own / "config.yaml").write_text(text)
    assert main(["run", "--config", str(own / "config.yaml"), "--out", str(own)]) == 0
    assert (own / "config.yaml").read_text() == text


def test_comments_in_a_folder_without_training(tmp_path: Path) -> None:
    RunFolder(tmp_path, "lr: 0.1\n", resume=False).close()
    (tmp_path / "config.yaml").write_text("lr: 0.1 # mine\n")
    with pytest.raises(UserError, match="not written there"):
        RunFolder(tmp_path, "lr: 0.2\n", resume=False)


@pytest.mark.parametrize("text", ["loss 0.5", json.dumps({"step": 1}) + "\n"])
def test_metrics_of_another_program_are_not_emptied(tmp_path: Path, text: str, capsys) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    refused(RUN, tmp_path, "holds metrics.jsonl but no config.yaml", capsys)


@pytest.mark.parametrize("name", [*RUN_FILES, "analysis/hessian.json"])
def test_a_pipe_among_the_files_of_a_run(interrupted: Path, name: str, capsys) -> None:
    """Reading a pipe waits for a writer, and a device such as /dev/zero never ends."""
    file, out = interrupted / name, str(interrupted)
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    for words in (["run", "--resume", "--out", out], ["report", out], ["analyse", out], ["personalise", out]):
        capsys.readouterr()
        assert main(words) == 2
        assert f"{file}: must be a regular file" in capsys.readouterr().err
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="must be a regular file"):
        ff.load_model(interrupted)


def test_a_link_in_place_of_the_lock_empties_no_file(interrupted: Path, tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", interrupted / "checkpoint" / ".lock"
    precious.write_text("mine")
    lock.unlink()
    lock.symlink_to(precious)
    assert main([*RUN, "--out", str(interrupted), "--resume"]) == 0
    assert precious.read_text() == "mine"
