"""Data sets by name: the embedded digits, prepared sets from the cache, and your own (folder:, npz:, parquet:)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from fedflat.data.catalogue import DATASETS
from fedflat.data.dataset import Dataset, check_arrays
from fedflat.data.image_files import naming_the_file, number_clients, read_image_folder, read_parquet
from fedflat.data.prepared import (
    ChannelMoments,
    RawDataset,
    cache_folder,
    channel_moments,
    inspect_prepared,
    prepared_metadata,
    prepared_path,
    read_prepared,
    write_prepared,
)
from fedflat.errors import UserError, near_miss, only_in_python
from fedflat.progress import download_bar

_DECODED: dict[str, Callable[[Path], RawDataset]] = {"folder": read_image_folder, "parquet": read_parquet}


OWN_KINDS = (*_DECODED, "npz")


def is_own_data(name: str) -> bool:
    """Whether `name` has the form KIND:PATH."""
    return ":" in name and name.split(":")[0] in OWN_KINDS


def load_own_data(name: str, cache: Path | None) -> Dataset:
    """The data set KIND:PATH."""
    kind, path = _split_name(name)
    return _npz(name, path) if kind == "npz" else read_prepared(prepare_own_data(name, cache, progress=True))


def prepare_own_data(name: str, cache: Path | None, progress: bool) -> Path:
    """The prepared file of KIND:PATH, made anew where a file below PATH has changed since."""
    kind, root = _split_name(name)
    if kind == "npz":
        raise UserError(f"{name}: an npz file needs no preparation, use --dataset {name}")
    path = cache_folder(cache) / f"{kind}-{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.safetensors"
    stamp = _stamp(name, root)
    if not _current(path, stamp):
        found = _DECODED[kind](root)
        classes = 1 + int(max(half.labels.max(initial=0) for half in found[:2]))
        with download_bar(f"preparing {name}", len(found.train.labels) + len(found.test.labels), progress) as tick:
            write_prepared(path, found, prepared_metadata(name, classes, found.form) | {"stamp": stamp}, tick)
    return path


def _split_name(name: str) -> tuple[str, Path]:
    """KIND and PATH, which must exist."""
    kind, _, path = name.partition(":")
    root = Path(path).expanduser().resolve()
    if not path or not (root.is_file() if kind == "npz" else root.is_dir()):
        relative = path and not Path(path).expanduser().is_absolute()
        where = f" in {Path.cwd()}; a relative path is meant from where the command is started" if relative else ""
        wanted = f"{'file' if kind == 'npz' else 'folder'} {path or '(empty)'}"
        raise UserError(f"--dataset {name}: there is no {wanted}{where}")
    return kind, root


def _stamp(name: str, root: Path) -> str:
    """A hash of names, sizes and modification times of the files below `root`, and of what clients.json says."""
    stamp = hashlib.sha256()
    try:
        for path in sorted(_files(str(root))):
            stat = os.stat(path)
            stamp.update(os.fsencode(f"{path.removeprefix(str(root))}\0{stat.st_size}\0{stat.st_mtime_ns}\0"))
            if os.path.basename(path) == "clients.json":
                stamp.update(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"--dataset {name}: {error.filename} cannot be read ({error.strerror})") from error
    return stamp.hexdigest()


def _files(folder: str, depth: int = 4) -> Iterator[str]:
    """The files that readers may find: as deep as FOLDER/train/CLASS/FILE, links followed, without hidden ones."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                yield entry.path
            elif depth > 1:
                yield from _files(entry.path, depth - 1)


def _current(path: Path, stamp: str) -> bool:
    """Whether the prepared file was made from files with that stamp."""
    return path.exists() and inspect_prepared(path)[0].get("stamp") == stamp


