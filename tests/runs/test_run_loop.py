"""The loop over rounds: learning rates, weights, counters, clocks, divergence, and what is on the disk when."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import RecordingEngine, nan_in_seeds, tiny_experiment

import fedflat as ff
from fedflat.runs import folder as folders
from fedflat.runs import train_together as side_by_side
from fedflat.runs import training as loop
from fedflat.runs.build import build_run
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.folder import RunFolder
from fedflat.runs.metrics import read_metrics
from fedflat.runs.train import open_training
from fedflat.runs.train_together import run_together, train_until
from fedflat.runs.training import CHECKPOINT_SHARE, Training


def recorded_jobs(experiment: ff.Experiment) -> list[Any]:
    """Return the jobs of all rounds, which are not trained."""
    engine = RecordingEngine()
    list(Training(experiment, build_run(experiment), None, engine).rounds())
    return engine.jobs


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"lr_decay": 0.5}, [0.4, 0.2, 0.1, 0.05]),
        ({"lr_schedule": "step", "lr_decay": 0.5, "lr_step": 2}, [0.4, 0.4, 0.2, 0.2]),
        ({"lr_warmup": 2, "lr_decay": 0.5}, [0.4 / 3, 0.8 / 3, 0.4, 0.2]),
    ],
)
def test_the_first_round_has_the_full_learning_rate_and_later_ones_decay(options: Any, rates: list[float]) -> None:
    jobs = recorded_jobs(tiny_experiment(rounds=4, lr=0.4, **options))
    assert [job.round for job in jobs] == [0, 1, 2, 3]
    assert [float(job.optimiser.lr) for job in jobs] == pytest.approx(rates)


def test_both_exchanges_of_a_round_have_its_learning_rate_and_clients() -> None:
    jobs = recorded_jobs(tiny_experiment(method=ff.NaiveFedGloSS(), rounds=2, lr=0.4, lr_decay=0.5))
    assert [(job.round, job.exchange) for job in jobs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [float(job.optimiser.lr) for job in jobs] == pytest.approx([0.4, 0.4, 0.2, 0.2])
    cohorts = [build_run(tiny_experiment()).participation.replying(0, r) for r in (0, 0, 1, 1)]
    assert [job.clients for job in jobs] == cohorts


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_a_clients_weight_is_its_number_of_samples_or_one(weights: Any) -> None:
    experiment = tiny_experiment(partition="lda", alpha=1.0, clients=2, cohort=2, weights=weights)
    sizes = [len(rows) for rows in build_run(experiment).client_rows]
    assert len(set(sizes)) == 2, "the partition has to be unequal"
    (job, *_) = recorded_jobs(experiment)
    assert job.weights.tolist() == [sizes[k] if weights == "examples" else 1 for k in job.clients]


@pytest.mark.parametrize(("method", "exchanges"), [(ff.FedAvg(), 1), (ff.NaiveFedGloSS(), 2)])
def test_steps_of_every_exchange_and_seed_are_counted(method: ff.Method, exchanges: int) -> None:
    experiment = tiny_experiment(method=method, seeds=(0, 1), rounds=3)
    with open_training(experiment, None, False) as training:
        list(training.rounds())
        training.seconds = 4.0
        result = training.conclude()
    steps = 3 * 2 * 2 * 3 * exchanges  # rounds, seeds, clients, batches
    assert (training.steps, result.client_steps_per_second) == (steps, steps / 4)


def test_steps_are_counted_in_experiments_that_are_trained_together_too() -> None:
    pair = [tiny_experiment(method=ff.NaiveFedGloSS(), partition_seed=n) for n in (0, 1)]
    for result in run_together(pair):
        assert result.client_steps_per_second * result.seconds == pytest.approx(3 * 2 * 3 * 2, rel=0.1)


@pytest.mark.parametrize("diverged", [0, 1, 2])
def test_a_diverged_seed_does_not_end_the_others(diverged: int) -> None:
    result = ff.run(tiny_experiment(model=nan_in_seeds(diverged), seeds=(0, 1, 2)))
    assert (result.rounds, result.diverged_seeds) == (3, [diverged])
    assert [row["round"] for row in result.history if row["seed"] == 1] == [1, 2, 3]


@pytest.mark.parametrize("every", [1, 2])
def test_training_ends_when_all_seeds_have_diverged(every: int) -> None:
    result = ff.run(tiny_experiment(model=nan_in_seeds(0, 1), seeds=(0, 1), rounds=5, eval_every=every))
    assert (result.rounds, result.diverged_seeds) == (every, [0, 1])


def test_a_diverged_experiment_does_not_change_one_that_is_trained_beside_it() -> None:
    model = nan_in_seeds(1)
    bad = tiny_experiment(model=model, seeds=(1,), clients=3)
    good = tiny_experiment(model=model, seeds=(0,), partition_seed=1)
    first, second = run_together([bad, good])
    assert (first.rounds, first.diverged_seeds, second.rounds) == (1, [1], 3)
    assert second.curve(0, "loss") == pytest.approx(ff.run(good).curve(0, "loss"), rel=1e-6)


def test_rounds_that_are_evaluated_watched_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, watched, save = [], [], RunFolder.save

    def recorded(folder: RunFolder, tensors: Any) -> None:
        saved.append(int(tensors["counters"][0]))
        save(folder, tensors)

    monkeypatch.setattr(RunFolder, "save", recorded)
    experiment = tiny_experiment(rounds=7, eval_every=3, checkpoint_every=2, seeds=(0, 1))
    result = ff.run(experiment, tmp_path, watch=lambda round, rows: watched.append((round, [r["round"] for r in rows])))
    assert [(row["round"], row["seed"]) for row in result.history] == [(r, seed) for r in (3, 6, 7) for seed in (0, 1)]
    assert saved == [2, 4, 6, 7]
    assert watched == [(1, []), (2, []), *((r, [3, 3]) for r in (3, 4, 5)), (6, [6, 6]), (7, [7, 7])]


class FakeDisk:
    """Knows how many bytes of every file would survive a power loss: those at its last fsync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.durable: dict[int, int] = {}
        fsync = os.fsync

        def recorded(descriptor: int) -> None:
            fsync(descriptor)
            stat = os.fstat(descriptor)
            self.durable[stat.st_ino] = stat.st_size

        monkeypatch.setattr(os, "fsync", recorded)

    def keeps(self, path: Path) -> bool:
        """Return whether all of a file would survive."""
        return self.durable.get(path.stat().st_ino) == path.stat().st_size


