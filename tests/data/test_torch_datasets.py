"""torch's data sets become data sets of ours: the same samples in the same order, or one clear refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

import fedflat as ff


class Pairs(torch.utils.data.Dataset):
    """A map-style data set of given samples."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        return self.samples[number]


def test_tensors_numbers_and_subsets() -> None:
    x, y = torch.randn(12, 3), torch.arange(12) % 3
    data = ff.Dataset.from_torch(
        TensorDataset(x[:9], y[:9]), Subset(TensorDataset(x, y), [9, 10, 11]), clients=[[0, 8]]
    )
    assert torch.equal(data.x, x[:9])
    assert torch.equal(data.x_test, x[9:])
    assert (data.task, data.classes) == ("classification", 3)
    assert data.owner.tolist() == [0, *[-1] * 7, 0]
    numbers = ff.Dataset.from_torch(Pairs([(1.0, 2.5), (2.0, 3.5)]), Pairs([(3.0, 1.5)]))
    assert (numbers.task, numbers.x.tolist(), numbers.y.tolist()) == ("regression", [[1.0], [2.0]], [2.5, 3.5])


def test_images_and_several_inputs() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    images = Pairs([(Image.fromarray(each), n % 2) for n, each in enumerate(pixels)])
    data = ff.Dataset.from_torch(images, images)
    assert (data.x.shape, data.x.dtype) == ((4, 3, 5, 6), torch.uint8)
    assert torch.equal(data.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    several = Pairs([({"a": torch.ones(2), "b": torch.ones(1)}, 0), ({"a": torch.zeros(2), "b": torch.ones(1)}, 1)])
    assert set(ff.Dataset.from_torch(several, several).x) == {"a", "b"}


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ()


class Noisy(Pairs):
    def __getitem__(self, number: int) -> Any:
        return torch.randn(2), 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Stream(), r"train: is Stream, must be a data set with len\(\)"),
        (Pairs([]), "train: has no samples"),
        (Noisy([0, 0]), "train: gives another sample 0 when it is read again; .* leave random transforms out"),
        (Pairs([({"x": 1},)]), r"train: sample 0 is a tuple of 1, must be a pair \(x, y\)"),
        (Pairs([{"x": 1, "y": 2}]), r"train: sample 0 is a dict of 2, must be a pair"),
        (Pairs([("word", 0)]), "train: sample 0 has a str, must be numbers"),
        (Pairs([(torch.ones(2), 0), (torch.ones(3), 0)]), r"sample 1 has shape \[3\] and sample 0 \[2\]"),
    ],
)
def test_what_cannot_be_read_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ff.UserError, match=message):
        ff.Dataset.from_torch(source, Pairs([(torch.ones(2), 0)]))


def test_an_experiment_says_how_to_use_them() -> None:
    with pytest.raises(ff.UserError, match=r"Dataset.from_torch\(train, test\) makes one"):
        ff.Experiment(dataset=Pairs([(1.0, 2.0)])).check()
