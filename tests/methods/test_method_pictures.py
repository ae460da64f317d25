"""The pictures of docs/methods show what the methods compute, and every page that needs one has a current one."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedflat as ff
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Task
from fedflat.engine.rounds import Trial, play_round
from fedflat.engine.sequential import Sequential
from fedflat.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
WITHOUT = {"feddecorr"}  # its penalty depends on correlations of features, which two weights do not change


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("draw_methods")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def problem(pictures: ModuleType) -> ModuleType:
    return sys.modules["two_weights"]


def gradient(problem: Any, client: int, w: NDArray[Any]) -> NDArray[Any]:
    """The gradient of a client's loss: the mean of s a (c·p − c_y) over its two directions and three classes."""
    angle, classes = np.radians(problem.ANGLES[client]), np.array([1.0, 0.0, -1.0])
    total = np.zeros(2)
    for s, a in ((problem.SHARP, (np.cos(angle), np.sin(angle))), (problem.FLAT, (-np.sin(angle), np.cos(angle)))):
        exponentials = np.exp(s * classes * (np.array(a) @ (w - problem.OPTIMA[client])))
        total += 3 * s * np.array(a) * (classes @ exponentials / exponentials.sum())  # c_y sums to 0 over the classes
    return total / 6


def test_fedavg_s_paths_by_hand(problem: Any) -> None:
    w = np.array(problem.START)
    for played in problem.play(ff.FedAvg(), 3):
        ends = []
        for client, path in enumerate(played.clients):
            by_hand = [w]
            for _ in range(problem.STEPS[client]):
                by_hand.append(by_hand[-1] - problem.LR * gradient(problem, client, by_hand[-1]))
            np.testing.assert_allclose(torch.stack(path.models), by_hand, atol=1e-12)
            assert all(torch.equal(point, model) for point, model in zip(path.gradients_at, path.models, strict=False))
            ends.append(by_hand[-1])
        w = np.mean(ends, 0)
        np.testing.assert_allclose(played.after.params, w, atol=1e-12)


def test_fedsam_s_gradients_are_drawn_where_they_are_taken(problem: Any) -> None:
    for client, path in enumerate(problem.play(ff.FedSAM(rho=0.5), 1)[0].clients):
        for before, after, point in zip(path.models, path.models[1:], path.gradients_at, strict=False):
            g = gradient(problem, client, before.numpy())
            np.testing.assert_allclose(point, before.numpy() + 0.5 * g / np.linalg.norm(g), atol=1e-12)
            np.testing.assert_allclose(after, before.numpy() - problem.LR * gradient(problem, client, point.numpy()))


def test_the_optima(problem: Any) -> None:
    for client, optimum in enumerate(problem.OPTIMA):
        np.testing.assert_allclose(gradient(problem, client, np.array(optimum)), 0, atol=1e-12)
    w = problem.optimum_of_the_mean().numpy()
    np.testing.assert_allclose(gradient(problem, 0, w) + gradient(problem, 1, w), 0, atol=1e-9)


@pytest.mark.parametrize("name", ["fedgloss", "naivefedgloss", "compress", "fedbabu"])
def test_watching_changes_nothing(name: str, pictures: Any, problem: Any) -> None:
    method = pictures.PICTURES[name].method
    trial = Trial(0, method, torch.tensor(problem.START, dtype=torch.float64))
    engine = Sequential(method, Task(problem.TwoWeights()), problem.AllSamples())
    sgd, weights = Optimiser(torch.tensor(problem.LR, dtype=torch.float64)), torch.ones(2, dtype=torch.float64)
    for number, played in enumerate(problem.play(method, 3)):
        play_round(method, engine, [trial], number, [[0, 1]], [weights], 2, sgd)
        assert torch.equal(played.after.params, trial.server.params)


def test_every_page_has_its_picture(pictures: Any) -> None:
    assert set(pictures.PICTURES) == set(METHODS) - WITHOUT
    assert {path.stem for path in (DOCS / "images" / "methods").iterdir()} == set(pictures.PICTURES)
    for name in METHODS:
        page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
        assert page.count(f"](../images/methods/{name}.svg)") == (name not in WITHOUT), name


@pytest.mark.parametrize("name", [name for name in METHODS if name not in WITHOUT])
def test_the_pictures_are_current(name: str, pictures: Any, problem: Any) -> None:
    picture = pictures.PICTURES[name]
    assert METHODS.name_of(type(picture.method)) == name
    stored = (DOCS / "images" / "methods" / f"{name}.svg").read_text(encoding="utf-8")
    title, numbers = re.findall(r"<dc:description>(.*): (.*)</dc:description>", stored)[0]
    assert title == picture.title, "run make pictures"
    drawn = [[float(number) for number in point.split()] for point in numbers.split("; ")]
    models = torch.stack(pictures.global_models(problem.play(picture.method)))
    np.testing.assert_allclose(drawn, models, atol=1e-3, err_msg="run make pictures")


def test_drawing_again_changes_nothing(tmp_path: Path, pictures: Any) -> None:
    first = pictures.save("fedsam", tmp_path).read_bytes()
    assert pictures.save("fedsam", tmp_path).read_bytes() == first
    assert len(first) < 60_000
