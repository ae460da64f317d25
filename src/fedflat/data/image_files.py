"""Encoded images (PNG, JPEG, …) in class folders, Landmarks-User-160k or Hugging Face parquet, decoded to uint8."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fedflat.data.dataset import check_labels
from fedflat.data.prepared import CHUNK, RawDataset, RawSplit
from fedflat.errors import UserError

NamedImage = tuple[str, Path | bytes]  # what to call an image in a message, and its file or encoded bytes


class ImageFormat(NamedTuple):
    """What all images of a set share; read off the first one."""

    first: str
    mode: str  # "L" grey or "RGB"
    shape: tuple[int, ...]
    size: int  # the side images are brought to, 0 to take them as they are
    jpeg: bool


@contextmanager
def naming_the_file(name: object, what: str) -> Iterator[None]:
    """One line that names the file for whatever a parser raises; on damaged files they raise nearly anything."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name}: cannot be read as {what}, it may be damaged or incomplete ({reason})") from error


def format_of(name: str, source: Path | bytes, size: int = 0) -> ImageFormat:
    """The form the first image of a set prescribes for all others."""
    with naming_the_file(name, "an image"), _open(source) as image:
        mode = "L" if image.mode in ("1", "L") and not size else "RGB"  # photographs may be grey or in colour
        jpeg = image.format == "JPEG"
        width, height = (size, size) if size else image.size
    return ImageFormat(name, mode, (1 if mode == "L" else 3, height, width), size, jpeg)


def decode_images(images: Iterable[NamedImage], form: ImageFormat) -> Iterator[np.ndarray]:
    """Decode `images` on all cores (Pillow lets go of the interpreter), in order, as uint8 [k, c, h, w]."""
    rest = iter(images)
    with ThreadPoolExecutor() as pool:
        while part := list(islice(rest, CHUNK)):
            yield np.stack(list(pool.map(lambda image: decode_image(image[0], image[1], form), part)))


def decode_image(name: str, source: Path | bytes, form: ImageFormat) -> np.ndarray:
    """One image as uint8 [c, h, w]; with a size: shorter side scaled to it, centre cut out."""
    with naming_the_file(name, "an image"), _open(source) as image:
        _check_depth(name, image, form)
        if form.size:
            image.draft("RGB", (2 * form.size, 2 * form.size))  # JPEG: decode a large photograph at reduced scale
        picture = image.convert(form.mode)
    if form.size:
        picture = ImageOps.fit(picture, (form.size, form.size), Image.Resampling.BICUBIC)
    array = np.asarray(picture)
    array = array[None] if form.mode == "L" else array.transpose(2, 0, 1)
    if array.shape != form.shape:
        raise UserError(
            f"{name}: image is {array.shape[2]}x{array.shape[1]} pixels, but {form.first} is "
            f"{form.shape[2]}x{form.shape[1]}: all images must have one size"
        )
    return array


def _open(source: Path | bytes) -> Image.Image:
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)


def _check_depth(name: str, image: Image.Image, form: ImageFormat) -> None:
    """Refuse what a conversion would spoil silently: colour among grey images, more than 8 bits."""
    if image.mode.startswith(("I", "F")):
        raise UserError(f"{name}: image has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits")
    if form.mode == "L" and image.mode not in ("1", "L"):
        raise UserError(f"{name}: image is in colour, but {form.first} is grey: all images must be of one kind")


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read_image_folder(
    root: Path, size: int = 0, classes: Sequence[str] | None = None, tests: tuple[str, ...] = ("test",)
) -> RawDataset:
    """train/CLASS/* and test/CLASS/* below `root`; classes are numbered in the order of their sorted names."""
    root = find_subfolder(root, "train").parent
    classes = sorted(classes or _classes(root / "train"))
    held_out = next((root / name for name in tests if (root / name).is_dir()), root / tests[0])
    train, test = (_labelled(folder, classes) for folder in (root / "train", held_out))
    return _source(train, test, size, _clients(root, [path for path, _ in train]))


def find_subfolder(root: Path, name: str) -> Path:
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
    with naming_the_file(folder, "a folder"), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if kind(entry) and not entry.name.startswith("."))


