"""Where commands write. Paths are checked before the work begins, so that a bad one costs no time."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from fedflat.cli.arguments import OutputFiles
from fedflat.errors import NOT_SHOWN, UserError, mention


def check_file(out: Path, example: str) -> None:
    """Raise UserError if the file `out` cannot be written, is a run's result.json or does not end as `example`."""
    if out.is_dir():
        raise UserError("out", out, f"is a folder, must be a file such as {out / example}")
    if out.suffix.lower() != Path(example).suffix:
        raise UserError("out", out, f"must be a file that ends in {Path(example).suffix}")
    if out.name == "result.json":
        raise UserError("out", out, f"is the name of a run's result; choose another, such as {example}")
    check_writable("out", out, out.parent)


def check_picture(out: Path) -> None:
    """Raise UserError if `out` is not a .png file in a folder that exists and can be written to."""
    if out.suffix.lower() != ".png" or out.is_dir() or not out.parent.is_dir():
        raise UserError("out", out, "must be a .png file in a folder that exists")
    check_writable("out", out, out.parent)


def check_folder(option: str, folder: Path) -> None:
    """Raise UserError if `folder` is a file."""
    if folder.exists() and not folder.is_dir():
        raise UserError(option, folder, "is a file, must be a folder")


def check_writable(option: str, path: Path, folder: Path) -> None:
    """Raise UserError about `path` if nothing can be written to `folder`, or to its first parent that exists."""
    try:
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UserError(option, path, f"cannot be written ({error.strerror or error})") from None


@contextmanager
def output_folder(files: OutputFiles, name: str, leads: bool) -> Iterator[Path]:
    """Give the folder of --out, or a new folder runs/NAME-DATE-TIME if there is no --out.

    Only the process that `leads` makes the new folder. It is removed at the end if nothing was written to it.
    """
    if files.resume and files.out is None:
        raise UserError("resume", NOT_SHOWN, f"needs {mention('out')}, the folder of the run to continue")
    default = Path("runs") / f"{slug(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    if files.out or not leads:
        yield files.out or default
        return
    check_writable("out", default, default.parent)
    folder = _make_new_folder(default)
    try:
        yield folder
    finally:
        with suppress(OSError):  # not empty
            folder.rmdir()
            folder.parent.rmdir()


def _make_new_folder(path: Path) -> Path:
    """Make the folder; append -2, -3, … to its name if another process has made it already."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    for folder in chain([path], numbered):
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def slug(name: str) -> str:
    """Return the words that name a method as a folder name: fedsol:rho=2 is fedsol-rho=2."""
    return re.sub(r"[^\w.+=-]+", "-", name)
