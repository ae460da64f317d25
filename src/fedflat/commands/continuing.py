"""Which command continues what was stopped."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedflat.errors import UserError
from fedflat.runs.folder import OtherRunError


@contextmanager
def continuing(command: list[str], folders: list[Path], out: Path, shown: Sequence[str] = ()) -> Iterator[None]:
    """Whatever stops `command`, which trains in `folders` and reports with the flags `shown`, tells how to continue."""
    again = [*command, *shown]
    try:
        yield
    except OtherRunError as error:
        raise UserError(f"{error}, or continue that one: {_again(again, error.path, out)}") from None
    except KeyboardInterrupt:
        begun = [folder for folder in folders if (folder / "config.yaml").exists()]
        if all((folder / "result.json").exists() for folder in folders):
            report = ["fedflat", "report", *map(str, folders), *shown]
            hint = f"training is complete; for the report: {shlex.join(report)}"
        else:
            hint = f"continue with: {_again(again, begun[0], out)}" if begun else "nothing was written"
        raise KeyboardInterrupt(hint) from None


def _again(command: list[str], folder: Path, out: Path) -> str:
    """The command that continues in `out` as one of its folders was begun."""
    return shlex.join(["fedflat", *command, "--config", str(folder / "config.yaml"), "--out", str(out), "--resume"])