def _labelled(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The image files of each class with the class's number."""
    present = _names(folder, os.DirEntry.is_dir)
    if missing := [name for name in classes if name not in present]:
        raise UserError(f"{folder}: no folder for class {missing[0]} ({len(missing)} of {len(classes)} are missing)")
    return [
        (folder / name / file, label) for label, name in enumerate(classes) for file in _files_as_images(folder / name)
    ]


def _files_as_images(folder: Path) -> list[str]:
    found = _names(folder, lambda entry: entry.name.lower().endswith(IMAGE_SUFFIXES))
    if not found:
        raise UserError(f"{folder}: no images (allowed: {', '.join(IMAGE_SUFFIXES)})")
    return found


def _source(
    train: list[tuple[Path, int]], test: list[tuple[Path, int]], size: int, owner: np.ndarray | None
) -> RawDataset:
    form = format_of(str(train[0][0]), train[0][0], size)
    halves = [
        RawSplit(np.array([label for _, label in part]), decode_images(((str(path), path) for path, _ in part), form))
        for part in (train, test)
    ]
    return RawDataset(halves[0]._replace(owner=owner), halves[1], "jpeg files" if form.jpeg else "image files")


def _clients(root: Path, files: list[Path]) -> np.ndarray | None:
    """The client of each training file from clients.json: {"CLASS/FILE": client}."""
    path = root / "clients.json"
    if not path.exists():
        return None
    with naming_the_file(path, "a JSON object of file: client"):
        given = {str(key): str(client) for key, client in json.loads(path.read_text()).items()}
    names = [file.relative_to(root / "train").as_posix() for file in files]
    if wrong := sorted(set(names) ^ set(given)):
        problem = "has no file" if wrong[0] in given else "names no client for"
        raise UserError(f"{path}: {problem} {wrong[0]}; it must name the client of every file below train/")
    return number_clients([given[name] for name in names])


def number_clients(clients: Sequence[object]) -> np.ndarray:
    """Clients numbered from 0 in the order of their sorted names."""
    return np.unique(np.asarray(clients), return_inverse=True)[1].astype(np.int64)


def read_landmarks(root: Path, size: int) -> RawDataset:
    """Landmarks-User-160k (Hsu et al., 2020): federated_train.csv (user_id, image_id, class) and test.csv."""
    tables = [_table(root, name) for name in ("federated_train.csv", "test.csv")]
    with naming_the_file(root / "federated_train.csv", "a table with user_id, image_id and class"):
        owner = number_clients([row["user_id"] for row in tables[0]])
        rows = [[(_photo(root, row["image_id"]), int(row["class"])) for row in table] for table in tables]
    missing = [path for part in rows for path, _ in part if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]}: image not found ({len(missing)} of the images the CSV files name are missing)")
    return _source(rows[0], rows[1], size, owner)


def _table(root: Path, name: str) -> list[dict[str, str]]:
    path = next((p for p in (root / name, root / "landmarks-user-160k" / name) if p.exists()), root / name)
    with naming_the_file(path, "a CSV file"), open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise UserError(f"{path}: the file has no rows")
    return rows


def _photo(root: Path, name: str) -> Path:
    """images/ID.jpg, ID.jpg, or the place it has in Google Landmarks v2: train/a/b/c/abc....jpg."""
    places = (root / "images", root, root / "train" / name[0] / name[1] / name[2])
    return next((place / f"{name}.jpg" for place in places if (place / f"{name}.jpg").exists()), root / f"{name}.jpg")


IMAGE, LABEL, CLIENT = ("image", "img"), ("label", "fine_label"), ("client",)


def parquet_files(root: Path, half: str) -> list[Path]:
    """The parquet files of one half in `root` or one level below, in order."""
    return sorted(root.glob(f"{half}*.parquet")) or sorted(root.glob(f"*/{half}*.parquet"))


def read_parquet(root: Path) -> RawDataset:
    """train*.parquet and test*.parquet below `root`."""
    halves = [parquet_files(root, half) for half in ("train", "test")]
    for half, paths in zip(("train", "test"), halves, strict=True):
        if not paths:
            raise UserError(f"{root}: no file {half}*.parquet")
    if (first := next(_column_images(halves[0]), None)) is None:
        raise UserError(f"{halves[0][0]}: the file has no rows")
    form = format_of(*first)
    train, test = (RawSplit(_labels(paths), decode_images(_column_images(paths), form)) for paths in halves)
    return RawDataset(train._replace(owner=_owner(halves[0])), test, "parquet, jpeg" if form.jpeg else "parquet")


def _column(path: Path, names: Sequence[str]) -> str | None:
    """The name the column has in this file."""
    from pyarrow.parquet import read_schema

    with naming_the_file(path, "a parquet file"):
        present = read_schema(path).names
    return next((name for name in names if name in present), None)


def _needed(path: Path, names: Sequence[str]) -> str:
    column = _column(path, names)
    if column is None:
        raise UserError(f"{path}: no column {' or '.join(names)}")
    return column


def _labels(paths: list[Path]) -> np.ndarray:
    return np.concatenate([_numbers(path, _needed(path, LABEL)) for path in paths])


def _numbers(path: Path, column: str) -> np.ndarray:
    values = _values(path, column)
    return check_labels(f"{path}: column {column}", values or np.empty(0, np.int64)).numpy()


def _values(path: Path, column: str) -> list:
    from pyarrow.parquet import read_table

    with naming_the_file(path, "a parquet file"):
        return read_table(path, columns=[column])[column].to_pylist()


def _owner(paths: list[Path]) -> np.ndarray | None:
    """The numbered clients, where the files name them."""
    columns = [_column(path, CLIENT) for path in paths]
    if None in columns:
        return None
    return number_clients(
        [str(v) for path, column in zip(paths, columns, strict=True) for v in _values(path, str(column))]
    )


def _column_images(paths: list[Path]) -> Iterator[NamedImage]:
    """Row by row: the encoded image, stored as bytes or as a struct with the field bytes."""
    from pyarrow.parquet import ParquetFile

    for path in paths:
        column = _needed(path, IMAGE)
        with naming_the_file(path, "a parquet file"), ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(CHUNK, columns=[column]) for row in batch.column(0).to_pylist())
            for i, row in enumerate(rows):
                yield f"{path} row {i}", _encoded(row)


def _encoded(row: object) -> bytes:
    data = row.get("bytes") if isinstance(row, dict) else row
    if not isinstance(data, bytes):
        raise ValueError(f"an image must be bytes or a struct with bytes, not {type(data).__name__}")
    return data
