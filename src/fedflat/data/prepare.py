"""`fedflat data prepare`: download a data set or read it from disk, and write one prepared file."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from fedflat.data.download import bar, fetch
from fedflat.data.images import reading
from fedflat.data.own import is_own, prepare_own
from fedflat.data.parquet import files, parquet
from fedflat.data.prepared import Source, cache_folder, facts, made, prepared_path, write
from fedflat.data.sets import SETS, Spec
from fedflat.errors import UserError, near_miss

_ARCHIVES = (".tar", ".tar.gz", ".tgz")


def prepare(name: str, source: Path | None = None, cache: Path | None = None, progress: bool = True) -> Path:
    """Write the prepared file of set `name` and return its path; without a `source` the set is downloaded."""
    if is_own(name):
        return prepare_own(name, cache, progress)
    spec = spec_of(name)
    place = _existing(source) if source else _download(name, spec, cache_folder(cache), progress)
    path = prepared_path(name, cache)
    with _unpacked(place, spec, path.parent) as root:
        found = _read(root, spec, f"--from {place}" if source else str(place))
        about = facts(name, spec.classes, found.form, spec.mean, spec.std, spec.augment)
        with bar(f"preparing {name}", len(found.train.labels) + len(found.test.labels), progress) as tick:
            write(path, found, about, tick)
    return path


def spec_of(name: str) -> Spec:
    """The set of that name."""
    if name == "digits":
        raise UserError("digits comes with the library: there is nothing to prepare, use --dataset digits")
    if name not in SETS:
        raise UserError(f"unknown data set {name}{near_miss(name, SETS)}; allowed: {', '.join(SETS)}")
    return SETS[name]


def _existing(source: Path) -> Path:
    source = source.expanduser()
    if not source.exists():
        raise UserError(f"--from {source}: no such file or folder")
    return source


def _download(name: str, spec: Spec, cache: Path, progress: bool) -> Path:
    if not spec.files:
        raise UserError(
            f"{name} cannot be downloaded: {spec.by_hand}, then run: fedflat data prepare {name} --from FOLDER"
        )
    return fetch(name, spec.files, cache / "downloads" / name, progress)


def _read(root: Path, spec: Spec, where: str) -> Source:
    """Hugging Face parquet where there is some, else the set's published form; what lacks files is called `where`."""
    try:
        return parquet(root) if files(root, "train") else spec.read(root)
    except UserError as error:
        whole = f"{root}: "  # the complaint is about what is not there, not about one of the files
        said = str(error)
        raise UserError(f"{where}: {said.removeprefix(whole)}" if said.startswith(whole) else said) from None


@contextmanager
def _unpacked(source: Path, spec: Spec, cache: Path) -> Iterator[Path]:
    """`source`, or where that is or holds the published archive, a temporary folder with its files."""
    places = [source] if source.is_file() else [source / remote.name for remote in spec.files]
    archives = [path for path in places if path.name.endswith(_ARCHIVES) and path.is_file()]
    if not archives:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=made(cache)) as folder:
        with reading(archives[0], "a tar archive"):
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
