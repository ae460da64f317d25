"""Load data sets by name: the built-in digits, prepared sets from the cache, and your own data.

Your own data are folder:PATH and parquet:PATH, which are decoded once into the cache, and npz:FILE, table:FILE and
text:PATH, which are read as they are.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from fedflat.core.state import checksum
from fedflat.data.arrays import check_arrays, count_outputs, input_tensors
from fedflat.data.catalogue import DATASETS
from fedflat.data.dataset import Dataset, dataset_tensors
from fedflat.data.digits import load_digits_dataset
from fedflat.data.hugging_face import load_hugging_face_data, load_tokenizer
from fedflat.data.image_files import (
    check_regular,
    explain_read_errors,
    number_clients,
    number_test_clients,
    read_image_folder,
    read_parquet,
)
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
from fedflat.data.published_formats import check_npz_sizes
from fedflat.data.tables import TableColumns, read_table
from fedflat.data.text import SEQUENCE_LENGTH, load_sklearn_text, load_text
from fedflat.errors import UserError, mention, near_miss
from fedflat.own_code import (
    explain_own_errors,
    is_own_code,
    load_own_code,
    required_arguments,
    short_own_code,
    split_own_code,
)
from fedflat.progress import download_bar

_READERS: dict[str, Callable[[Path], RawDataset]] = {"folder": read_image_folder, "parquet": read_parquet}
FILE_KINDS = ("npz", "table")  # PATH is a file
READ_AS_THEY_ARE = {"npz": "an npz file", "table": "a table", "text": "text"}  # need no preparation
OWN_KINDS = (*_READERS, *READ_AS_THEY_ARE)


def is_own_data(name: str) -> bool:
    """Return whether `name` has the form KIND:PATH, with a KIND of OWN_KINDS."""
    return ":" in name and name.split(":")[0] in OWN_KINDS


def load_own_data(
    name: str,
    cache: Path | None,
    classes: int | None = None,
    sequence_length: int = SEQUENCE_LENGTH,
    columns: TableColumns | None = None,
) -> Dataset:
    """Return the data set KIND:PATH.

    Args:
        name: KIND:PATH.
        cache: folder of prepared sets.
        classes: for npz files that do not say it, whose labels may then have gaps.
        sequence_length: tokens in a sample of text.
        columns: which columns of a table are used, and for what.
    """
    kind, path = _split_name(name)
    if kind == "npz":
        return _read_npz(name, path, classes)
    if kind == "text":
        return load_text(path, sequence_length, name)
    if kind == "table":
        return read_table(path, columns or TableColumns(), name)
    return read_prepared(prepare_own_data(name, cache, progress=True))


def prepare_own_data(name: str, cache: Path | None, progress: bool) -> Path:
    """Return the prepared file of KIND:PATH. It is written anew if a file below PATH has changed."""
    kind, root = _split_name(name)
    if kind in READ_AS_THEY_ARE:
        problem = f"{READ_AS_THEY_ARE[kind]} needs no preparation, use {mention('dataset', name)}"
        raise UserError(None, name, problem)
    path = cache_folder(cache) / f"{kind}-{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.safetensors"
    fingerprint = _fingerprint(name, root)
    if not _is_current(path, fingerprint):
        raw = _READERS[kind](root)
        classes = 1 + int(max(split.labels.max(initial=0) for split in (raw.train, raw.test)))
        metadata = prepared_metadata(name, classes, raw.file_format) | {"stamp": fingerprint}
        with download_bar(f"preparing {name}", len(raw.train.labels) + len(raw.test.labels), progress) as advance:
            write_prepared(path, raw, metadata, advance)
    return path


def _split_name(name: str) -> tuple[str, Path]:
    """Return KIND and PATH; UserError if there is nothing at PATH."""
    kind, _, path = name.partition(":")
    root = Path(path).expanduser().resolve()
    if kind == "parquet" and root.is_file():
        raise UserError("dataset", name, f"is a file; a table is {mention('dataset', f'table:{path}')}")
    if not path or not (root.is_file() if kind in FILE_KINDS else root.is_dir()):
        relative = path and not Path(path).expanduser().is_absolute()
        where = f" in {Path.cwd()}; a relative path is meant from where the command is started" if relative else ""
        wanted = f"{'file' if kind in FILE_KINDS else 'folder'} {path or '(empty)'}"
        raise UserError("dataset", name, f"there is no {wanted}{where}")
    return kind, root


def own_data_fingerprint(name: str) -> str:
    """Return a hash that changes with the files of KIND:PATH: of their names, sizes and modification times."""
    return _fingerprint(name, _split_name(name)[1])


def _fingerprint(name: str, root: Path) -> str:
    """Return a hash of names, sizes and modification times of the files below `root`, and of clients.json's content."""
    digest = hashlib.sha256()
    try:
        for path in [str(root)] if root.is_file() else sorted(_files_below(str(root))):
            stat = os.stat(path)
            check_regular(Path(path))
            digest.update(os.fsencode(f"{path.removeprefix(str(root))}\0{stat.st_size}\0{stat.st_mtime_ns}\0"))
            if os.path.basename(path) == "clients.json":
                digest.update(Path(path).read_bytes())
    except OSError as error:
        raise UserError("dataset", name, f"{error.filename} cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def _files_below(folder: str, depth: int = 4) -> Iterator[str]:
    """Yield the files that readers may open: as deep as FOLDER/train/CLASS/FILE, links followed, no hidden files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                yield entry.path
            elif depth > 1:
                yield from _files_below(entry.path, depth - 1)


def _is_current(path: Path, fingerprint: str) -> bool:
    """Return whether the prepared file was made from files with that fingerprint."""
    return path.exists() and inspect_prepared(path)[0].get("stamp") == fingerprint


def _read_npz(name: str, path: Path, classes: int | None) -> Dataset:
    """Read x, y, x_test, y_test and optionally client, client_test; images are normalised by their own moments."""
    if not is_zipfile(path):
        raise UserError("dataset", name, f"{path} is not an npz file, which numpy.savez writes")
    check_npz_sizes(path, ("x", "y", "x_test", "y_test", "client", "client_test"))
    with explain_read_errors(path, "an npz file"), np.load(path, allow_pickle=False) as arrays:
        if missing := [key for key in ("x", "y", "x_test", "y_test") if key not in arrays]:
            raise UserError(
                None, path, f"no array {missing[0]}; needed are x, y, x_test, y_test; client, client_test are optional"
            )
        x, x_test = (_channels_first(path, arrays[key]) for key in ("x", "x_test"))
        y, y_test = (_one_column(arrays[key]) for key in ("y", "y_test"))
        tensors = check_arrays(path, x, y, x_test, y_test)
        classes = int(arrays["classes"]) if "classes" in arrays else classes
        names = {key: arrays[key].reshape(-1) for key in ("client", "client_test") if key in arrays}
    mean, std = _moments(input_tensors(tensors.x)[0])
    outputs = count_outputs(path, tensors, classes)
    owner, test_owner = _check_clients(path, names, len(tensors.y), len(tensors.y_test))
    dataset = Dataset(name, *tensors, outputs, mean, std, owner=owner, test_owner=test_owner)
    return replace(dataset, fingerprint=f"{checksum(dataset_tensors(dataset)):08x}")


def _check_clients(path: Path, names: Mapping[str, np.ndarray], train: int, test: int) -> list[Tensor | None]:
    """Return the clients of the training and of the test samples as numbers, None where the file does not name them."""
    if "client_test" in names and "client" not in names:
        raise UserError(None, path, "has client_test without client; name the clients of the training samples too")
    for key, count in (("client", train), ("client_test", test)):
        if key in names and len(names[key]) != count:
            samples = "training" if key == "client" else "test"
            problem = f"{key} has {len(names[key])} entries for {count} {samples} samples; give one each"
            raise UserError(None, path, problem)
    owner = number_clients(names["client"]) if "client" in names else None
    test_owner = number_test_clients(names["client_test"], names["client"]) if "client_test" in names else None
    return [None if each is None else torch.from_numpy(each) for each in (owner, test_owner)]


def _one_column(targets: np.ndarray) -> np.ndarray:
    """Return targets of shape [n, 1] as [n], others as they are."""
    return targets.reshape(-1) if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _channels_first(path: Path, array: np.ndarray) -> np.ndarray:
    """Return uint8 images [n, c, h, w], [n, h, w] or [n, h, w, c] as [n, c, h, w]; other samples as they are."""
    if array.dtype != np.uint8:
        return array
    if array.ndim == 4 and array.shape[-1] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    array = array[:, None] if array.ndim == 3 else array
    if array.ndim != 4:
        allowed = "allowed are [n, c, h, w], [n, h, w], [n, h, w, c]"
        raise UserError(None, path, f"uint8 images have shape {array.shape}; {allowed}")
    return array


def _moments(x: Tensor) -> tuple[ChannelMoments, ChannelMoments]:
    """Return mean and std of uint8 images; 0 and 1 for floats, which are used as they are."""
    if x.dtype != torch.uint8:
        return (0.0,), (1.0,)
    counts = [torch.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])]
    return channel_moments(torch.stack(counts).numpy())


def load_dataset(
    name: str,
    cache: Path | None = None,
    sequence_length: int = SEQUENCE_LENGTH,
    columns: TableColumns | None = None,
    tokenizer: str = "",
) -> Dataset:
    """Return the data set called `name`.

    Args:
        name: "digits", "sklearn-text", a data set of the catalogue that is prepared, folder:PATH, npz:FILE,
            parquet:PATH, table:FILE, text:PATH, hf:FOLDER, hf:NAME, or PATH.py:FUNCTION.
        cache: folder of prepared sets; FEDFLAT_CACHE or ~/.cache/fedflat unless given.
        sequence_length: tokens in a sample of text.
        columns: which columns of table:FILE or hf:NAME are used, and for what.
        tokenizer: a model hf:FOLDER, whose tokenizer makes tokens of the texts of hf:NAME.

    Raises:
        UserError: the data set is unknown, not prepared, or cannot be read.
    """
    if name == "digits":
        return load_digits_dataset()
    if name == "sklearn-text":
        return load_sklearn_text(sequence_length)
    if name.startswith("hf:"):
        return _load_hugging_face(name, columns or TableColumns(), sequence_length, tokenizer)
    if is_own_data(name):
        return load_own_data(name, cache, sequence_length=sequence_length, columns=columns)
    if is_own_code(name):
        return _call_own_loader(name)
    if name not in DATASETS:
        known = [
            "digits",
            "sklearn-text",
            *DATASETS,
            *(f"{kind}:PATH" for kind in OWN_KINDS),
            "hf:NAME",
            "FILE.py:FUNCTION",
        ]
        hint = _path_hint(name) or near_miss(name, known)
        raise UserError("dataset", name, f"unknown data set{hint}; allowed: {', '.join(known)}")
    path = prepared_path(name, cache)
    if not path.exists():
        raise UserError("dataset", name, f"not prepared in {path.parent}; run: fedflat data prepare {name}")
    return read_prepared(path)


def _load_hugging_face(name: str, columns: TableColumns, sequence_length: int, tokenizer: str) -> Dataset:
    """Return the data set hf:FOLDER or hf:NAME."""
    text, label = (next(iter(found), None) for found in (columns.features, columns.target))
    source, client = name.removeprefix("hf:"), columns.client or None
    if len(columns.features) > 1:
        problem = f"takes one column of texts, {len(columns.features)} are given"
        raise UserError("feature_columns", columns.features, problem)
    found = load_tokenizer(tokenizer)
    return load_hugging_face_data(source, found, text, label, client, sequence_length, name, columns.task)


def _call_own_loader(name: str) -> Dataset:
    """Return what the function of PATH.py:FUNCTION returns: a Dataset, or arrays x, y, x_test, y_test."""
    made = load_own_code("dataset", name)
    if callable(made):
        if missing := required_arguments(made):
            raise UserError("dataset", name, f"is called without arguments; its {missing[0]} needs a default")
        with explain_own_errors("dataset", name, [split_own_code(name)[0]]):
            made = made()
    if isinstance(made, tuple | list) and len(made) == 4:
        x, y, x_test, y_test = made
        made = Dataset.from_arrays(x, y, x_test, y_test, name=short_own_code(name))
    if not isinstance(made, Dataset):
        allowed = "a fedflat.Dataset, or a function that returns one or arrays x, y, x_test, y_test"
        raise UserError("dataset", name, f"must be {allowed}, not {type(made).__name__}")
    return made


def _path_hint(name: str) -> str:
    """' (did you mean npz:tab.npz?)' where `name` is a path of data, csv:PATH or the like, else ''."""
    name = re.sub(r"^(csv|tab|tables):", "", name)
    path = Path(name).expanduser()
    if path.is_dir():
        kind = "parquet" if any(path.rglob("*.parquet")) else "text" if any(path.glob("*.txt")) else "folder"
    else:
        kind = {".npz": "npz", ".csv": "table", ".parquet": "table"}.get(path.suffix, "")
    if path.suffix == ".py":
        return f" (did you mean {name}:FUNCTION?)"
    return f" (did you mean {kind}:{name}?)" if kind else ""


class CatalogueRow(NamedTuple):
    """One line of `fedflat data list`.

    Args:
        name: the data set's name.
        prepared: whether it can be loaded.
        train: number of training samples; None if the set is not prepared.
        test: number of test samples; None if the set is not prepared.
        shape: channels, height, width; None if the set is not prepared.
        classes: number of classes.
        bytes: size of the prepared file; 0 if there is none.
        path: the prepared file, if there is one.
        source: the file format it was read from.
    """

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
    """Return a row for every known data set and for the user's own that are prepared in the cache folder."""
    paths = {name: prepared_path(name, cache) for name in DATASETS}
    own = [path for kind in OWN_KINDS for path in sorted(cache_folder(cache).glob(f"{kind}-*.safetensors"))]
    return [
        CatalogueRow("digits", True, 1437, 360, (1, 8, 8), 10, 0, None, "embedded"),
        _embedded_text_row(),
        *(_prepared_row(path) if path.exists() else _unprepared_row(name) for name, path in paths.items()),
        *map(_prepared_row, own),
    ]


def _embedded_text_row() -> CatalogueRow:
    text = load_sklearn_text()
    return CatalogueRow(text.name, True, len(text.y), len(text.y_test), text.shape, text.classes, 0, None, "embedded")


def _unprepared_row(name: str) -> CatalogueRow:
    return CatalogueRow(name, False, None, None, None, DATASETS[name].classes, 0, None, "")


def _prepared_row(path: Path) -> CatalogueRow:
    metadata, shapes = inspect_prepared(path)
    sizes = (shapes["x"][0], shapes["x_test"][0], tuple(shapes["x"][1:]))
    file = (path.stat().st_size, path, metadata["source"])
    return CatalogueRow(metadata["name"], True, *sizes, int(metadata["classes"]), *file)
