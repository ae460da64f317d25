"""A run is continued as often as one likes, and extended by rounds and seeds; what was trained keeps its bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedflat as ff
from fedflat.cli import main
from fedflat.errors import UserError
from fedflat.flatness import AnalysisSettings
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.folder import RunFolder
from fedflat.runs.read import read_trained_run

TINY = ff.Experiment(
    method=ff.FedGloSS(warmup=2),
    rounds=4,
    clients=4,
    cohort=2,
    partition="iid",
    model="mlp",
    local_epochs=1,
    checkpoint_every=2,
    engine="sequential",
)
Start = Callable[..., Path]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of four rounds."""
    ff.run(TINY, tmp_path_factory.mktemp("finished") / "run")
    return next(tmp_path_factory.getbasetemp().glob("finished*/run"))


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics without their times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def states(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of a seed in the checkpoint."""
    named = load_tensors(folder / "checkpoint" / "state.safetensors") or {}
    return {name: tensor for name, tensor in named.items() if name.startswith(f"trial.{seed}.")}


def assert_same_states(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys() != set()
    assert all(torch.equal(one[name], other[name]) for name in one)


def stop_at(round: int) -> Callable[[int, object], None]:
    def watch(played: int, rows: object) -> None:
        if played == round:
            raise KeyboardInterrupt

    return watch


def test_a_complete_run_is_resumed_without_training(copied: Path, capsys) -> None:
    """It rewrites a missing report, prints the table and changes nothing else."""
    main(["run", "--out", str(copied), "--resume"])
    before = {path.name: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    (copied / "report.html").unlink()
    capsys.readouterr()
    assert main(["run", "--out", str(copied), "--resume"]) == 0
    printed = capsys.readouterr()
    assert "bytes per client and round" in printed.out
    assert printed.err == ""
    assert {path.name: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before
    assert ff.run(TINY, copied, resume=True).history == [json.loads(x) for x in (copied / "metrics.jsonl").open()]


def test_nothing_to_resume(tmp_path: Path, capsys) -> None:
    ff.run(replace(TINY, rounds=1), tmp_path / "new", resume=True)
    assert capsys.readouterr().err == f"{tmp_path / 'new'}: nothing to resume, starting\n"


def test_the_last_of_two_folders_counts(copied: Path, tmp_path: Path, capsys) -> None:
    """Its options are taken as well, not those of the other folder."""
    ff.run(replace(TINY, rounds=1, lr=0.5), tmp_path / "other")
    assert main(["run", "--resume", "--out", str(tmp_path / "other"), "--out", str(copied)]) == 0
    assert f"results in {copied}" in capsys.readouterr().out


def test_nothing_to_resume_and_no_method_to_start(tmp_path: Path, capsys) -> None:
    """A mistyped folder does not train the default method."""
    assert main(["run", "--out", str(tmp_path / "typo"), "--resume"]) == 2
    assert capsys.readouterr().err.startswith(f"fedflat: --out {tmp_path / 'typo'}: holds no run to continue; ")
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("stopped", [None, 3], ids=["complete", "interrupted"])
def test_more_rounds_are_those_of_a_longer_run(copied: Path, stopped: int | None, tmp_path: Path, capsys) -> None:
    longer, extended = replace(TINY, rounds=7), copied
    if stopped:
        extended = tmp_path / "interrupted"
        with pytest.raises(KeyboardInterrupt):
            ff.run(TINY, extended, watch=stop_at(stopped))
    capsys.readouterr()
    assert main(["run", "--out", str(extended), "--resume", "--rounds", "7"]) == 0
    assert capsys.readouterr().err.startswith(f"{extended}: extended (--rounds: 4 in the folder, 7 given)\n")
    ff.run(longer, tmp_path / "longer")
    assert rows(extended) == rows(tmp_path / "longer")
    assert_same_states(states(extended, 0), states(tmp_path / "longer", 0))
    assert (extended / "config.yaml").read_text() == (tmp_path / "longer" / "config.yaml").read_text()


def test_the_evaluation_of_the_old_last_round_stays(tmp_path: Path) -> None:
    rarely = replace(TINY, eval_every=3)
    ff.run(rarely, tmp_path / "run")
    result = ff.run(replace(rarely, rounds=6), tmp_path / "run", resume=True)
    assert [row["round"] for row in result.history] == [3, 4, 6]


def test_seeds_are_added_beside_the_old_ones(copied: Path, finished: Path, tmp_path: Path) -> None:
    """The old seed keeps its bits, the new ones have those of a run of their own, and all go on together."""
    result = ff.run(replace(TINY, seeds=(0, 3, 5)), copied, resume=True)
    assert result.seeds == [0, 3, 5]
    assert_same_states(states(copied, 0), states(finished, 0))
    ff.run(replace(TINY, seeds=(3, 5)), tmp_path / "alone")
    for seed in (3, 5):
        assert_same_states(states(copied, seed), states(tmp_path / "alone", seed))
        assert result.curve(seed) == [r["accuracy"] for r in rows(tmp_path / "alone") if r["seed"] == seed]
    assert [(row["round"], row["seed"]) for row in result.history] == [(r, s) for r in range(1, 5) for s in (0, 3, 5)]
    assert not (copied / "added-seeds").exists()
    longer = ff.run(replace(TINY, seeds=(0, 3, 5), rounds=5), copied, resume=True)
    assert len(longer.history) == 15


def test_seeds_that_are_interrupted_while_they_catch_up(copied: Path, finished: Path, monkeypatch) -> None:
    """Also if the last step, adding them to the checkpoint, is repeated; and yet another seed may join them."""
    more = replace(TINY, seeds=(0, 3))
    with pytest.raises(KeyboardInterrupt):
        ff.run(more, copied, resume=True, watch=stop_at(2))
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, t: stop_at(0)(0, ()) if self.path == copied else save(self, t))
    with pytest.raises(KeyboardInterrupt):
        ff.run(more, copied, resume=True)
    monkeypatch.undo()
    assert not (copied / "result.json").exists()
    assert read_trained_run(copied).experiment.seeds == (0,)
    result = ff.run(replace(TINY, seeds=(0, 3, 4)), copied, resume=True)
    assert sorted({row["seed"] for row in result.history}) == [0, 3, 4]
    assert_same_states(states(copied, 0), states(finished, 0))


def test_what_cannot_be_changed_is_named(copied: Path, capsys) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    mistakes = {
        "--rounds 3": "--rounds 3: 4 are trained",
        "--lr 0.3": "--lr: 0.05 in the folder, 0.3 given",
        "--seeds 1": "--seeds: 0 in the folder, 1 given",
        "--rounds 9 --clients 5": "--clients: 4 in the folder, 5 given",
    }
    for flags, problem in mistakes.items():
        assert main(["run", "--out", str(copied), "--resume", *flags.split()]) == 2
        assert problem in capsys.readouterr().err
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_all_clients_are_not_one_client(tmp_path: Path) -> None:
    everyone = replace(TINY, method=ff.FedAvg(), cohort=1.0)
    ff.run(everyone, tmp_path)
    with pytest.raises(UserError, match=r"cohort: 1\.0 in the folder, 1 given"):
        ff.run(replace(everyone, cohort=1, rounds=6), tmp_path, resume=True)


def test_a_schedule_that_depends_on_the_rounds(tmp_path: Path) -> None:
    """The number of rounds may not grow then, but seeds may join: they follow the same schedule."""
    cosine, out = replace(TINY, lr_schedule="cosine"), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        ff.run(cosine, out, watch=stop_at(3))
    with pytest.raises(UserError, match="rounds: 4 in the folder, 6 given"):
        ff.run(replace(cosine, rounds=6), out, resume=True)
    result = ff.run(replace(cosine, seeds=(0, 1)), out, resume=True)
    assert result.curve(1, "loss")[:2] == ff.run(replace(cosine, seeds=(1,))).curve(1, "loss")[:2]


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_run_without_an_intact_checkpoint_is_not_extended(copied: Path, damage: str, capsys) -> None:
    """Starting anew would lose the metrics."""
    checkpoint = copied / "checkpoint" / "state.safetensors"
    data = checkpoint.read_bytes()
    checkpoint.unlink() if damage == "missing" else checkpoint.write_bytes(
        data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    )
    for flags in (["--rounds", "9"], ["--seeds", "0", "1"]):
        assert main(["run", "--out", str(copied), "--resume", *flags]) == 2
        assert damage.replace("flipped", "damaged") in capsys.readouterr().err
    assert (copied / "result.json").exists()
    assert len(rows(copied)) == 4


def test_a_number_in_the_result_that_no_float_can_hold(copied: Path, capsys) -> None:
    result = json.loads((copied / "result.json").read_text())
    (copied / "result.json").write_text(json.dumps(result | {"parameters": 10**400}))
    assert main(["reach", str(copied)]) == 2
    assert "result.json cannot be used" in capsys.readouterr().err


def test_an_edited_configuration_is_not_overwritten(copied: Path, capsys) -> None:
    config = copied / "config.yaml"
    config.write_text("# mine\n" + config.read_text())
    assert main(["run", "--out", str(copied), "--resume", "--rounds", "5"]) == 2
    assert "its config.yaml was edited" in capsys.readouterr().err
    config.write_text(config.read_text().replace("rounds: 4", "rounds: 5"))
    assert main(["run", "--out", str(copied), "--resume"]) == 0
    assert config.read_text().startswith("# mine\n")
    assert len(rows(copied)) == 5


def test_models_of_an_unfinished_run(tmp_path: Path, capsys) -> None:
    """load_model, analyse and personalise use the last checkpoint, and say so."""
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        ff.run(replace(TINY, rounds=9), out, watch=stop_at(3))
    capsys.readouterr()
    parameters = torch.cat([p.detach().flatten() for p in ff.load_model(out).parameters()])
    said = f"run {out}: unfinished; its last checkpoint is of round 2 of 9\n"
    assert capsys.readouterr().err == said
    assert torch.equal(parameters, states(out, 0)["trial.0.server.params"])
    ff.analyse(out, AnalysisSettings(what=("hessian",), samples=20, top=1))
    assert said in capsys.readouterr().err
    ff.personalise(out, epochs=(1,), alone=False)
    assert said in capsys.readouterr().err
    assert ff.run(replace(TINY, rounds=9), out, resume=True).rounds == 9


def test_a_run_without_a_checkpoint_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ff.run(TINY, tmp_path / "run", watch=stop_at(1))
    with pytest.raises(UserError, match="checkpoint is missing"):
        ff.load_model(tmp_path / "run")
    with pytest.raises(UserError, match="no run that has trained"):
        ff.load_model(tmp_path / "none")
