"""The files data sets are published in: IDX (MNIST), .mat (SVHN), .npz (MedMNIST), Python pickles (CIFAR).

Pickles are read by an unpickler that knows only numbers, strings, containers and numpy arrays.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedflat.data.image_files import naming_the_file
from fedflat.data.prepared import CHUNK, RawDataset, RawSplit
from fedflat.errors import UserError


def _empty(*_: object) -> np.ndarray:
    """The array that numpy's own reconstruction starts from; its contents follow as state."""
    return np.empty(0, np.uint8)


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): object,  # only ever handed to _reconstruct, which ignores it
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
}


class _RestrictedUnpickler(pickle.Unpickler):
    """An unpickler for numbers, strings, containers and numpy arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise UserError(f"the pickle calls {module}.{name}; only plain arrays are allowed, so nothing was run")
        return _KNOWN[module, name]


def load_restricted_pickle(file: BinaryIO) -> Any:
    """What the pickle holds; strings written by Python 2 come as bytes."""
    try:
        return _RestrictedUnpickler(file, encoding="bytes").load()
    except UserError as error:
        raise UserError(f"{getattr(file, 'name', 'file')}: {error}") from error


def find_file(root: Path, *names: str) -> Path:
    """The first of `names` in `root` or up to two levels below."""
    found = [path for name in names for deep in ("", "*/", "*/*/") for path in sorted(root.glob(deep + name))]
    if not found:
        raise UserError(f"{root}: no file {' or '.join(names)}")
    return found[0]


def image_chunks(images: np.ndarray) -> Iterator[np.ndarray]:
    """Chunks [k, c, h, w] of images given as [n, h, w] or [n, h, w, c]."""
    images = images[..., None] if images.ndim == 3 else images
    for start in range(0, len(images), CHUNK):
        yield np.ascontiguousarray(images[start : start + CHUNK].transpose(0, 3, 1, 2))


def read_mnist(root: Path) -> RawDataset:
    """IDX files, compressed or not."""
    halves = [
        RawSplit(_idx(root, half, "labels", 1), image_chunks(_idx(root, half, "images", 3)))
        for half in ("train", "t10k")
    ]
    return RawDataset(halves[0], halves[1], "idx")


def _idx(root: Path, half: str, kind: str, dims: int) -> np.ndarray:
    """An IDX array: bytes 0, 0, 8 (uint8), the number of dimensions, each as a big-endian int32, the data."""
    names = [f"{half}-{kind}{dot}idx{dims}-ubyte" for dot in "-."]
    path = find_file(root, *names, *(name + ".gz" for name in names))
    with naming_the_file(path, "an IDX file"):
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read()
        if data[:4] != bytes([0, 0, 8, dims]):
            raise ValueError(f"starts with {data[:4]!r}")
        shape = np.frombuffer(data, ">i4", dims, 4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)


def read_svhn(root: Path) -> RawDataset:
    """Cropped digits (format 2): X uint8 [32, 32, 3, n], y [n, 1] in which 10 stands for the digit 0."""
    return RawDataset(_mat(root, "train"), _mat(root, "test"), "mat")


def _mat(root: Path, half: str) -> RawSplit:
    from scipy.io import loadmat

    path = find_file(root, f"{half}_32x32.mat")
    with naming_the_file(path, "a MATLAB file with X and y"):
        arrays = loadmat(path, variable_names=["X", "y"])
        images = arrays["X"].transpose(3, 0, 1, 2)
        return RawSplit(arrays["y"].ravel().astype(np.int64) % 10, image_chunks(images))


def read_medmnist(root: Path, name: str) -> RawDataset:
    """A MedMNIST .npz: the validation images join the training images, as in FedSOL."""
    path = root if root.is_file() else find_file(root, f"{name}.npz")
    with naming_the_file(path, "a MedMNIST file"), np.load(path, allow_pickle=False) as arrays:
        labels = {half: arrays[f"{half}_labels"].ravel().astype(np.int64) for half in ("train", "val", "test")}
        train = RawSplit(np.concatenate([labels["train"], labels["val"]]), _members(path, "train", "val"))
        return RawDataset(train, RawSplit(labels["test"], _members(path, "test")), "npz")


def _members(path: Path, *halves: str) -> Iterator[np.ndarray]:
    """The images of some halves, one held in memory at a time."""
    for half in halves:
        with naming_the_file(path, "a MedMNIST file"), np.load(path, allow_pickle=False) as arrays:
            images = arrays[f"{half}_images"]
        yield from image_chunks(images)


def read_cifar10(root: Path) -> RawDataset:
    """data_batch_1 to data_batch_5 and test_batch."""
    train = [find_file(root, f"data_batch_{i}") for i in range(1, 6)]
    return RawDataset(
        _batches(train, b"labels"), _batches([find_file(root, "test_batch")], b"labels"), "python batches"
    )


def read_cifar100(root: Path) -> RawDataset:
    """The files train and test, with the 100 fine labels."""
    paths = [find_file(root, f"cifar-100-python/{half}", half) for half in ("train", "test")]
    return RawDataset(_batches(paths[:1], b"fine_labels"), _batches(paths[1:], b"fine_labels"), "python batches")


def _batches(paths: list[Path], key: bytes) -> RawSplit:
    """The batches one after another."""
    labels, images = zip(*(_batch(path, key) for path in paths), strict=True)
    return RawSplit(np.concatenate(labels), (chunk for part in images for chunk in image_chunks(part)))


def _batch(path: Path, key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Labels and images [n, 32, 32, 3] of one batch: a dictionary with data uint8 [n, 3072], channel by channel."""
    with naming_the_file(path, "a CIFAR batch"), open(path, "rb") as file:
        batch = load_restricted_pickle(file)
        images = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
        return np.array(batch[key], np.int64), images.transpose(0, 2, 3, 1)
