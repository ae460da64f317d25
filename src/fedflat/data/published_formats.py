"""Readers of published array files: IDX (MNIST), .mat (SVHN), .npz (MedMNIST), Python pickles (CIFAR).

A pickle names functions to call, so it can run anything. Here only those that rebuild a numpy array of numbers are
allowed. Any other name is refused before it is looked up: nothing that the file chooses is imported or called.
"""

from __future__ import annotations

import gzip
import math
import os
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from fedflat.data.image_files import check_regular, explain_read_errors
from fedflat.data.prepared import CHUNK, RawDataset, RawSplit
from fedflat.errors import UserError


def _empty_array(*_: object) -> np.ndarray:
    """Stand in for numpy's _reconstruct: the contents of the array follow as its state."""
    return np.empty(0, np.uint8)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): object,  # only an argument of _reconstruct, which ignores it
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
}


class _RestrictedUnpickler(pickle.Unpickler):
    """An unpickler for numbers, strings, containers and numpy arrays; strings of Python 2 become bytes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="bytes")
        self.path = file.name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            problem = f"the pickle calls {module}.{name}; only plain arrays are allowed, so nothing was run"
            raise UserError(None, self.path, problem)
        return _ALLOWED[module, name]


def find_file(root: Path, *names: str) -> Path:
    """Return the first of `names` that exists in `root` or up to two levels below."""
    paths = [path for name in names for level in ("", "*/", "*/*/") for path in sorted(root.glob(level + name))]
    if not paths:
        raise UserError(None, root, f"no file {' or '.join(names)}")
    return check_regular(paths[0])


def check_npz_sizes(path: Path, names: Iterable[str]) -> None:
    """Raise UserError if arrays of an npz file need more memory than is free, or claim to be larger than they are.

    Args:
        path: the file, which may be compressed a thousandfold.
        names: the arrays that will be read.
    """
    wanted = {f"{name}.npy" for name in names}
    with explain_read_errors(path, "an npz file"), zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename in wanted]
        for info in members:
            with archive.open(info) as file:
                declared = _declared_bytes(file)
            if declared > info.file_size:
                problem = f"array {info.filename[:-4]} should have {declared:,} bytes and has {info.file_size:,}"
                raise UserError(None, path, f"{problem}; the file is damaged")
    needed, free = sum(info.file_size for info in members), free_host_memory()
    if needed > free:
        raise UserError(
            None, path, f"its arrays need {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of memory are free"
        )


def _declared_bytes(file: IO[bytes]) -> int:
    """The bytes of an array according to its header."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    reader = readers.get(npy.read_magic(file))
    if reader is None:
        return 0
    shape, _, dtype = reader(file)
    return math.prod(shape) * dtype.itemsize


def free_host_memory() -> int:
    """Return the bytes of memory that programs can still use."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def image_chunks(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield images given as [n, h, w] or [n, h, w, c] in chunks [k, c, h, w]."""
    images = images[..., None] if images.ndim == 3 else images
    for start in range(0, len(images), CHUNK):
        yield np.ascontiguousarray(images[start : start + CHUNK].transpose(0, 3, 1, 2))


def read_mnist(root: Path) -> RawDataset:
    """Read the four IDX files of MNIST, compressed or not."""
    train, test = (
        RawSplit(_read_idx(root, split, "labels", 1), image_chunks(_read_idx(root, split, "images", 3)))
        for split in ("train", "t10k")
    )
    return RawDataset(train, test, "idx")


