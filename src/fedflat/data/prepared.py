"""Prepared data sets: one safetensors file each, written as a stream and read memory-mapped.

The file holds the tensors y, y_test and (if the data name clients) owner as int64, x and x_test as uint8 [n, c, h, w].
Its metadata, all strings, hold name, classes, source, mean, std, augment and a CRC-32 of everything else. Images are
written in chunks, so memory does not grow with the data set.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from fedflat.data.dataset import Augment, Dataset
from fedflat.errors import UserError
from fedflat.files import replace_file

CHUNK = 512  # images decoded and written at a time
ChannelMoments = tuple[float, ...]  # the mean or the standard deviation of each channel
Advance = Callable[[int], object]  # called with the number of images just written
_HEADER_RESERVE = 1024  # header bytes kept free for mean and std, which are known only after the last image


class RawSplit(NamedTuple):
    """The training or the test split as a reader delivers it.

    Args:
        labels: the labels of all images, whole numbers [n].
        images: the images in chunks uint8 [k, c, h, w], decoded as they are asked for.
        owner: the client of each image, int64 [n], if the data name clients.
    """

    labels: np.ndarray
    images: Iterator[np.ndarray]
    owner: np.ndarray | None = None


class RawDataset(NamedTuple):
    """Both splits as a reader delivers them, and the file format they came in ("idx", "parquet, jpeg", ...)."""

    train: RawSplit
    test: RawSplit
    file_format: str


def cache_folder(cache: Path | None = None) -> Path:
    """Return the given folder, else FEDFLAT_CACHE, else ~/.cache/fedflat."""
    return Path(cache or os.environ.get("FEDFLAT_CACHE") or Path.home() / ".cache" / "fedflat").expanduser()


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents if they do not exist, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(None, folder, f"cannot create this folder ({error.strerror})") from error
    return folder


def prepared_path(name: str, cache: Path | None = None) -> Path:
    """Return the path of the prepared file of a data set of the catalogue, whether or not it exists."""
    return cache_folder(cache) / f"{name}.safetensors"


def prepared_metadata(
    name: str,
    classes: int,
    file_format: str,
    mean: ChannelMoments = (),
    std: ChannelMoments = (),
    augment: Augment | None = None,
) -> dict[str, str]:
    """Return the metadata of a prepared file; an empty mean is measured on the training images during writing."""
    metadata = {"name": name, "classes": str(classes), "source": file_format}
    metadata |= {"mean": json.dumps(mean), "std": json.dumps(std)}
    return metadata | {"augment": json.dumps((augment or Augment())._asdict())}


def write_prepared(
    path: Path, raw: RawDataset, metadata: Mapping[str, str], advance: Advance = lambda images: None
) -> None:
    """Write a prepared file. An incomplete file is never visible under its final name.

    Args:
        path: the file to write; its folder is created.
        raw: the data set.
        metadata: what `prepared_metadata` returned, and further entries.
        advance: called with the number of images in each chunk that was written.

    Raises:
        UserError: labels or images are not as the metadata say, or the file cannot be written.
    """
    _check_labels(raw, metadata)
    first_chunk = next(raw.train.images, np.empty((0, 1, 1, 1), np.uint8))
    shape = first_chunk.shape[1:]
    train = raw.train._replace(images=chain([first_chunk], raw.train.images))
    tensors = _tensor_entries(train, raw.test, shape)
    header_size = -(-len(_header(tensors, metadata, 0)) // 8) * 8 + _HEADER_RESERVE
    with _write_whole(path) as file:
        file.seek(header_size)
        data = _ChecksumWriter(file)
        for numbers in (train.labels, raw.test.labels, train.owner):
            data.write(b"" if numbers is None else numbers.astype("<i8").tobytes())
        histogram = _write_images(data, train, shape, metadata["name"], advance)
        _write_images(data, raw.test, shape, metadata["name"], advance)
        complete = _with_moments(metadata, histogram)
        crc = _header_crc({"__metadata__": complete, **tensors}, data.crc)
        file.seek(0)
        file.write(_header(tensors, complete | {"crc": f"{crc:08x}"}, header_size))


class _ChecksumWriter:
    """Writes to a file and keeps the CRC-32 of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.crc = file, 0

    def write(self, data: bytes | memoryview) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self.file.write(data)


def _header_crc(header: Mapping[str, Any], crc: int) -> int:
    """Continue the CRC-32 of the data with the header, but for the checksum itself and where the data came from."""
    left_out = ("crc", "stamp", "source")
    metadata = {key: value for key, value in header["__metadata__"].items() if key not in left_out}
    return zlib.crc32(json.dumps({**header, "__metadata__": metadata}, sort_keys=True).encode(), crc)


def _check_labels(raw: RawDataset, metadata: Mapping[str, str]) -> None:
    """Raise UserError unless both splits have samples with labels from 0 to classes - 1."""
    name, classes = metadata["name"], int(metadata["classes"])
    for split_name, split in (("training", raw.train), ("test", raw.test)):
        if not len(split.labels):
            raise UserError(None, name, f"no {split_name} images found")
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= classes:
            raise UserError(None, name, f"{split_name} labels {low} to {high} found, but there are {classes} classes")


