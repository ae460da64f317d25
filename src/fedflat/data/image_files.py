"""Readers of encoded images (PNG, JPEG, …): class folders, Landmarks-User-160k and Hugging Face parquet files.

Images are decoded to uint8 arrays [channels, height, width] of one size.
"""

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

from fedflat.data.arrays import check_labels
from fedflat.data.prepared import CHUNK, RawDataset, RawSplit
from fedflat.errors import UserError
from fedflat.files import disk_failed

NamedImage = tuple[str, Path | bytes]  # what messages call an image, and its file or encoded bytes
LabelledFile = tuple[Path, int]
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_IMAGE_COLUMNS, _LABEL_COLUMNS, _CLIENT_COLUMNS = ("image", "img"), ("label", "fine_label"), ("client",)


class ImageFormat(NamedTuple):
    """What all images of a data set have in common, as read from the first one.

    Args:
        first: what messages call the first image.
        mode: "L" for grey images, "RGB" for colour.
        shape: channels, height, width.
        size: side in pixels to which images are scaled and cropped; 0 if they are taken as they are.
        jpeg: whether the images are JPEG files.
    """

    first: str
    mode: str
    shape: tuple[int, ...]
    size: int
    jpeg: bool


@contextmanager
def explain_read_errors(name: object, kind: str) -> Iterator[None]:
    """Turn whatever a parser raises into a UserError that names the file; damaged files make them raise anything.

    Args:
        name: the file.
        kind: what it should be, such as "an image".
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if disk_failed(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        problem = f"cannot be read as {kind}, it may be damaged or incomplete ({reason})"
        raise UserError(None, name, problem) from error


def check_regular(path: Path) -> Path:
    """Return the path; raise UserError if it is a pipe, a socket or a device, which could be read for ever."""
    if path.exists() and not path.is_file():
        raise UserError(None, path, "is not a regular file, but a folder, a pipe, a socket or a device")
    return path


def read_image_format(name: str, source: Path | bytes, size: int = 0) -> ImageFormat:
    """Return the format that the first image of a data set prescribes for all others."""
    with explain_read_errors(name, "an image"), _open_image(source) as image:
        mode = "L" if image.mode in ("1", "L") and not size else "RGB"  # photographs may be grey or in colour
        jpeg = image.format == "JPEG"
        width, height = (size, size) if size else image.size
    return ImageFormat(name, mode, (1 if mode == "L" else 3, height, width), size, jpeg)


def decode_images(images: Iterable[NamedImage], image_format: ImageFormat) -> Iterator[np.ndarray]:
    """Decode images in order, as chunks uint8 [k, c, h, w], on all cores (Pillow releases the interpreter lock)."""
    rest = iter(images)
    with ThreadPoolExecutor() as pool:
        while chunk := list(islice(rest, CHUNK)):
            yield np.stack(list(pool.map(lambda image: decode_image(image[0], image[1], image_format), chunk)))


def decode_image(name: str, source: Path | bytes, image_format: ImageFormat) -> np.ndarray:
    """Return one image as uint8 [c, h, w]. With a size, the shorter side is scaled to it and the centre is kept."""
    size = image_format.size
    with explain_read_errors(name, "an image"), _open_image(source) as image:
        _check_mode(name, image, image_format)
        if size:
            image.draft("RGB", (2 * size, 2 * size))  # JPEG: decode a large photograph at reduced scale
        picture = image.convert(image_format.mode)
    if size:
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
    array = np.asarray(picture)
    array = array[None] if image_format.mode == "L" else array.transpose(2, 0, 1)
    if array.shape != image_format.shape:
        found, wanted = (f"{width}x{height}" for _, height, width in (array.shape, image_format.shape))
        problem = f"image is {found} pixels, but {image_format.first} is {wanted}: all images must have one size"
        raise UserError(None, name, problem)
    return array


def _open_image(source: Path | bytes) -> Image.Image:
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else check_regular(source))


def _check_mode(name: str, image: Image.Image, image_format: ImageFormat) -> None:
    """Raise UserError if a conversion would lose data silently: more than 8 bits, or colour among grey images."""
    if image.mode.startswith(("I", "F")):
        problem = f"image has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits"
        raise UserError(None, name, problem)
    if image_format.mode == "L" and image.mode not in ("1", "L"):
        problem = f"image is in colour, but {image_format.first} is grey: all images must be of one kind"
        raise UserError(None, name, problem)


def read_image_folder(
    root: Path, size: int = 0, classes: Sequence[str] | None = None, tests: tuple[str, ...] = ("test",)
) -> RawDataset:
    """Read train/CLASS/* and test/CLASS/* in `root` or one level below; labels follow the sorted class names.

    Args:
        root: the folder; with a file clients.json it names its clients.
        size: side in pixels to which photographs are scaled and cropped; 0 if all images have one size.
        classes: the class folders to read; all unless given.
        tests: names that the folder of test images may have; the first that exists is read.
    """
    root = find_subfolder(root, "train").parent
    classes = sorted(classes or _class_folders(root / "train"))
    test_folder = next((root / name for name in tests if (root / name).is_dir()), root / tests[0])
    train, test = (_labelled_files(folder, classes) for folder in (root / "train", test_folder))
    return _decoded(train, test, size, _read_clients(root, [path for path, _ in train]))


def find_subfolder(root: Path, name: str) -> Path:
    """Return the folder `name` in `root` or one level below it."""
    folders = [path for pattern in (name, f"*/{name}") for path in sorted(root.glob(pattern)) if path.is_dir()]
    if not folders:
        raise UserError(None, root, f"no folder {name}/ with one folder of images per class")
    return folders[0]


