"""Nodes with data of their own: they learn what a simulation on all of them learns, or are told why they cannot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate
from PIL import Image

from fedflat.runs.build import RunParts, build_run


def arrays_of(assembly: RunParts) -> dict[str, Any]:
    """All clients' samples one after another, as npz files have them."""
    data, every = assembly.dataset, np.concatenate(assembly.parts)
    owner = np.concatenate([np.full(len(part), k) for k, part in enumerate(assembly.parts)])
    return {"x": data.x[every], "y": data.y[every], "x_test": data.x_test, "y_test": data.y_test, "client": owner}


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    """digits dealt to four files, and a fifth with the test half for the server."""
    assembly = build_run(EXPERIMENT)
    data = assembly.dataset
    for k, part in enumerate(assembly.parts):
        np.savez(tmp_path / f"{k}.npz", x=data.x[part], y=data.y[part], x_test=data.x_test[:5], y_test=data.y_test[:5])
    np.savez(tmp_path / "server.npz", **arrays_of(assembly))
    return tmp_path


def test_data_of_their_own(own_data: Path) -> None:
    """Nodes that read their own files learn what a simulation on all of them learns."""
    experiment = dataclasses.replace(EXPERIMENT, dataset=f"npz:{own_data / 'server.npz'}", partition="natural")
    grid = Loopback(experiment)
    for k, context in enumerate(grid.contexts.values()):
        context.node_config = {"partition-id": k, "data": f"npz:{own_data / f'{k}.npz'}"}
    assert_same(federate(grid, experiment, own_data / "run"), simulate(experiment))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"x": np.zeros((3, 1, 9, 8), np.uint8), "y": np.zeros(3, int)},
            "samples are uint8 [1, 9, 8], the federation's are uint8 [1, 8, 8]",
        ),
        (
            {"x": np.full((3, 1, 8, 8), 255.0)},
            "samples are float32 [1, 8, 8], the federation's are uint8 [1, 8, 8]",
        ),
        ({"y": np.full(3, 10)}, "label 10 found, there are 10 classes"),
    ],
)
def test_own_data_that_do_not_fit(change: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = {"x": np.zeros((3, 1, 8, 8), np.uint8), "y": np.zeros(3, int)} | change
    np.savez(tmp_path / "own.npz", **arrays, x_test=arrays["x"], y_test=np.zeros(3, int))
    grid = Loopback(EXPERIMENT)
    grid.contexts[100].node_config = {"partition-id": 0, "data": f"npz:{tmp_path / 'own.npz'}"}
    federate(grid, dataclasses.replace(EXPERIMENT, rounds=1), tmp_path / "run")
    assert any(reason in record.getMessage() for record in caplog.records)


WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
NUMBERS = [str(label) for label in range(10)]


@pytest.fixture(scope="module")
def few() -> RunParts:
    """Digits of four clients of which none has every class; 12 samples each are enough."""
    assembly = build_run(dataclasses.replace(EXPERIMENT, alpha=0.1))
    parts = [part[:: max(1, len(part) // 12)] for part in assembly.parts]
    assert all(len(np.unique(assembly.dataset.y[part])) < 10 for part in parts)
    return assembly._replace(parts=parts)


def write_images(half: Path, x: Any, y: Any, names: list[str]) -> list[str]:
    """half/CLASS/NUMBER.png; the files' names."""
    files = [f"{names[int(label)]}/{number}.png" for number, label in enumerate(y)]
    for name, pixels in zip(files, x, strict=True):
        (half / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(half / name)
    return files


def write_nodes(root: Path, few: RunParts, names: list[str]) -> None:
    """root/K/train and test for client K; the test halves are there because the format asks for them."""
    for k, part in enumerate(few.parts):
        for half in ("train", "test"):
            write_images(root / str(k) / half, few.dataset.x[part], few.dataset.y[part], names)


def write_server(root: Path, few: RunParts, names: list[str]) -> None:
    """All clients' samples in one folder, and a test half."""
    arrays = arrays_of(few)
    files = write_images(root / "train", arrays["x"], arrays["y"], names)
    (root / "clients.json").write_text(json.dumps(dict(zip(files, arrays["client"].tolist(), strict=True))))
    write_images(root / "test", arrays["x_test"][:50], arrays["y_test"][:50], names)


def federate_folders(root: Path, experiment: Any) -> Any:
    grid = Loopback(experiment)
    for k, context in enumerate(grid.contexts.values()):
        context.node_config = {"partition-id": k, "data": f"folder:{root / str(k)}"}
    return federate(grid, experiment, root / "run")


@pytest.mark.parametrize("names", [WORDS, NUMBERS], ids=["words", "numbers"])
def test_folders_that_lack_classes(
    names: list[str], few: RunParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels follow the names of the folders, not their number on a node."""
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    write_nodes(tmp_path, few, names)
    write_server(tmp_path / "server", few, names)
    experiment = dataclasses.replace(EXPERIMENT, dataset=f"folder:{tmp_path / 'server'}", partition="natural")
    assert_same(federate_folders(tmp_path, experiment), simulate(experiment))


def test_folders_of_numbers_need_no_folder_on_the_server(
    few: RunParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "server.npz", **arrays_of(few))
    write_nodes(tmp_path, few, NUMBERS)
    experiment = dataclasses.replace(EXPERIMENT, dataset=f"npz:{tmp_path / 'server.npz'}", partition="natural")
    assert_same(federate_folders(tmp_path, experiment), simulate(experiment))


def test_a_class_that_nobody_else_knows(
    few: RunParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    write_nodes(tmp_path, few, NUMBERS)
    for half in ("train", "test"):
        write_images(tmp_path / "2" / half, few.dataset.x[:1], [0], ["dog"])
    federate_folders(tmp_path, dataclasses.replace(EXPERIMENT, rounds=1))
    said = [record.getMessage() for record in caplog.records if "takes no part" in record.getMessage()]
    assert len(said) == 1
    assert "node 102" in said[0]
    assert "no class is called dog; they are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in said[0]
