"""The user's own data: folder:PATH, parquet:PATH (decoded once into the cache) and npz:PATH (read as it is)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from fedflat.data.arrays import halves
from fedflat.data.dataset import Dataset
from fedflat.data.download import bar
from fedflat.data.folders import image_folder, number
from fedflat.data.images import reading
from fedflat.data.parquet import parquet
from fedflat.data.prepared import Moments, Source, cache_folder, facts, inspect, moments, read, write
from fedflat.errors import UserError

_DECODED: dict[str, Callable[[Path], Source]] = {"folder": image_folder, "parquet": parquet}


KINDS = (*_DECODED, "npz")


def is_own(name: str) -> bool:
    """Whether `name` has the form KIND:PATH."""
    return ":" in name and name.split(":")[0] in KINDS


def load_own(name: str, cache: Path | None) -> Dataset:
    """The data set KIND:PATH."""
    kind, path = _parse(name)
    return _npz(name, path) if kind == "npz" else read(prepare_own(name, cache, progress=True))


def prepare_own(name: str, cache: Path | None, progress: bool) -> Path:
    """The prepared file of KIND:PATH, made anew where a file below PATH has changed since."""
    kind, root = _parse(name)
    if kind == "npz":
        raise UserError(f"{name}: an npz file needs no preparation, use --dataset {name}")
    path = cache_folder(cache) / f"{kind}-{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.safetensors"
    stamp = _stamp(name, root)
    if not _current(path, stamp):
        found = _DECODED[kind](root)
        classes = 1 + int(max(half.labels.max(initial=0) for half in found[:2]))
        with bar(f"preparing {name}", len(found.train.labels) + len(found.test.labels), progress) as tick:
            write(path, found, facts(name, classes, found.form) | {"stamp": stamp}, tick)
    return path


def _parse(name: str) -> tuple[str, Path]:
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
    return path.exists() and inspect(path)[0].get("stamp") == stamp


def _npz(name: str, path: Path) -> Dataset:
    """Arrays x, y, x_test, y_test and optionally client; uint8 images are normalised by their own mean and std."""
    if not is_zipfile(path):
        raise UserError(f"--dataset {name}: {path} is not an npz file, which numpy.savez writes")
    with reading(path, "an npz file"), np.load(path, allow_pickle=False) as arrays:
        if missing := [key for key in ("x", "y", "x_test", "y_test") if key not in arrays]:
            raise UserError(f"{path}: no array {missing[0]}; needed are x, y, x_test, y_test (and client if you like)")
        x, x_test = (_images(path, arrays[key]) for key in ("x", "x_test"))
        found = halves(path, x, arrays["y"].reshape(-1), x_test, arrays["y_test"].reshape(-1))
        owner = torch.from_numpy(number(arrays["client"].reshape(-1))) if "client" in arrays else None
    if owner is not None and len(owner) != len(found.y):
        raise UserError(f"{path}: client has {len(owner)} entries for {len(found.y)} training samples; give one each")
    mean, std = _moments(found.x)
    return Dataset(name, *found, found.classes, mean, std, owner=owner)


def _images(path: Path, array: np.ndarray) -> np.ndarray:
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


def _moments(x: Tensor) -> tuple[Moments, Moments]:
    """Mean and std of uint8 images; floats are used as they are."""
    if x.dtype != torch.uint8:
        return (0.0,), (1.0,)
    counts = [torch.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])]
    return moments(torch.stack(counts).numpy())
