"""Where commands write, looked at before the work: a path that cannot be used costs nothing but a line."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from fedflat.cli.arguments import RunFiles
from fedflat.errors import UserError
from fedflat.options import check_writable


def check_file(out: Path, usual: str) -> None:
    """Refuse an --out that is a folder, has another ending than the `usual` file or is a run's own file."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder, must be a file such as {out / usual}")
    if out.suffix.lower() != Path(usual).suffix:
        raise UserError(f"--out {out}: must be a file that ends in {Path(usual).suffix}")
    if out.name == "result.json":
        raise UserError(f"--out {out}: is the name of a run's result; choose another, such as {usual}")
    check_writable("--out", out, out.parent)


def refuse_file(option: str, folder: Path) -> None:
    """Refuse a file where a folder belongs."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {folder}: is a file, must be a folder")


@contextmanager
def output_folder(files: RunFiles, name: str, leads: bool) -> Iterator[Path]:
    """The folder of --out, else runs/NAME-DATE-TIME, which the process that leads has for itself.

    It is removed where nothing was written to it.
    """
    if files.resume and files.out is None:
        raise UserError("--resume: needs --out, the folder of the run to continue")
    usual = Path("runs") / f"{slug(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    if files.out or not leads:
        yield files.out or usual
        return
    check_writable("--out", usual, usual.parent)
    folder = _claim(usual)
    try:
        yield folder
    finally:
        with suppress(OSError):  # not empty
            folder.rmdir()
            folder.parent.rmdir()


def _claim(usual: Path) -> Path:
    """Make the folder, or one with a number behind its name where another process was first."""
    later = (usual.with_name(f"{usual.name}-{number}") for number in count(2))
    for path in chain([usual], later):
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    return path


def slug(name: str) -> str:
    """A method's words as a folder name."""
    return re.sub(r"[^\w.+=-]+", "-", name)