def test_metrics_are_on_the_disk_before_the_checkpoint_that_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of round r whose rows up to r are lost could not be continued."""
    disk, metrics, saved, save_tensors = FakeDisk(monkeypatch), tmp_path / "metrics.jsonl", [], folders.save_tensors

    def checked(path: Path, tensors: Any, *rest: str) -> None:
        round = int(tensors["counters"][0])
        assert [row["round"] for row in read_metrics(metrics)] == list(range(1, round + 1))
        assert disk.keeps(metrics)
        saved.append(round)
        save_tensors(path, tensors, *rest)

    monkeypatch.setattr(folders, "save_tensors", checked)
    ff.run(tiny_experiment(checkpoint_every=1), tmp_path)
    assert saved == [1, 2, 3, 3]


def test_the_result_is_written_after_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with result.json is complete."""
    finish = RunFolder.finish

    def checked(folder: RunFolder, result: Any) -> None:
        assert int((load_tensors(folder.checkpoint) or {})["counters"][0]) == result["rounds"] == 3
        assert [row["round"] for row in read_metrics(folder.metrics)] == [3]
        finish(folder, result)

    monkeypatch.setattr(RunFolder, "finish", checked)
    ff.run(tiny_experiment(eval_every=10, checkpoint_every=10), tmp_path)
    assert (tmp_path / "result.json").exists()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A clock that only the test moves."""
    now = SimpleNamespace(seconds=100.0)
    for module in (loop, side_by_side):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def test_only_training_is_timed_and_a_continued_run_adds_up(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Training.play_round

    def two_seconds(training: Training) -> None:
        clock.seconds += 2
        play(training)

    monkeypatch.setattr(Training, "play_round", two_seconds)
    experiment = tiny_experiment(rounds=3, checkpoint_every=1)
    with ff.Federation(experiment, out=tmp_path) as federation:
        for round in federation:
            clock.seconds += 50
            if round == 2:
                break
    result = ff.run(experiment, tmp_path, resume=True)
    assert result.seconds == 6
    assert result.curve(0, "seconds") == [2, 4, 6]
    assert result.client_steps_per_second == 3 * 2 * 3 / 6


@pytest.mark.parametrize(
    ("cost", "every", "expected"), [(0.5, 2, [2, 4, 6]), (3.0, 2, [2, 5]), (3.0, 1, [1, 2, 3, 4, 5, 6, 7])]
)
def test_a_slow_checkpoint_is_not_repeated_before_twenty_times_as_long(
    tmp_path: Path,
    clock: SimpleNamespace,
    cost: float,
    every: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saving takes `cost` seconds. Rounds end at 20, 40, … seconds. Whoever wants one after every round gets it."""
    saved: list[int] = []
    experiment = tiny_experiment(rounds=9, checkpoint_every=every)
    with open_training(experiment, tmp_path, False) as training:

        def save() -> None:
            clock.seconds += cost
            saved.append(training.round)
            training._saved_round = training.round

        monkeypatch.setattr(training, "save", save)
        for training.round in range(1, 8):
            training.after_round(20.0 * training.round)
    assert CHECKPOINT_SHARE == 20
    assert saved == expected


