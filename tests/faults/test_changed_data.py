"""A run goes on with the data it was begun with, and notices damaged caches and a metrics file that is gone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedflat as ff
from fedflat.data import prepared
from fedflat.data.load import load_dataset
from fedflat.errors import UserError
from fedflat.runs.checkpoint import load_tensors, save_tensors

TINY = ff.Experiment(rounds=3, clients=2, cohort=2, partition="iid", model="mlp", local_epochs=1, checkpoint_every=1)


def write_npz(path: Path, seed: int) -> None:
    x = np.random.default_rng(seed).random((30, 4), np.float32)
    np.savez(path, x=x[:20], y=np.arange(20) % 2, x_test=x[20:], y_test=np.arange(10) % 2)


def write_images(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    for part in ("train/a", "train/b", "test/a", "test/b"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            Image.fromarray(random.integers(0, 255, (8, 8), np.uint8)).save(folder / part / f"{number}.png")


def write_parquet(folder: Path, seed: int) -> None:
    from pyarrow import parquet, table

    write_images(folder / "raw", seed)
    for split in ("train", "test"):
        files = sorted((folder / "raw" / split).glob("*/*.png"))
        columns = {"image": [file.read_bytes() for file in files], "label": [i % 2 for i in range(len(files))]}
        parquet.write_table(table(columns), folder / f"{split}.parquet")


WRITERS = {"npz": write_npz, "folder": write_images, "parquet": write_parquet}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stop(round: int, rows: object) -> None:
    if round == 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", WRITERS)
def test_replaced_files_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    path, out = tmp_path / ("data.npz" if kind == "npz" else "data"), tmp_path / "run"
    experiment = replace(TINY, dataset=f"{kind}:{path}")
    WRITERS[kind](path, 0)
    with pytest.raises(KeyboardInterrupt):
        ff.run(experiment, out, watch=stop)
    WRITERS[kind](path, 1)
    with pytest.raises(UserError, match=f'dataset="{kind}:{path}": its data have changed since the run in {out}'):
        ff.run(experiment, out, resume=True)
    with pytest.raises(UserError, match=f"{kind}:{path}, have changed since"):
        ff.load_model(out)
    WRITERS[kind](path, 0)  # the same content with other times of change
    assert ff.run(experiment, out, resume=True).rounds == 3


def test_a_checkpoint_from_before_fingerprints(tmp_path: Path) -> None:
    write_npz(tmp_path / "data.npz", 0)
    experiment = replace(TINY, dataset=f"npz:{tmp_path / 'data.npz'}")
    with pytest.raises(KeyboardInterrupt):
        ff.run(experiment, tmp_path / "run", watch=stop)
    checkpoint = tmp_path / "run" / "checkpoint" / "state.safetensors"
    save_tensors(checkpoint, load_tensors(checkpoint) or {}, (tmp_path / "run" / "config.yaml").read_text())
    assert ff.run(experiment, tmp_path / "run", resume=True).rounds == 3


def test_a_damaged_cache_is_refused(tmp_path: Path, cache: Path) -> None:
    """Whatever bit is flipped: the images are read without decoding, so nothing else would notice."""
    write_images(tmp_path / "data", 0)
    name = f"folder:{tmp_path / 'data'}"
    whole = load_dataset(name)
    (file,) = cache.glob("folder-*.safetensors")
    data = file.read_bytes()
    for at in (-1, len(data) // 2, len(data) - 500, data.index(b'"mean"') + 12):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at:][1:])
        with pytest.raises(UserError, match=r"folder-\w+\.safetensors.* delete it and prepare the set again"):
            load_dataset(name)
    file.write_bytes(data)
    assert torch.equal(load_dataset(name).x, whole.x)


def test_a_cache_is_checked_once_until_it_changes(tmp_path: Path, cache: Path, monkeypatch) -> None:
    write_images(tmp_path / "data", 0)
    name, crcs, crc32 = f"folder:{tmp_path / 'data'}", [], prepared.zlib.crc32
    load_dataset(name)
    monkeypatch.setattr(prepared.zlib, "crc32", lambda *values: crcs.append(1) or crc32(*values))
    load_dataset(name)
    assert not crcs
    (file,) = cache.glob("folder-*.safetensors")
    os.utime(file)
    load_dataset(name)
    assert crcs


def test_metrics_that_are_removed_while_a_run_trains(tmp_path: Path, capsys) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"

    def remove(round: int, rows: object) -> None:
        metrics.unlink() if round == 1 else metrics.write_text("nonsense\n")

    result = ff.run(TINY, tmp_path / "run", watch=remove)
    assert [json.loads(line) for line in metrics.read_text().splitlines()] == result.history
    assert capsys.readouterr().err.count("metrics.jsonl: was removed or changed while the run trains") == 3
