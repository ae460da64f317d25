"""The digits of scikit-learn, read from its file: importing scikit-learn takes longer than the first round.

digits_order.npy has the rows of the training samples and then those of the test samples, one in five of each class, as
sklearn.model_selection.train_test_split(test_size=0.2, random_state=0, stratify=labels) draws them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedflat.data.dataset import Dataset

DIGITS_MEAN, DIGITS_STD = 0.305434, 0.375957  # of the training pixels
TRAINING_SAMPLES = 1437


def load_digits_dataset() -> Dataset:
    """Return the 1,797 handwritten digits of 8x8 pixels."""
    values = _read_values()[np.load(Path(__file__).with_name("digits_order.npy"))]
    pixels = np.round(values[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    x, y = torch.from_numpy(pixels), torch.from_numpy(values[:, -1].astype(np.int64))
    train, test = slice(TRAINING_SAMPLES), slice(TRAINING_SAMPLES, None)
    return Dataset("digits", x[train], y[train], x[test], y[test], 10, (DIGITS_MEAN,), (DIGITS_STD,))


def _read_values() -> np.ndarray:
    """Return a row per sample: 64 grey values from 0 to 16, and the digit."""
    package = find_spec("sklearn")
    folders = package.submodule_search_locations if package else None
    for file in (Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders or ()):
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # another version of scikit-learn may keep it elsewhere

    return np.column_stack(load_digits(return_X_y=True))
