"""Text as data: windows that lose no byte, the end of each file as test text, and errors that name the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedflat as ff
from fedflat.cli import main
from fedflat.core.tasks import IGNORED
from fedflat.data.load import load_dataset
from fedflat.data.text import cut_windows, load_text


@given(st.binary(min_size=2, max_size=50), st.integers(1, 12))
def test_windows_predict_every_byte_but_the_first_once(text: bytes, length: int) -> None:
    inputs, targets = cut_windows(text, length)
    counts = targets != IGNORED
    assert inputs.shape == targets.shape == (-(-(len(text) - 1) // length), length)
    assert bytes(inputs[counts].tolist()) == text[:-1]
    assert bytes(targets[counts].tolist()) == text[1:]
    assert not inputs[~counts].any()
    assert counts[:-1].all(), "only the last window is filled up"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("zoe", "to be or not to be " * 6), ("anna", "äöü ß " * 8), (".hidden", "no")):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "subfolder").mkdir()
    return tmp_path


def test_a_client_for_each_file_and_its_end_as_test_text(folder: Path) -> None:
    data = load_dataset(f"text:{folder}", sequence_length=16)
    texts = [(folder / name).read_bytes() for name in ("anna.txt", "zoe.txt")]
    for client, text in enumerate(texts):
        mine = data.y[data.owner == client]
        assert bytes(mine[mine != IGNORED].tolist()) == text[1 : len(text) - len(text) // 5]
    ends = b"".join(text[-(len(text) // 5) :][1:] for text in texts)
    assert bytes(data.y_test[data.y_test != IGNORED].tolist()) == ends
    assert (data.task, data.classes, data.shape) == ("next-token", 256, (16, 1, 1))
    assert data.fingerprint == load_text(folder, 16).fingerprint != load_text(folder, 8).fingerprint


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", b"short", "has 5 bytes; a client's text needs at least 10"),
        ("a.png", b"\x89PNG" + bytes(20), "contains zero bytes, so it is no plain text"),
        (".hidden", b"0123456789", "has no files"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ff.UserError, match=problem):
        load_dataset(f"text:{tmp_path}")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("run fedavg --dataset text:nowhere", "--dataset text:nowhere: there is no folder nowhere"),
        ("run fedavg --dataset sklearn-text --sequence-length 0", "--sequence-length 0: must be between 1 and"),
        ("run fedavg --dataset sklearn-text --model mlp", "--model: cannot take samples of shape 64"),
        ("run fedavg --model char-lstm", "cannot take input of shape 1x8x8, it needs text"),
        ("data show sklearn-text", "has no classes to draw; its task is next-token"),
        ("data prepare sklearn-text", "comes with the library"),
    ],
)
def test_mistakes(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert problem in capsys.readouterr().err


def test_perplexity_falls(tmp_path: Path) -> None:
    setting = {"dataset": "sklearn-text", "sequence_length": 32, "rounds": 3, "local_epochs": 1, "cohort": 4}
    result = ff.run(ff.Experiment(**setting, optimiser="adamw", lr=0.01, engine="sequential"), out=tmp_path / "run")
    found = [row["perplexity"] for row in result.history]
    assert (result.metric, result.final) == ("perplexity", found[-1])
    assert found[0] < 100
    assert found[2] < 0.95 * found[0]
    model = ff.load_model(tmp_path / "run")
    with torch.no_grad():
        assert model(torch.zeros(1, 32, dtype=torch.int64)).shape == (1, 32, 256)
