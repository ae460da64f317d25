"""Probes in whole runs: they change nothing, survive interruptions, and are refused where they cannot work."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedflat import Dataset, Experiment, UserError, run
from fedflat.cli import main
from fedflat.engine.rounds import TrainedCohort
from fedflat.engine.sequential import Sequential
from fedflat.methods import METHODS
from fedflat.probes import PROBES
from fedflat.runs.build import build_run
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.config import dump_experiment, load_experiment
from fedflat.runs.train import train_to_end
from fedflat.runs.train_together import run_together
from fedflat.runs.training import Training

SMALL = Experiment(rounds=4, clients=5, cohort=2, local_epochs=1, model="mlp", seeds=(0, 1), checkpoint_every=1)
ALL = tuple(PROBES)
EVERYWHERE = {  # what every method has
    *("drift.global_local", "drift.local_local", "forgetting.before", "forgetting.after", "forgetting.after_std"),
    *("classes.accuracy", "proximal.loss", "proximal.cosine", "lambda.mean", "norm.model", "communication.bytes"),
    *("sharpness.lambda1", "clients.accuracy", "clients.worst", "clients.spread", "clients.jain"),
    *("alignment.cosine", "alignment.mean_update", "class-forgetting.client", "class-forgetting.forgotten"),
}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the values that are times."""
    probes = {key: value for key, value in row["probes"].items() if key not in ("cost.seconds", "cost.latency")}
    return {**without(row, "seconds"), "probes": probes}


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("name", ["fedavg", "fedgloss", "naivefedgloss", "scaffold"])
def test_training_is_the_same_with_and_without(name: str, engine: str, tmp_path: Path) -> None:
    plain = replace(SMALL, method=METHODS[name](), engine=engine, rounds=3)
    run(plain, tmp_path / "off")
    run(replace(plain, probes=ALL), tmp_path / "on")
    off, on = (load_tensors(tmp_path / side / "checkpoint" / "state.safetensors") for side in ("off", "on"))
    assert off
    assert on
    assert off.keys() == on.keys()
    assert all(torch.equal(off[key], on[key]) for key in off.keys() - {"counters"})
    measured = rows(tmp_path / "on")
    assert [without(row, "seconds") for row in rows(tmp_path / "off")] == [
        without(row, "seconds", "probes") for row in measured
    ]
    assert all(row["probes"].keys() >= EVERYWHERE for row in measured)


def test_only_where_they_are_due() -> None:
    due = replace(SMALL, rounds=7, eval_every=2, probe_every=3, probes=("norm", "cost"))
    history = run(due).history
    assert [(row["round"], row["seed"]) for row in history if "probes" in row] == [(6, 0), (6, 1)]
    assert [row["round"] for row in history if row["seed"] == 0] == [2, 4, 6, 7]
    last = run(replace(due, probe_every=7)).history[-1]
    assert (last["round"], last["probes"].keys()) == (
        7,
        {"norm.model", "cost.gradients", "cost.seconds", "cost.latency"},
    )
    assert all("probes" not in row for row in run(SMALL).history)


def test_seeds_have_values_of_their_own() -> None:
    both, alone = (run(replace(SMALL, seeds=s, probes=("drift", "classes"))).history for s in ((0, 1), (1,)))
    mine = [row for row in both if row["seed"] == 1]
    assert mine[0]["probes"] != both[0]["probes"]
    for one, other in zip(mine, alone, strict=True):
        assert one["probes"]["drift.global_local"] == pytest.approx(other["probes"]["drift.global_local"], rel=1e-4)


@pytest.mark.parametrize("stop_at", [1, 3])
def test_an_interruption_changes_no_value(stop_at: int, tmp_path: Path) -> None:
    experiment = replace(SMALL, method=METHODS["fedgloss"](), probes=ALL)

    def stop(round: int, rows: list[dict[str, Any]]) -> None:
        if round == stop_at:
            raise KeyboardInterrupt

    run(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "torn", watch=stop)
    run(experiment, tmp_path / "torn", resume=True)
    whole, torn = rows(tmp_path / "whole"), rows(tmp_path / "torn")
    assert [without_times(row) for row in whole] == [without_times(row) for row in torn]
    assert ["cost.latency" in row["probes"] for row in torn] == [True, True] + [False] * 6


def test_partitions_side_by_side_are_probed_as_alone() -> None:
    names = ("drift", "proximal", "fedgloss-exact")
    experiments = [
        replace(SMALL, method=METHODS["fedgloss"](), engine="sequential", probes=names, partition_seed=n, rounds=2)
        for n in (0, 1)
    ]
    for together, experiment in zip(run_together(experiments), experiments, strict=True):
        for row, alone in zip(together.history, run(experiment).history, strict=True):
            assert row["probes"].keys() == alone["probes"].keys()
            assert list(row["probes"].values()) == pytest.approx(list(alone["probes"].values()), rel=1e-3)


def test_compare_on_the_command_line(tmp_path: Path) -> None:
    words = "--rounds 2 --clients 4 --cohort 2 --model mlp --local-epochs 1 --seeds 0 1 --probe-every 1 --probes"
    assert main(["compare", "fedgf", "fedgloss", *words.split(), *ALL, "--out", str(tmp_path / "both")]) == 0
    fedgf, fedgloss = (rows(tmp_path / "both" / name) for name in ("fedgf", "fedgloss"))
    first = EVERYWHERE | {"cost.gradients", "cost.seconds", "cost.latency"}
    assert [row["probes"].keys() for row in fedgf[::2]] == [
        first | {"fedgf.c", "fedgf.distance"},
        EVERYWHERE | {"fedgf.c", "fedgf.distance"},
    ]
    assert [row["probes"].keys() for row in fedgloss[1::2]] == [
        first,
        EVERYWHERE | {"fedgloss.delta", "fedgloss-exact.delta"},
    ]
    named = [(name, value) for row in fedgf + fedgloss for name, value in row["probes"].items()]
    may_lack = ("clients.accuracy", "class-forgetting.forgotten")  # of clients or classes without samples
    numbers = [(name, number) for name, v in named for number in (v if isinstance(v, list) else [v])]
    assert all(isinstance(number, float) or (number is None and name in may_lack) for name, number in numbers)
    assert len(fedgf[0]["probes"]["classes.accuracy"]) == 10
    for row in fedgf:
        assert row["probes"]["fedgf.distance"] == pytest.approx(row["probes"]["drift.global_local"])


