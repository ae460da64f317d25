"""`fedflat data prepare`: download a data set or read it from disk, and write one prepared file."""

from __future__ import annotations

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
from fedflat.data.image_files import naming_the_file, parquet_files, read_parquet
from fedflat.data.load import is_own_data, prepare_own_data
from fedflat.data.prepared import (
    RawDataset,
    cache_folder,
    make_folder,
    prepared_metadata,
    prepared_path,
    write_prepared,
)
from fedflat.errors import UserError, near_miss
from fedflat.progress import download_bar

ATTEMPTS = 4  # connections per file and call; each continues where the one before stopped


_BLOCK = 1 << 18


def download_files(name: str, remotes: Sequence[RemoteFile], folder: Path, progress: bool = True) -> Path:
    """The files of set `name`, downloaded into `folder` where they are not there already; that folder.

    FEDFLAT_MIRROR, where set, replaces every address by MIRROR/NAME/FILE; the hashes stay.
    """
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    mirror = os.environ.get("FEDFLAT_MIRROR")
    for remote in remotes:
        url = f"{mirror.rstrip('/')}/{name}/{remote.name}" if mirror else remote.url
        downloader = ResumingDownloader(folder / f"{remote.name}.part", progress)
        try:
            pooch.retrieve(url, remote.hash, fname=remote.name, path=folder, downloader=downloader)
        except (URLError, HTTPException, OSError, ValueError) as error:
            raise UserError(_explain(name, url, error)) from error
    return folder


def _explain(name: str, url: str, error: Exception) -> str:
    """One line on what went wrong and what to do."""
    by_hand = f"or fetch it by hand and run: fedflat data prepare {name} --from PATH"
    if isinstance(error, UserError):
        return f"{url}: {error}, {by_hand}"
    if isinstance(error, HTTPError):
        return f"{url}: the server answered {error.code} {error.reason}; try again later, {by_hand}"
    if isinstance(error, ValueError) and "hash" in str(error):
        return f"{url}: the file has not the expected hash and was removed; try again, {by_hand}"
    reason = getattr(error, "reason", error)
    return f"{url}: cannot be downloaded ({reason}); check the network, {by_hand}"


class ResumingDownloader:
    """A downloader for pooch that keeps the part it has and asks the server only for the rest (HTTP Range)."""

    def __init__(self, part: Path, progress: bool) -> None:
        self.part, self.progress = part, progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        total = None
        for _ in range(ATTEMPTS):
            total = self._continue(url)
            if total is None or self._have() >= total:
                os.replace(self.part, output_file)
                return
        raise UserError(f"the connection broke at {self._have()} of {total} bytes; run the command again to continue")

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _continue(self, url: str) -> int | None:
        """Append what one connection delivers; the size of the whole file where the server tells it."""
        have = self._have()
        headers = {"User-Agent": "fedflat"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with urlopen(Request(url, headers=headers), timeout=60) as response:
                return self._append(response, have if response.status == 206 else 0)
        except HTTPError as error:
            if error.code != 416:
                raise
            self.part.unlink()  # no such range: what we have is not a part of this file
            return self._continue(url)

    def _append(self, response: Any, have: int) -> int | None:
        length = response.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with (
            open(self.part, "ab" if have else "wb") as file,
            download_bar(self.part.stem, total, self.progress, have) as tick,
        ):
            try:
                while block := response.read(_BLOCK):
                    file.write(block)
                    tick(len(block))
            except (ConnectionError, TimeoutError, HTTPException):
                if total is None:  # cannot tell how much is missing
                    raise
        return total


_ARCHIVES = (".tar", ".tar.gz", ".tgz")


def prepare_dataset(name: str, source: Path | None = None, cache: Path | None = None, progress: bool = True) -> Path:
    """Write the prepared file of set `name` and return its path; without a `source` the set is downloaded."""
    if is_own_data(name):
        return prepare_own_data(name, cache, progress)
    spec = find_dataset(name)
    place = _existing(source) if source else _download(name, spec, cache_folder(cache), progress)
    path = prepared_path(name, cache)
    with _unpacked(place, spec, path.parent) as root:
        found = _read(root, spec, f"--from {place}" if source else str(place))
        about = prepared_metadata(name, spec.classes, found.form, spec.mean, spec.std, spec.augment)
        with download_bar(f"preparing {name}", len(found.train.labels) + len(found.test.labels), progress) as tick:
            write_prepared(path, found, about, tick)
    return path


def find_dataset(name: str) -> DatasetSpec:
    """The set of that name."""
    if name == "digits":
        raise UserError("digits comes with the library: there is nothing to prepare, use --dataset digits")
    if name not in DATASETS:
        raise UserError(f"unknown data set {name}{near_miss(name, DATASETS)}; allowed: {', '.join(DATASETS)}")
    return DATASETS[name]


def _existing(source: Path) -> Path:
    source = source.expanduser()
    if not source.exists():
        raise UserError(f"--from {source}: no such file or folder")
    return source


def _download(name: str, spec: DatasetSpec, cache: Path, progress: bool) -> Path:
    if not spec.files:
        raise UserError(
            f"{name} cannot be downloaded: {spec.by_hand}, then run: fedflat data prepare {name} --from FOLDER"
        )
    return download_files(name, spec.files, cache / "downloads" / name, progress)


def _read(root: Path, spec: DatasetSpec, where: str) -> RawDataset:
    """Hugging Face parquet where there is some, else the set's published form; what lacks files is called `where`."""
    try:
        return read_parquet(root) if parquet_files(root, "train") else spec.read(root)
    except UserError as error:
        whole = f"{root}: "  # the complaint is about what is not there, not about one of the files
        said = str(error)
        raise UserError(f"{where}: {said.removeprefix(whole)}" if said.startswith(whole) else said) from None


@contextmanager
def _unpacked(source: Path, spec: DatasetSpec, cache: Path) -> Iterator[Path]:
    """`source`, or where that is or holds the published archive, a temporary folder with its files."""
    places = [source] if source.is_file() else [source / remote.name for remote in spec.files]
    archives = [path for path in places if path.name.endswith(_ARCHIVES) and path.is_file()]
    if not archives:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=make_folder(cache)) as folder:
        with naming_the_file(archives[0], "a tar archive"):
            _unpack(archives[0], Path(folder))
        yield Path(folder)


def _unpack(archive: Path, folder: Path) -> None:
    """The plain files of `archive`; links and devices are left out, names that lead elsewhere refused."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise UserError(f"{archive}: refuses to unpack {member.name}, which lies outside the archive")
            if member.isfile():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with tar.extractfile(member) as data, open(folder / name, "wb") as file:  # type: ignore[union-attr]
                    shutil.copyfileobj(data, file)
