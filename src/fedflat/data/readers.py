"""The array files data sets are published in: IDX (MNIST), .mat (SVHN), .npz (MedMNIST), python batches (CIFAR)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedflat.data.images import reading
from fedflat.data.pickles import load_plain
from fedflat.data.prepared import CHUNK, Source, Split
from fedflat.errors import UserError


def find(root: Path, *names: str) -> Path:
    """The first of `names` in `root` or up to two levels below."""
    found = [path for name in names for deep in ("", "*/", "*/*/") for path in sorted(root.glob(deep + name))]
    if not found:
        raise UserError(f"{root}: no file {' or '.join(names)}")
    return found[0]


def pieces(images: np.ndarray) -> Iterator[np.ndarray]:
    """Chunks [k, c, h, w] of images given as [n, h, w] or [n, h, w, c]."""
    images = images[..., None] if images.ndim == 3 else images
    for start in range(0, len(images), CHUNK):
        yield np.ascontiguousarray(images[start : start + CHUNK].transpose(0, 3, 1, 2))


def mnist(root: Path) -> Source:
    """IDX files, compressed or not."""
    halves = [Split(_idx(root, half, "labels", 1), pieces(_idx(root, half, "images", 3))) for half in ("train", "t10k")]
    return Source(halves[0], halves[1], "idx")


def _idx(root: Path, half: str, kind: str, dims: int) -> np.ndarray:
    """An IDX array: bytes 0, 0, 8 (uint8), the number of dimensions, each as a big-endian int32, the data."""
    names = [f"{half}-{kind}{dot}idx{dims}-ubyte" for dot in "-."]
    path = find(root, *names, *(name + ".gz" for name in names))
    with reading(path, "an IDX file"):
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read()
        if data[:4] != bytes([0, 0, 8, dims]):
            raise ValueError(f"starts with {data[:4]!r}")
        shape = np.frombuffer(data, ">i4", dims, 4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)


def svhn(root: Path) -> Source:
    """Cropped digits (format 2): X uint8 [32, 32, 3, n], y [n, 1] in which 10 stands for the digit 0."""
    return Source(_mat(root, "train"), _mat(root, "test"), "mat")


def _mat(root: Path, half: str) -> Split:
    from scipy.io import loadmat

    path = find(root, f"{half}_32x32.mat")
    with reading(path, "a MATLAB file with X and y"):
        arrays = loadmat(path, variable_names=["X", "y"])
        images = arrays["X"].transpose(3, 0, 1, 2)
        return Split(arrays["y"].ravel().astype(np.int64) % 10, pieces(images))


def medmnist(root: Path, name: str) -> Source:
    """A MedMNIST .npz: the validation images join the training images, as in FedSOL."""
    path = root if root.is_file() else find(root, f"{name}.npz")
    with reading(path, "a MedMNIST file"), np.load(path, allow_pickle=False) as arrays:
        labels = {half: arrays[f"{half}_labels"].ravel().astype(np.int64) for half in ("train", "val", "test")}
        train = Split(np.concatenate([labels["train"], labels["val"]]), _members(path, "train", "val"))
        return Source(train, Split(labels["test"], _members(path, "test")), "npz")


def _members(path: Path, *halves: str) -> Iterator[np.ndarray]:
    """The images of some halves, one held in memory at a time."""
    for half in halves:
        with reading(path, "a MedMNIST file"), np.load(path, allow_pickle=False) as arrays:
            images = arrays[f"{half}_images"]
        yield from pieces(images)


def cifar10(root: Path) -> Source:
    """data_batch_1 to data_batch_5 and test_batch."""
    train = [find(root, f"data_batch_{i}") for i in range(1, 6)]
    return Source(_batches(train, b"labels"), _batches([find(root, "test_batch")], b"labels"), "python batches")


def cifar100(root: Path) -> Source:
    """The files train and test, with the 100 fine labels."""
    paths = [find(root, f"cifar-100-python/{half}", half) for half in ("train", "test")]
    return Source(_batches(paths[:1], b"fine_labels"), _batches(paths[1:], b"fine_labels"), "python batches")


def _batches(paths: list[Path], key: bytes) -> Split:
    """The batches one after another."""
    labels, images = zip(*(_batch(path, key) for path in paths), strict=True)
    return Split(np.concatenate(labels), (chunk for part in images for chunk in pieces(part)))


def _batch(path: Path, key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Labels and images [n, 32, 32, 3] of one batch: a dictionary with data uint8 [n, 3072], channel by channel."""
    with reading(path, "a CIFAR batch"), open(path, "rb") as file:
        batch = load_plain(file)
        images = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
        return np.array(batch[key], np.int64), images.transpose(0, 2, 3, 1)