def test_what_diverged_is_null() -> None:
    row = run(replace(SMALL, lr=1e20, rounds=2, probes=("norm", "lambda"))).history[-1]
    assert row["loss"] is None
    assert row["probes"]["norm.model"] is None


def test_config_files_from_before_there_were_probes(tmp_path: Path) -> None:
    text = dump_experiment(SMALL)
    assert "probe" not in text, "what is off leaves no trace, so that runs begun earlier can be resumed"
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert load_experiment(file) == SMALL
    probed = replace(SMALL, probes=("drift", "classes"), probe_every=2)
    file.write_text(dump_experiment(probed))
    assert load_experiment(file) == probed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--probes drif", r"--probes drif: unknown \(did you mean drift\?\); probes are drift, forgetting, .*, cost$"),
        ("--probes norm all", "--probes all: unknown; probes are"),
        ("--probes norm --probe-every 0", "--probe-every 0: must be between 1 and"),
        ("--probes norm --rounds 5 --probe-every 6", "--probe-every 6: none of the evaluated rounds is a multiple"),
        ("--probes norm --rounds 9 --eval-every 4 --probe-every 3 --seeds", "--seeds: give at least one"),
        ("--probes norm --rounds 10 --eval-every 4 --probe-every 3", "--probe-every 3: none of the evaluated rounds"),
    ],
)
def test_mistakes(words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", *words.split(), "--out", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err.strip())
    assert not (tmp_path / "run").exists()


def test_many_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        UserError, match=r"probes=\('drift',\): local models are seen only where one process trains them all"
    ):
        run(replace(SMALL, probes=("drift",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class WithoutLocalModels(Sequential):
    """An engine that does not return the local models."""

    def train(self, jobs: Any) -> list[TrainedCohort]:
        return [trained._replace(ends=torch.empty(0)) for trained in super().train(jobs)]


def test_engines_without_local_models_are_refused() -> None:
    experiment = replace(SMALL, probes=("norm",))
    built = build_run(experiment)
    training = Training(experiment, built, None, WithoutLocalModels(experiment.method, built.task, built.client_data))
    with pytest.raises(UserError, match="leave probes out under torchrun and on Flower"):
        train_to_end(training, lambda round, rows: None)


def test_the_catalogue_and_help_name_every_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probes"]) == 0
    table = capsys.readouterr().out
    assert all(re.search(rf"^ +{name} ", table, re.M) for name in PROBES)
    assert main(["probes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(PROBES)
    assert all(row["summary"] and row["costs"] for row in rows)
    with pytest.raises(SystemExit):
        main(["run", "fedavg", "--help"])
    text = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
    help_text = re.search(r"--probes TEXT .*?\(default", text)
    assert help_text
    assert all(re.search(rf"\b{name}\b", help_text.group()) for name in PROBES)


def test_a_perplexity_is_reached_from_above(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = np.random.default_rng(0).integers(0, 9, (24, 7))
    text = Dataset.from_arrays(words[:, :-1], words[:, 1:], words[:, :-1], words[:, 1:])
    language = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    tiny = replace(SMALL, dataset=text, model=language, partition="iid", clients=4, cohort=2, rounds=2, probes=())
    worst = max(row["perplexity"] for row in run(tiny, tmp_path / "text").history)
    assert worst > 1
    for command in (["reach"], ["report", "--out", str(tmp_path / "page.html")]):
        assert main([command[0], str(tmp_path / "text"), *command[1:], "--target", str(worst)]) == 0
    assert ["text", "1.0"] in [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    run(SMALL, tmp_path / "classes")
    for command in ("reach", "report"):
        assert main([command, str(tmp_path / "classes"), "--target", "80"]) == 2
        assert "--target 80.0: must be between 0 and 1: the metric is accuracy" in capsys.readouterr().err


def test_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = {
        name: run(replace(SMALL, method=METHODS[name](), rounds=6, lr=0.2), tmp_path / name)
        for name in ("fedavg", "scaffold")
    }
    run(replace(SMALL, rounds=2), tmp_path / "short")
    target = min(result.final for result in results.values()) / 2
    assert main(["reach", *(str(tmp_path / name) for name in results), "--target", str(target)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    whole = 6 * 2 * 2 * 4 * results["fedavg"].parameters
    for name, models in (("fedavg", 2), ("scaffold", 4)):
        rounds = results[name].rounds_to(target)
        sent = rounds * 2 * models * 4 * results[name].parameters
        shown = [name, f"{rounds:.1f}", f"{sent:,.0f}", f"{rounds * 2 * models:,.1f}", f"{sent / whole:.2f}"]
        assert shown in lines
    assert main(["reach", str(tmp_path / "fedavg"), "--target", "1"]) == 0
    assert ["fedavg", *"––––"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert main(["reach", str(tmp_path / "nothing")]) == 2
    assert "nothing: not a run folder" in capsys.readouterr().err
    assert main(["reach"]) == 2