def _class_folders(folder: Path) -> list[str]:
    names = _sorted_names(folder, os.DirEntry.is_dir)
    if not names:
        raise UserError(None, folder, "empty; it must hold one folder of images per class")
    return names


def _sorted_names(folder: Path, wanted: Callable[[os.DirEntry], bool]) -> list[str]:
    """Return the names of the wanted entries of a folder, without hidden ones."""
    with explain_read_errors(folder, "a folder"), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if wanted(entry) and not entry.name.startswith("."))


def _labelled_files(folder: Path, classes: Sequence[str]) -> list[LabelledFile]:
    """Return the image files of each class with the number of the class."""
    present = _sorted_names(folder, os.DirEntry.is_dir)
    if missing := [name for name in classes if name not in present]:
        problem = f"no folder for class {missing[0]} ({len(missing)} of {len(classes)} are missing)"
        raise UserError(None, folder, problem)
    return [(folder / name / file, label) for label, name in enumerate(classes) for file in _image_names(folder / name)]


def _image_names(folder: Path) -> list[str]:
    names = _sorted_names(folder, lambda entry: entry.name.lower().endswith(IMAGE_SUFFIXES))
    if not names:
        raise UserError(None, folder, f"no images (allowed: {', '.join(IMAGE_SUFFIXES)})")
    return names


def _decoded(train: list[LabelledFile], test: list[LabelledFile], size: int, owner: np.ndarray | None) -> RawDataset:
    """Return the splits; their images are decoded as they are asked for."""
    first = train[0][0]
    image_format = read_image_format(str(first), first, size)
    train_split, test_split = (
        RawSplit(
            np.array([label for _, label in files]),
            decode_images(((str(path), path) for path, _ in files), image_format),
        )
        for files in (train, test)
    )
    file_format = "jpeg files" if image_format.jpeg else "image files"
    return RawDataset(train_split._replace(owner=owner), test_split, file_format)


def _read_clients(root: Path, files: list[Path]) -> np.ndarray | None:
    """Return the client of each training file from clients.json: {"CLASS/FILE": client}; None without that file."""
    path = root / "clients.json"
    if not path.exists():
        return None
    with explain_read_errors(path, "a JSON object of file: client"):
        text = check_regular(path).read_text()
        clients = {str(file): str(client) for file, client in json.loads(text).items()}
    names = [file.relative_to(root / "train").as_posix() for file in files]
    if wrong := sorted(set(names) ^ set(clients)):
        problem = "has no file" if wrong[0] in clients else "names no client for"
        raise UserError(None, path, f"{problem} {wrong[0]}; it must name the client of every file below train/")
    return number_clients([clients[name] for name in names])


def number_clients(clients: Sequence[object] | np.ndarray) -> np.ndarray:
    """Number clients from 0 in the order of their sorted names; returns the number of each entry, int64."""
    return np.unique(np.asarray(clients), return_inverse=True)[1].astype(np.int64)


def number_test_clients(
    test_clients: Sequence[object] | np.ndarray, clients: Sequence[object] | np.ndarray
) -> np.ndarray:
    """Return the number of each entry of `test_clients` among `clients`, as `number_clients` numbers them; -1 if none.

    Args:
        test_clients: the client of each test sample.
        clients: the client of each training sample.
    """
    numbers = dict(zip(np.asarray(clients).tolist(), number_clients(clients).tolist(), strict=True))
    return np.array([numbers.get(name, -1) for name in np.asarray(test_clients).tolist()], dtype=np.int64)