def test_a_continued_run_has_the_states_counters_and_metrics_of_its_checkpoint(tmp_path: Path) -> None:
    experiment = tiny_experiment(method=ff.SCAFFOLD(), seeds=(3, 1), checkpoint_every=1)
    with ff.Federation(experiment, out=tmp_path) as federation:
        for _ in federation:
            break
        training = federation._training
    with open_training(experiment, tmp_path, True) as continued:
        assert (continued.round, continued.steps) == (1, training.steps)
        assert 0 < continued.seconds <= training.seconds
        assert continued.history == training.history
        for old, new in zip(training.trials, continued.trials, strict=True):
            theirs = new.pack()
            assert all(torch.equal(tensor, theirs[name]) for name, tensor in old.pack().items())


@pytest.mark.parametrize("lost", [1, 2])
def test_a_run_whose_metrics_lack_a_round_up_to_the_checkpoints_is_not_continued(tmp_path: Path, lost: int) -> None:
    experiment, metrics = tiny_experiment(checkpoint_every=1), tmp_path / "metrics.jsonl"
    with ff.Federation(experiment, out=tmp_path) as federation:
        next(round for round in federation if round == 2)
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for n, line in enumerate(lines, 1) if n != lost))
    with pytest.raises(ff.UserError, match=f"the first is round {lost}"):
        ff.run(experiment, tmp_path, resume=True)


def test_experiments_side_by_side_go_on_from_the_longest_time(tmp_path: Path, clock: SimpleNamespace) -> None:
    """Their seconds are those of all together, and one that was continued was not trained in less than before."""
    pair = [tiny_experiment(partition_seed=n) for n in (0, 1)]
    folders = [tmp_path / str(n) for n in (0, 1)]

    def five_seconds(round: int, rows: Any) -> None:
        clock.seconds += 5

    train_until(2, pair[:1], folders[:1], five_seconds)
    before = load_tensors(folders[0] / "checkpoint" / "state.safetensors") or {}
    assert before["counters"][:2].tolist() == [2, 5]
    assert [result.seconds for result in run_together(pair, folders, resume=True)] == [5, 5]


def test_a_round_that_an_error_ends_between_its_exchanges_is_not_saved(tmp_path: Path) -> None:
    experiment = tiny_experiment(method=ff.NaiveFedGloSS())
    with ff.Federation(experiment, out=tmp_path) as federation:
        next(iter(federation))
        engine = federation._training.engine
        train, left = engine.train, iter([True])

        def fail_in_the_second_exchange(jobs: Any) -> Any:
            return train(jobs) if next(left, False) else 1 / 0

        engine.train = fail_in_the_second_exchange  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            next(iter(federation))
    assert ff.run(experiment, tmp_path, resume=True).curve(0, "loss") == ff.run(experiment).curve(0, "loss")
