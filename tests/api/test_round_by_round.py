"""ff.Federation: a loop of one's own trains, evaluates and writes what ff.run does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.runs.read import read_stored_run

SMALL = ff.Experiment(
    method=ff.FedGloSS(),
    rounds=3,
    cohort=2,
    partition="iid",
    model="mlp",
    local_epochs=1,
    eval_every=2,
    engine="sequential",
)


def losses(result: ff.Result | None) -> list[float]:
    assert result
    return result.curve(0, "loss")


def test_a_loop_trains_what_run_does(tmp_path: Path) -> None:
    expected = ff.run(SMALL, out=tmp_path / "run")
    with ff.Federation(SMALL, out=tmp_path / "loop") as federation:
        assert federation.round == 0
        for round in federation:
            federation.server.params.zero_()
            (row,) = federation.evaluate()
            assert row["round"] == round == federation.round
            assert federation.local_models.shape == (2, federation.server.params.numel())
            assert len(federation.cohort) == 2
    assert losses(federation.result) == losses(expected)
    assert (federation.result and federation.result.stopped) is None
    files = [(tmp_path / name / "config.yaml").read_text() for name in ("run", "loop")]
    assert files[0] == files[1]
    assert read_stored_run(tmp_path / "loop").result == federation.result


def test_local_models_average_to_the_global_model() -> None:
    with ff.Federation(replace(SMALL, method=ff.FedAvg(), weights="uniform")) as federation:
        next(iter(federation))
        torch.testing.assert_close(federation.local_models.mean(0), federation.server.params)
        assert torch.equal(next(federation.model.parameters()).reshape(-1)[:9], federation.server.params[:9])


def leave_with(error: Exception, out: Path) -> None:
    with ff.Federation(SMALL, out=out) as federation:
        for _ in federation:
            raise error


def test_a_loop_that_is_left_can_be_continued_or_finished(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        leave_with(ZeroDivisionError(), tmp_path / "a")
    with ff.Federation(SMALL, out=tmp_path / "a", resume=True) as federation:
        assert federation.round == 1
        assert list(federation) == [2, 3]
    assert losses(federation.result) == losses(ff.run(SMALL))
    with ff.Federation(SMALL, out=tmp_path / "b") as federation:
        for _ in federation:
            break
        result = federation.finish("long enough")
    assert (result.rounds, result.stopped, [row["round"] for row in result.history]) == (1, "long enough", [1])
    assert read_stored_run(tmp_path / "b").result == result


def test_a_loop_ends_where_its_body_finishes_the_run(tmp_path: Path) -> None:
    trained = []
    with ff.Federation(SMALL, out=tmp_path) as federation:
        for round in federation:
            trained.append(round)
            federation.finish("long enough")
    assert trained == [1]
    result = read_stored_run(tmp_path).result
    assert (result and result.rounds, federation.result) == (1, result)


def test_an_error_inside_a_round_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ff.Federation(SMALL, out=tmp_path) as federation:
        next(iter(federation))
        monkeypatch.setattr(federation._training.engine, "train", lambda jobs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(iter(federation))
    assert losses(ff.run(SMALL, out=tmp_path, resume=True)) == losses(ff.run(SMALL))


def test_mistakes_are_explained() -> None:
    with pytest.raises(ff.UserError, match="use it in a with block"):
        _ = ff.Federation(SMALL).round
    with ff.Federation(SMALL) as federation:
        with pytest.raises(ff.UserError, match="no round was trained yet"):
            _ = federation.local_models
        with pytest.raises(ff.UserError, match="has no folder to save to"):
            federation.save()
