"""Downloads that check the hash, show progress and continue where an interrupted one stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fedflat.errors import UserError

ATTEMPTS = 4  # connections per file and call; each continues where the one before stopped


_BLOCK = 1 << 18


class Remote(NamedTuple):
    """A published file: where it is and its hash ("md5:...")."""

    url: str
    hash: str

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.rsplit("/", 1)[-1]


def fetch(name: str, remotes: Sequence[Remote], folder: Path, progress: bool = True) -> Path:
    """The files of set `name`, downloaded into `folder` where they are not there already; that folder.

    FEDFLAT_MIRROR, where set, replaces every address by MIRROR/NAME/FILE; the hashes stay.
    """
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    mirror = os.environ.get("FEDFLAT_MIRROR")
    for remote in remotes:
        url = f"{mirror.rstrip('/')}/{name}/{remote.name}" if mirror else remote.url
        downloader = Resume(folder / f"{remote.name}.part", progress)
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


class Resume:
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
        with open(self.part, "ab" if have else "wb") as file, bar(self.part.stem, total, self.progress, have) as tick:
            try:
                while block := response.read(_BLOCK):
                    file.write(block)
                    tick(len(block))
            except (ConnectionError, TimeoutError, HTTPException):
                if total is None:  # cannot tell how much is missing
                    raise
        return total


@contextmanager
def bar(label: str, total: int | None, shown: bool, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, lines where that is no terminal; call what it gives with the number of units done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from fedflat.pulse import Pulse

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console, pulse = Console(stderr=True), Pulse()
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as display:
        task = display.add_task(label, total=total, completed=done)

        def advance(units: int) -> None:
            display.advance(task, units)
            if shown:
                pulse.tell(_line(label, display.tasks[0].completed, total))

        yield advance


def _line(label: str, done: float, total: int | None) -> str:
    """How far it is, in words."""
    return f"{label}: {done / total:.0%} done" if total else f"{label}: {done:,.0f} bytes so far"
