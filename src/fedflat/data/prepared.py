"""Prepared data sets: one safetensors file each, written as a stream and read memory-mapped.

The file holds y, y_test and (natural clients) owner as int64, x and x_test as uint8 [n, c, h, w], and the set's facts
as string metadata. Images pass through in chunks, so memory does not grow with the data set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from fedflat.data.dataset import Augment, Dataset
from fedflat.errors import UserError

CHUNK = 512  # images decoded and written at a time


_ROOM = 1024  # header bytes kept free for the mean and std, which are known only at the end of the stream


Tick = Callable[[int], object]


ChannelMoments = tuple[float, ...]


class RawSplit(NamedTuple):
    """Half a data set on its way to disk: all labels, and the images in chunks uint8 [k, c, h, w]."""

    labels: np.ndarray
    images: Iterator[np.ndarray]
    owner: np.ndarray | None = None


class RawDataset(NamedTuple):
    """What a reader found: training and test half, and the form they came in."""

    train: RawSplit
    test: RawSplit
    form: str


def cache_folder(cache: Path | None = None) -> Path:
    """The given folder, else FEDFLAT_CACHE, else ~/.cache/fedflat."""
    return Path(cache or os.environ.get("FEDFLAT_CACHE") or Path.home() / ".cache" / "fedflat").expanduser()


def make_folder(folder: Path) -> Path:
    """`folder`, created where it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder}: {error.strerror}") from error
    return folder


def prepared_path(name: str, cache: Path | None = None) -> Path:
    """Where the prepared file of a named set lies."""
    return cache_folder(cache) / f"{name}.safetensors"


def prepared_metadata(
    name: str,
    classes: int,
    form: str,
    mean: ChannelMoments = (),
    std: ChannelMoments = (),
    augment: Augment | None = None,
) -> dict[str, str]:
    """The metadata of a prepared file; an empty mean is measured on the training images while they are written."""
    found = {"name": name, "classes": str(classes), "source": form, "mean": json.dumps(mean), "std": json.dumps(std)}
    return found | {"augment": json.dumps((augment or Augment())._asdict())}


def write_prepared(path: Path, source: RawDataset, about: Mapping[str, str], tick: Tick = lambda images: None) -> None:
    """Stream `source` into the prepared file at `path`; `tick` hears of the images written."""
    _check_labels(source, about)
    first = next(source.train.images, np.empty((0, 1, 1, 1), np.uint8))
    train = source.train._replace(images=chain([first], source.train.images))
    tensors = _layout(train, source.test, first.shape[1:])
    room = -(-len(_header(tensors, about, 0)) // 8) * 8 + _ROOM
    with _atomically(path) as file:
        file.seek(room)
        for labels in (train.labels, source.test.labels, train.owner):
            file.write(b"" if labels is None else labels.astype("<i8").tobytes())
        histogram = _append(file, train, first.shape[1:], about["name"], tick)
        _append(file, source.test, first.shape[1:], about["name"], tick)
        file.seek(0)
        file.write(_header(tensors, _measured(about, histogram), room))


def _check_labels(source: RawDataset, about: Mapping[str, str]) -> None:
    """Both halves have samples, and labels 0 to classes - 1."""
    for half, split in (("training", source.train), ("test", source.test)):
        if not len(split.labels):
            raise UserError(f"{about['name']}: no {half} images found")
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= int(about["classes"]):
            raise UserError(
                f"{about['name']}: {half} labels {low} to {high} found, but there are {about['classes']} classes"
            )


def _layout(train: RawSplit, test: RawSplit, shape: tuple[int, ...]) -> dict[str, Any]:
    """Name, dtype, shape and place of each tensor; int64 first, so that all are aligned."""
    n, m = len(train.labels), len(test.labels)
    owner = {} if train.owner is None else {"owner": ("I64", [n], 8 * n)}
    size = int(np.prod(shape))
    sizes = {"y": ("I64", [n], 8 * n), "y_test": ("I64", [m], 8 * m), **owner}
    sizes |= {"x": ("U8", [n, *shape], n * size), "x_test": ("U8", [m, *shape], m * size)}
    ends = np.cumsum([0] + [entry[2] for entry in sizes.values()]).tolist()
    places = zip(sizes.items(), ends[:-1], ends[1:], strict=True)
    return {k: {"dtype": d, "shape": s, "data_offsets": [a, b]} for (k, (d, s, _)), a, b in places}


def _header(tensors: Mapping[str, Any], about: Mapping[str, str], room: int) -> bytes:
    """Length and JSON header of a safetensors file, padded with blanks to `room` bytes in all."""
    text = json.dumps({"__metadata__": dict(about), **tensors}).encode()
    text = text.ljust(room - 8)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def _atomically(path: Path) -> Iterator[BinaryIO]:
    """A file under a temporary name in the same folder that takes its name only when complete."""
    temporary = make_folder(path.parent) / f".{path.name}.{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _append(file: BinaryIO, split: RawSplit, shape: tuple[int, ...], name: str, tick: Tick) -> np.ndarray:
    """Write the images; how often each channel has each of the 256 values."""
    written, histogram = 0, np.zeros((shape[0], 256), np.int64)
    for images in split.images:
        if images.shape[1:] != shape or images.dtype != np.uint8:
            found = f"{images.dtype} {images.shape[1:]}"
            raise UserError(f"{name}: images must all be uint8 {shape} (channels, height, width), but {found} occurs")
        file.write(np.ascontiguousarray(images).data)
        histogram += np.stack([np.bincount(images[:, c].ravel(), minlength=256) for c in range(shape[0])])
        written += len(images)
        tick(len(images))
    if written != len(split.labels):
        raise UserError(f"{name}: {written} images but {len(split.labels)} labels: the files do not belong together")
    return histogram


def _measured(about: Mapping[str, str], histogram: np.ndarray) -> dict[str, str]:
    """`about`, with mean and std of the training pixels where it states none."""
    if json.loads(about["mean"]):
        return dict(about)
    mean, std = channel_moments(histogram)
    return {**about, "mean": json.dumps(mean), "std": json.dumps(std)}


def channel_moments(histogram: np.ndarray) -> tuple[ChannelMoments, ChannelMoments]:
    """Mean and standard deviation per channel of pixels in [0, 1]; 1 for a constant channel, which cannot be scaled."""
    values = np.arange(256) / 255
    share = histogram / histogram.sum(1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A prepared file, or one line that says what to do with what is not one."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a prepared data set ({error}); delete it and prepare the set again") from error


def read_prepared(path: Path) -> Dataset:
    """The prepared data set at `path`; images stay on disk until they are used."""
    with _opened(path) as file:
        about = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        augment = Augment(**json.loads(about["augment"]))
        mean, std = (tuple(json.loads(about[key])) for key in ("mean", "std"))
        return Dataset(
            name=about["name"], classes=int(about["classes"]), mean=mean, std=std, augment=augment, **tensors
        )


def inspect_prepared(path: Path) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Metadata of the prepared file and the shape of each of its tensors."""
    with _opened(path) as file:
        if not {"name", "classes", "source"} <= set(file.metadata() or ()):
            raise ValueError("it lacks the metadata of one")
        return file.metadata(), {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
