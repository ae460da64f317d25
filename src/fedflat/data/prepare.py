"""Prepare a data set: download it or read it from disk, and write one prepared file.

Downloads check the hash, show progress, and continue where an interrupted one stopped.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from fedflat.data.catalogue import DATASETS, DatasetSpec, RemoteFile
from fedflat.data.image_files import explain_read_errors, parquet_files, read_parquet
from fedflat.data.load import is_own_data, prepare_own_data
from fedflat.data.prepared import (
    RawDataset,
    make_folder,
    prepared_metadata,
    prepared_path,
    write_prepared,
)
from fedflat.errors import UserError, mention, near_miss
from fedflat.files import disk_failed
from fedflat.progress import download_bar

ATTEMPTS = 4  # connections per file and call; each continues where the one before stopped
_BLOCK = 1 << 18  # bytes read at a time
_ARCHIVES = (".tar", ".tar.gz", ".tgz")


def download_files(name: str, remotes: Sequence[RemoteFile], folder: Path, progress: bool = True) -> Path:
    """Download the files of a data set that are not in `folder` yet, and return the folder.

    The environment variable FEDFLAT_MIRROR replaces every address by MIRROR/NAME/FILE; the hashes stay.

    Args:
        name: the data set's name.
        remotes: addresses and hashes of its files.
        folder: where the files go.
        progress: show a progress bar.

    Raises:
        UserError: a file cannot be downloaded or has another hash.
    """
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    mirror = os.environ.get("FEDFLAT_MIRROR")
    for remote in remotes:
        url = f"{mirror.rstrip('/')}/{name}/{remote.name}" if mirror else remote.url
        downloader = ResumingDownloader(folder / f"{remote.name}.part", progress)
        try:
            file = Path(pooch.retrieve(url, remote.hash, fname=remote.name, path=folder, downloader=downloader))
            _check_sha256(file, remote.sha256)
        except (URLError, HTTPException, OSError, ValueError) as error:
            if disk_failed(error):
                raise
            by_hand = f"or fetch it by hand and run: fedflat data prepare {name} --from PATH"
            raise UserError(None, url, f"{_explain_failure(error)}, {by_hand}") from error
    return folder


def _check_sha256(file: Path, expected: str) -> None:
    """Remove the file and raise ValueError, as pooch does, if its SHA-256 is known and another."""
    with open(file, "rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if expected and digest != expected:
        file.unlink()
        raise ValueError(f"hash {digest}")


def _explain_failure(error: Exception) -> str:
    """Return what went wrong with a download and what to do, in one line."""
    if isinstance(error, UserError):
        return str(error.problem)
    if isinstance(error, HTTPError):
        return f"the server answered {error.code} {error.reason}; try again later"
    if isinstance(error, ValueError) and "hash" in str(error):  # pooch has no error class of its own
        return "the file has not the expected hash and was removed; try again"
    return f"cannot be downloaded ({getattr(error, 'reason', error)}); check the network"


class ResumingDownloader:
    """A downloader for pooch that keeps what it has and asks the server only for the rest (HTTP Range).

    Args:
        part: file that holds what was downloaded so far.
        progress: show a progress bar.
    """

    def __init__(self, part: Path, progress: bool) -> None:
        self.part, self.progress = part, progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Download `url` to `output_file`; UserError if the connection breaks ATTEMPTS times."""
        size = None
        for _ in range(ATTEMPTS):
            size = self._continue(url)
            if size is None or self._downloaded() >= size:
                os.replace(self.part, output_file)
                return
        broke = f"the connection broke at {self._downloaded()} of {size} bytes"
        raise UserError(None, url, f"{broke}; run the command again to continue")

    def _downloaded(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _continue(self, url: str) -> int | None:
        """Append what one connection delivers; return the size of the whole file, None if the server does not say."""
        start = self._downloaded()
        headers = {"User-Agent": "fedflat"} | ({"Range": f"bytes={start}-"} if start else {})
        try:
            with urlopen(Request(url, headers=headers), timeout=60) as response:
                return self._append(response, start if response.status == 206 else 0)
        except HTTPError as error:
            if error.code != 416:
                raise
            self.part.unlink()  # the server has no such range: our part is not a part of this file
            return self._continue(url)

    def _append(self, response: Any, start: int) -> int | None:
        """Write the response after byte `start`; return the size of the whole file if the server says it."""
        length = response.headers.get("Content-Length")
        size = None if length is None else start + int(length)
        with (
            open(self.part, "ab" if start else "wb") as file,
            download_bar(self.part.stem, size, self.progress, start) as advance,
        ):
            try:
                while block := response.read(_BLOCK):
                    file.write(block)
                    advance(len(block))
            except (ConnectionError, TimeoutError, HTTPException):
                if size is None:  # how much is missing is unknown
                    raise
        return size


def prepare_dataset(name: str, source: Path | None = None, cache: Path | None = None, progress: bool = True) -> Path:
    """Write the prepared file of a data set and return its path.

    Args:
        name: a data set of the catalogue, or folder:PATH or parquet:PATH.
        source: folder or archive with the published files; they are downloaded unless given.
        cache: folder of prepared sets; FEDFLAT_CACHE or ~/.cache/fedflat unless given.
        progress: show a progress bar.

    Raises:
        UserError: the data set is unknown, or its files are missing, damaged or cannot be downloaded.
    """
    if is_own_data(name):
        return prepare_own_data(name, cache, progress)
    spec = find_dataset(name)
    path = prepared_path(name, cache)
    files = _existing(source) if source else _download(name, spec, path.parent, progress)
    with _unpacked(files, spec, path.parent) as root:
        raw = _read_published(root, spec, "from" if source else None, files)
        metadata = prepared_metadata(name, spec.classes, raw.file_format, spec.mean, spec.std, spec.augment)
        with download_bar(f"preparing {name}", len(raw.train.labels) + len(raw.test.labels), progress) as advance:
            write_prepared(path, raw, metadata, advance)
    return path


def find_dataset(name: str) -> DatasetSpec:
    """Return the data set of the catalogue called `name`; UserError if there is none to prepare."""
    if name in ("digits", "sklearn-text"):
        problem = f"comes with the library, there is nothing to prepare; use {mention('dataset', name)}"
        raise UserError(None, name, problem)
    if name not in DATASETS:
        raise UserError(None, name, f"unknown data set{near_miss(name, DATASETS)}; allowed: {', '.join(DATASETS)}")
    return DATASETS[name]


def _existing(source: Path) -> Path:
    source = source.expanduser()
    if not source.exists():
        raise UserError("from", source, "no such file or folder")
    return source


def _download(name: str, spec: DatasetSpec, cache: Path, progress: bool) -> Path:
    if not spec.files:
        command = f"fedflat data prepare {name} --from FOLDER"
        raise UserError(None, name, f"cannot be downloaded: {spec.by_hand}, then run: {command}")
    return download_files(name, spec.files, cache / "downloads" / name, progress)


def _read_published(root: Path, spec: DatasetSpec, option: str | None, files: Path) -> RawDataset:
    """Read Hugging Face parquet if there is some, else the published files.

    An error about the whole of `root`, which may be a temporary folder, becomes one about `option` and `files`.
    """
    try:
        return read_parquet(root) if parquet_files(root, "train") else spec.read(root)
    except UserError as error:
        if error.value != root:
            raise
        raise UserError(option, files, error.problem) from None


@contextmanager
def _unpacked(source: Path, spec: DatasetSpec, cache: Path) -> Iterator[Path]:
    """Give `source`, or a temporary folder with its files if it is, or holds, the published archive."""
    candidates = [source] if source.is_file() else [source / remote.name for remote in spec.files]
    archives = [path for path in candidates if path.name.endswith(_ARCHIVES) and path.is_file()]
    if not archives:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=make_folder(cache)) as folder:
        with explain_read_errors(archives[0], "a tar archive"):
            _unpack(archives[0], Path(folder))
        yield Path(folder)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the plain files of an archive, without links and devices; UserError if a name leads out of the folder."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise UserError(None, archive, f"refuses to unpack {member.name}, which lies outside the archive")
            if member.isfile():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with tar.extractfile(member) as data, open(folder / name, "wb") as file:  # type: ignore[union-attr]
                    shutil.copyfileobj(data, file)