def read_landmarks(root: Path, size: int) -> RawDataset:
    """Read Landmarks-User-160k (Hsu et al., 2020): federated_train.csv (user_id, image_id, class) and test.csv.

    Args:
        root: the folder with the tables and the photographs.
        size: side in pixels to which photographs are scaled and cropped.
    """
    tables = [_read_csv(root, name) for name in ("federated_train.csv", "test.csv")]
    with explain_read_errors(root / "federated_train.csv", "a table with user_id, image_id and class"):
        owner = number_clients([row["user_id"] for row in tables[0]])
        train, test = ([(_photo_path(root, row["image_id"]), int(row["class"])) for row in table] for table in tables)
    if missing := [path for path, _ in (*train, *test) if not path.exists()]:
        problem = f"image not found ({len(missing)} of the images the CSV files name are missing)"
        raise UserError(None, missing[0], problem)
    return _decoded(train, test, size, owner)


def _read_csv(root: Path, name: str) -> list[dict[str, str]]:
    path = next((p for p in (root / name, root / "landmarks-user-160k" / name) if p.exists()), root / name)
    with explain_read_errors(path, "a CSV file"), open(check_regular(path), newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise UserError(None, path, "the file has no rows")
    return rows


def _photo_path(root: Path, name: str) -> Path:
    """Return images/ID.jpg, ID.jpg, or the path in Google Landmarks v2: train/a/b/c/abc....jpg."""
    folders = (root / "images", root, root / "train" / name[0] / name[1] / name[2])
    paths = [folder / f"{name}.jpg" for folder in folders]
    return next((path for path in paths if path.exists()), root / f"{name}.jpg")


def parquet_files(root: Path, split: str) -> list[Path]:
    """Return the parquet files of a split ("train" or "test") in `root` or one level below, in order."""
    files = sorted(root.glob(f"{split}*.parquet")) or sorted(root.glob(f"*/{split}*.parquet"))
    return [check_regular(file) for file in files]


def read_parquet(root: Path) -> RawDataset:
    """Read train*.parquet and test*.parquet in `root` or one level below.

    The columns, in the form of Hugging Face, are image or img (encoded bytes, or a struct with the field bytes), label
    or fine_label (whole numbers from 0), and optionally client.
    """
    train_files, test_files = (parquet_files(root, split) for split in ("train", "test"))
    for split, files in (("train", train_files), ("test", test_files)):
        if not files:
            raise UserError(None, root, f"no file {split}*.parquet")
    if (first := next(_encoded_images(train_files), None)) is None:
        raise UserError(None, train_files[0], "the file has no rows")
    image_format = read_image_format(*first)
    train, test = (
        RawSplit(_read_labels(files), decode_images(_encoded_images(files), image_format))
        for files in (train_files, test_files)
    )
    file_format = "parquet, jpeg" if image_format.jpeg else "parquet"
    return RawDataset(train._replace(owner=_read_client_column(train_files)), test, file_format)


def _find_column(path: Path, names: Sequence[str]) -> str | None:
    """Return the first of `names` that is a column of the file."""
    from pyarrow.parquet import read_schema

    with explain_read_errors(path, "a parquet file"):
        present = read_schema(path).names
    return next((name for name in names if name in present), None)


def _require_column(path: Path, names: Sequence[str]) -> str:
    column = _find_column(path, names)
    if column is None:
        raise UserError(None, path, f"no column {' or '.join(names)}")
    return column


def _read_labels(paths: list[Path]) -> np.ndarray:
    labels = []
    for path in paths:
        column = _require_column(path, _LABEL_COLUMNS)
        values = _read_column(path, column) or np.empty(0, np.int64)
        labels.append(check_labels(path, f"column {column}", values).numpy())
    return np.concatenate(labels)


def _read_column(path: Path, column: str) -> list:
    from pyarrow.parquet import read_table

    with explain_read_errors(path, "a parquet file"):
        return read_table(path, columns=[column])[column].to_pylist()


def _read_client_column(paths: list[Path]) -> np.ndarray | None:
    """Return the numbered clients if all files name them."""
    columns = [_find_column(path, _CLIENT_COLUMNS) for path in paths]
    if None in columns:
        return None
    return number_clients(
        [str(v) for path, column in zip(paths, columns, strict=True) for v in _read_column(path, str(column))]
    )


def _encoded_images(paths: list[Path]) -> Iterator[NamedImage]:
    """Yield the encoded images row by row."""
    from pyarrow.parquet import ParquetFile

    for path in paths:
        column = _require_column(path, _IMAGE_COLUMNS)
        with explain_read_errors(path, "a parquet file"), ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(CHUNK, columns=[column]) for row in batch.column(0).to_pylist())
            for i, row in enumerate(rows):
                yield f"{path} row {i}", _image_bytes(f"{path} row {i}", row)


def _image_bytes(name: str, row: object) -> bytes:
    """Return an encoded image that is stored as bytes or as a struct with the field bytes."""
    data = row.get("bytes") if isinstance(row, dict) else row
    if not isinstance(data, bytes):
        raise UserError(None, name, f"an image must be bytes or a struct with bytes, not {type(data).__name__}")
    return data