def _tensor_entries(train: RawSplit, test: RawSplit, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the header entry of each tensor: dtype, shape, offsets. int64 comes first, so that all are aligned."""
    n, m = len(train.labels), len(test.labels)
    owner = {} if train.owner is None else {"owner": ("I64", [n], 8 * n)}
    pixels = int(np.prod(shape))
    sizes = {"y": ("I64", [n], 8 * n), "y_test": ("I64", [m], 8 * m), **owner}
    sizes |= {"x": ("U8", [n, *shape], n * pixels), "x_test": ("U8", [m, *shape], m * pixels)}
    ends = np.cumsum([0] + [entry[2] for entry in sizes.values()]).tolist()
    entries = zip(sizes.items(), ends[:-1], ends[1:], strict=True)
    return {key: {"dtype": d, "shape": s, "data_offsets": [a, b]} for (key, (d, s, _)), a, b in entries}


def _header(tensors: Mapping[str, Any], metadata: Mapping[str, str], size: int) -> bytes:
    """Return length and JSON header of a safetensors file, padded with blanks to `size` bytes in all."""
    text = json.dumps({"__metadata__": dict(metadata), **tensors}).encode()
    text = text.ljust(size - 8)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def _write_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name only when it is complete; UserError if it cannot be written."""
    make_folder(path.parent)
    try:
        with replace_file(path) as file:
            yield file
    except OSError as error:
        raise UserError(None, path, f"cannot be written ({error.strerror or error})") from error


def _write_images(
    file: _ChecksumWriter, split: RawSplit, shape: tuple[int, ...], name: str, advance: Advance
) -> np.ndarray:
    """Write the images and return how often each channel has each of the 256 values, [channels, 256]."""
    written, histogram = 0, np.zeros((shape[0], 256), np.int64)
    for images in split.images:
        if images.shape[1:] != shape or images.dtype != np.uint8:
            other = f"{images.dtype} {images.shape[1:]}"
            problem = f"images must all be uint8 {shape} (channels, height, width), but {other} occurs"
            raise UserError(None, name, problem)
        file.write(np.ascontiguousarray(images).data)
        histogram += np.stack([np.bincount(images[:, c].ravel(), minlength=256) for c in range(shape[0])])
        written += len(images)
        advance(len(images))
    if written != len(split.labels):
        problem = f"{written} images but {len(split.labels)} labels: the files do not belong together"
        raise UserError(None, name, problem)
    return histogram


def _with_moments(metadata: Mapping[str, str], histogram: np.ndarray) -> dict[str, str]:
    """Return the metadata, with mean and std of the training pixels if it states none."""
    if json.loads(metadata["mean"]):
        return dict(metadata)
    mean, std = channel_moments(histogram)
    return {**metadata, "mean": json.dumps(mean), "std": json.dumps(std)}


def channel_moments(histogram: np.ndarray) -> tuple[ChannelMoments, ChannelMoments]:
    """Return mean and standard deviation of each channel, of pixels scaled to [0, 1].

    The standard deviation of a constant channel is given as 1, since it cannot be used to divide.

    Args:
        histogram: how often each channel has each pixel value, [channels, 256].
    """
    values = np.arange(256) / 255
    share = histogram / histogram.sum(1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist())


@contextmanager
def _open_prepared(path: Path) -> Iterator[Any]:
    """Open a prepared file; UserError if it is none, or a pipe or a device, which could be read for ever."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        problem = f"not a prepared data set ({error}); delete it and prepare the set again"
        raise UserError(None, path, problem) from error


def read_prepared(path: Path) -> Dataset:
    """Return the data set in a prepared file; images stay on disk until they are used.

    Raises UserError if the file is damaged. That is checked once, until the file's size or time of change is another;
    files of early versions have no checksum.
    """
    with _open_prepared(path) as file:
        metadata = file.metadata()
        if "crc" in metadata:
            _verify(path, metadata["crc"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        augment = Augment(**json.loads(metadata["augment"]))
        mean, std = (tuple(json.loads(metadata[key])) for key in ("mean", "std"))
        return Dataset(
            name=metadata["name"],
            classes=int(metadata["classes"]),
            mean=mean,
            std=std,
            augment=augment,
            fingerprint=metadata.get("crc", ""),
            **tensors,
        )


def _verify(path: Path, expected: str) -> None:
    """Raise ValueError if the file's checksum is another. NAME.verified remembers the file that was checked last."""
    stat, marker = path.stat(), path.with_suffix(".verified")
    checked = f"{stat.st_size} {stat.st_mtime_ns} {expected}"
    if marker.is_file() and marker.read_text(errors="replace") == checked:
        return
    with open(path, "rb") as file:
        header, crc = json.loads(file.read(int.from_bytes(file.read(8), "little"))), 0
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    if f"{_header_crc(header, crc):08x}" != expected:
        raise ValueError("its checksum is another, so it is damaged")
    with suppress(OSError), replace_file(marker) as file:  # the folder may be read-only
        file.write(checked.encode())


def inspect_prepared(path: Path) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the metadata of a prepared file and the shape of each of its tensors."""
    with _open_prepared(path) as file:
        if not {"name", "classes", "source"} <= set(file.metadata() or ()):
            raise ValueError("its metadata are missing")
        return file.metadata(), {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
