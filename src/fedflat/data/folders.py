"""Data sets that are folders of image files: train/CLASS/* and test/CLASS/*, and Landmarks-User-160k."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedflat.data.images import chunks, form_of, reading
from fedflat.data.prepared import Source, Split
from fedflat.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def image_folder(
    root: Path, size: int = 0, classes: Sequence[str] | None = None, tests: tuple[str, ...] = ("test",)
) -> Source:
    """train/CLASS/* and test/CLASS/* below `root`; classes are numbered in the order of their sorted names."""
    root = subfolder(root, "train").parent
    classes = sorted(classes or _classes(root / "train"))
    held_out = next((root / name for name in tests if (root / name).is_dir()), root / tests[0])
    train, test = (_labelled(folder, classes) for folder in (root / "train", held_out))
    return _source(train, test, size, _clients(root, [path for path, _ in train]))


def subfolder(root: Path, name: str) -> Path:
    """The folder `name` in `root` or one level below it."""
    found = [path for pattern in (name, f"*/{name}") for path in sorted(root.glob(pattern)) if path.is_dir()]
    if not found:
        raise UserError(f"{root}: no folder {name}/ with one folder of images per class")
    return found[0]


def _classes(folder: Path) -> list[str]:
    found = _names(folder, os.DirEntry.is_dir)
    if not found:
        raise UserError(f"{folder}: empty; it must hold one folder of images per class")
    return found


def _names(folder: Path, kind: Callable[[os.DirEntry], bool]) -> list[str]:
    with reading(folder, "a folder"), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if kind(entry) and not entry.name.startswith("."))


def _labelled(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The image files of each class with the class's number."""
    present = _names(folder, os.DirEntry.is_dir)
    if missing := [name for name in classes if name not in present]:
        raise UserError(f"{folder}: no folder for class {missing[0]} ({len(missing)} of {len(classes)} are missing)")
    return [(folder / name / file, label) for label, name in enumerate(classes) for file in _images(folder / name)]


def _images(folder: Path) -> list[str]:
    found = _names(folder, lambda entry: entry.name.lower().endswith(SUFFIXES))
    if not found:
        raise UserError(f"{folder}: no images (allowed: {', '.join(SUFFIXES)})")
    return found


def _source(train: list[tuple[Path, int]], test: list[tuple[Path, int]], size: int, owner: np.ndarray | None) -> Source:
    form = form_of(str(train[0][0]), train[0][0], size)
    halves = [
        Split(np.array([label for _, label in part]), chunks(((str(path), path) for path, _ in part), form))
        for part in (train, test)
    ]
    return Source(halves[0]._replace(owner=owner), halves[1], "jpeg files" if form.jpeg else "image files")


def _clients(root: Path, files: list[Path]) -> np.ndarray | None:
    """The client of each training file from clients.json: {"CLASS/FILE": client}."""
    path = root / "clients.json"
    if not path.exists():
        return None
    with reading(path, "a JSON object of file: client"):
        given = {str(key): str(client) for key, client in json.loads(path.read_text()).items()}
    names = [file.relative_to(root / "train").as_posix() for file in files]
    if wrong := sorted(set(names) ^ set(given)):
        problem = "has no file" if wrong[0] in given else "names no client for"
        raise UserError(f"{path}: {problem} {wrong[0]}; it must name the client of every file below train/")
    return number([given[name] for name in names])


def number(clients: Sequence[object]) -> np.ndarray:
    """Clients numbered from 0 in the order of their sorted names."""
    return np.unique(np.asarray(clients), return_inverse=True)[1].astype(np.int64)


def landmarks(root: Path, size: int) -> Source:
    """Landmarks-User-160k (Hsu et al., 2020): federated_train.csv (user_id, image_id, class) and test.csv."""
    tables = [_table(root, name) for name in ("federated_train.csv", "test.csv")]
    with reading(root / "federated_train.csv", "a table with user_id, image_id and class"):
        owner = number([row["user_id"] for row in tables[0]])
        rows = [[(_photo(root, row["image_id"]), int(row["class"])) for row in table] for table in tables]
    missing = [path for part in rows for path, _ in part if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]}: image not found ({len(missing)} of the images the CSV files name are missing)")
    return _source(rows[0], rows[1], size, owner)


def _table(root: Path, name: str) -> list[dict[str, str]]:
    path = next((p for p in (root / name, root / "landmarks-user-160k" / name) if p.exists()), root / name)
    with reading(path, "a CSV file"), open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise UserError(f"{path}: the file has no rows")
    return rows


def _photo(root: Path, name: str) -> Path:
    """images/ID.jpg, ID.jpg, or the place it has in Google Landmarks v2: train/a/b/c/abc....jpg."""
    places = (root / "images", root, root / "train" / name[0] / name[1] / name[2])
    return next((place / f"{name}.jpg" for place in places if (place / f"{name}.jpg").exists()), root / f"{name}.jpg")