def _read_idx(root: Path, split: str, kind: str, dims: int) -> np.ndarray:
    """Read an IDX array: bytes 0, 0, 8 (uint8), the number of dimensions, each as a big-endian int32, the data."""
    names = [f"{split}-{kind}{dot}idx{dims}-ubyte" for dot in "-."]
    path = find_file(root, *names, *(name + ".gz" for name in names))
    opened = gzip.open if path.suffix == ".gz" else open
    with explain_read_errors(path, "an IDX file"), opened(path, "rb") as file:
        start = file.read(4)
        if start != bytes([0, 0, 8, dims]):
            raise ValueError(f"starts with {start!r}")
        shape = np.frombuffer(file.read(4 * dims), ">i4", dims).tolist()
        size = math.prod(shape)
        if size > free_host_memory():
            raise ValueError(f"{size / 1e9:,.1f} GB do not fit into memory")
        return np.frombuffer(file.read(size + 1), np.uint8).reshape(shape)


def read_svhn(root: Path) -> RawDataset:
    """Read the cropped digits of SVHN (format 2): X uint8 [32, 32, 3, n], y [n, 1] with 10 for the digit 0."""
    return RawDataset(_read_mat(root, "train"), _read_mat(root, "test"), "mat")


def _read_mat(root: Path, split: str) -> RawSplit:
    from scipy.io import loadmat

    path = find_file(root, f"{split}_32x32.mat")
    with explain_read_errors(path, "a MATLAB file with X and y"):
        arrays = loadmat(path, variable_names=["X", "y"])
        images = arrays["X"].transpose(3, 0, 1, 2)
        return RawSplit(arrays["y"].ravel().astype(np.int64) % 10, image_chunks(images))


def read_medmnist(root: Path, name: str) -> RawDataset:
    """Read NAME.npz of MedMNIST; the validation images become training images, as in FedSOL."""
    path = root if root.is_file() else find_file(root, f"{name}.npz")
    check_npz_sizes(path, [f"{split}_{kind}" for split in ("train", "val", "test") for kind in ("images", "labels")])
    with explain_read_errors(path, "a MedMNIST file"), np.load(path, allow_pickle=False) as arrays:
        labels = {split: arrays[f"{split}_labels"].ravel().astype(np.int64) for split in ("train", "val", "test")}
        train = RawSplit(np.concatenate([labels["train"], labels["val"]]), _medmnist_images(path, "train", "val"))
        return RawDataset(train, RawSplit(labels["test"], _medmnist_images(path, "test")), "npz")


def _medmnist_images(path: Path, *splits: str) -> Iterator[np.ndarray]:
    """Yield the images of some splits in chunks, with one split in memory at a time."""
    for split in splits:
        with explain_read_errors(path, "a MedMNIST file"), np.load(path, allow_pickle=False) as arrays:
            images = arrays[f"{split}_images"]
        yield from image_chunks(images)


def read_cifar10(root: Path) -> RawDataset:
    """Read data_batch_1 to data_batch_5 and test_batch of CIFAR-10."""
    train = [find_file(root, f"data_batch_{i}") for i in range(1, 6)]
    test = [find_file(root, "test_batch")]
    return RawDataset(_read_batches(train, b"labels"), _read_batches(test, b"labels"), "python batches")


def read_cifar100(root: Path) -> RawDataset:
    """Read the files train and test of CIFAR-100, with the 100 fine labels."""
    train, test = ([find_file(root, f"cifar-100-python/{split}", split)] for split in ("train", "test"))
    return RawDataset(_read_batches(train, b"fine_labels"), _read_batches(test, b"fine_labels"), "python batches")


def _read_batches(paths: list[Path], key: bytes) -> RawSplit:
    """Read CIFAR batches one after another; `key` is the name of the labels."""
    labels, images = zip(*(_read_batch(path, key) for path in paths), strict=True)
    return RawSplit(np.concatenate(labels), (chunk for batch in images for chunk in image_chunks(batch)))


def _read_batch(path: Path, key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and images [n, 32, 32, 3] of a batch, whose data are uint8 [n, 3072], channel by channel."""
    with explain_read_errors(path, "a CIFAR batch"), open(path, "rb") as file:
        batch = _RestrictedUnpickler(file).load()
        images = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
        return np.array(batch[key], np.int64), images.transpose(0, 2, 3, 1)