def _npz(name: str, path: Path) -> Dataset:
    """Arrays x, y, x_test, y_test and optionally client; uint8 images are normalised by their own mean and std."""
    if not is_zipfile(path):
        raise UserError(f"--dataset {name}: {path} is not an npz file, which numpy.savez writes")
    with naming_the_file(path, "an npz file"), np.load(path, allow_pickle=False) as arrays:
        if missing := [key for key in ("x", "y", "x_test", "y_test") if key not in arrays]:
            raise UserError(f"{path}: no array {missing[0]}; needed are x, y, x_test, y_test (and client if you like)")
        x, x_test = (_as_images(path, arrays[key]) for key in ("x", "x_test"))
        found = check_arrays(path, x, arrays["y"].reshape(-1), x_test, arrays["y_test"].reshape(-1))
        owner = torch.from_numpy(number_clients(arrays["client"].reshape(-1))) if "client" in arrays else None
    if owner is not None and len(owner) != len(found.y):
        raise UserError(f"{path}: client has {len(owner)} entries for {len(found.y)} training samples; give one each")
    mean, std = _moments(found.x)
    return Dataset(name, *found, found.classes, mean, std, owner=owner)


def _as_images(path: Path, array: np.ndarray) -> np.ndarray:
    """uint8 images as [n, c, h, w], given so, as [n, h, w] or as [n, h, w, c]; other samples as they are."""
    if array.dtype != np.uint8:
        return array
    if array.ndim == 4 and array.shape[-1] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    array = array[:, None] if array.ndim == 3 else array
    if array.ndim != 4:
        raise UserError(
            f"{path}: uint8 images have shape {array.shape}; allowed are [n, c, h, w], [n, h, w], [n, h, w, c]"
        )
    return array


def _moments(x: Tensor) -> tuple[ChannelMoments, ChannelMoments]:
    """Mean and std of uint8 images; floats are used as they are."""
    if x.dtype != torch.uint8:
        return (0.0,), (1.0,)
    counts = [torch.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])]
    return channel_moments(torch.stack(counts).numpy())


DIGITS_MEAN, DIGITS_STD = 0.305434, 0.375957  # of the training pixels


def load_dataset(name: str, cache: Path | None = None) -> Dataset:
    """The data set `name`: digits, a prepared set, or folder:PATH, npz:PATH, parquet:PATH."""
    if name == "digits":
        return _digits()
    if is_own_data(name):
        return load_own_data(name, cache)
    only_in_python("--dataset", name)
    if name not in DATASETS:
        known = ["digits", *DATASETS, *(f"{kind}:PATH" for kind in OWN_KINDS)]
        raise UserError(f"--dataset {name}: unknown data set{near_miss(name, known)}; allowed: {', '.join(known)}")
    path = prepared_path(name, cache)
    if not path.exists():
        raise UserError(f"--dataset {name}: not prepared in {path.parent}; run: fedflat data prepare {name}")
    return read_prepared(path)


def _digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, one in five of each class for testing."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    parts = train_test_split(pixels, labels, test_size=0.2, random_state=0, stratify=labels)
    x, x_test, y, y_test = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
    return Dataset("digits", x, y.long(), x_test, y_test.long(), 10, (DIGITS_MEAN,), (DIGITS_STD,))


class CatalogueRow(NamedTuple):
    """One line of `fedflat data list`; numbers are None where a set is not prepared."""

    name: str
    prepared: bool
    train: int | None
    test: int | None
    shape: tuple[int, ...] | None
    classes: int
    bytes: int
    path: Path | None
    source: str


def list_datasets(cache: Path | None = None) -> list[CatalogueRow]:
    """Every known set, and the user's own that lie prepared in the cache."""
    named = {name: prepared_path(name, cache) for name in DATASETS}
    own = [path for kind in OWN_KINDS for path in sorted(cache_folder(cache).glob(f"{kind}-*.safetensors"))]
    digits = CatalogueRow("digits", True, 1437, 360, (1, 8, 8), 10, 0, None, "embedded")
    return [
        digits,
        *(_catalogue_row(path) if path.exists() else _missing(name) for name, path in named.items()),
        *map(_catalogue_row, own),
    ]


def _missing(name: str) -> CatalogueRow:
    return CatalogueRow(name, False, None, None, None, DATASETS[name].classes, 0, None, "")


def _catalogue_row(path: Path) -> CatalogueRow:
    about, shapes = inspect_prepared(path)
    sizes = (shapes["x"][0], shapes["x_test"][0], tuple(shapes["x"][1:]))
    return CatalogueRow(about["name"], True, *sizes, int(about["classes"]), path.stat().st_size, path, about["source"])
