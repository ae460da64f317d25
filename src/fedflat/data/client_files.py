"""CSV files about single clients: the rounds in which they are available, and settings of their own.

    client,from,to            client,lr,local_epochs,local_steps
    0,1,10                    0,0.1,,
    0,21,                     1,,2,
    1,5,30                    2,0.02,,20

Clients are numbered from 0 and rounds from 1, as everywhere. An empty cell stands for the experiment's own value, or in
the column `to` for the end of the run. Raises UserError with the line of the file for whatever cannot be used.

A run's configuration names the file as PATH#CHECKSUM, so that a run is never continued with another content.
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedflat.errors import UserError, near_miss, shorten
from fedflat.options import Count, Index, Positive, parse_words, value_problem

LAST_ROUND = 10**9  # where the column `to` is empty
_CHECKSUM = re.compile(r"#[0-9a-f]{8}$")


class Availability(NamedTuple):
    """Intervals of rounds: client `clients[i]` is available from round `first[i]` to `last[i]`, counted from 0."""

    clients: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def available(self, round: int) -> set[int]:
        """Return the clients that are available in a round, counted from 0."""
        return set(self.clients[(self.first <= round) & (round <= self.last)].tolist())


class ClientSetting(NamedTuple):
    """The settings in which one client differs from the experiment; None where it does not differ."""

    lr: float | None
    local_epochs: int | None
    local_steps: int | None


def read_availability(path: str, clients: int) -> Availability:
    """Return when clients are available. A client that the file does not name is never available.

    Args:
        path: the CSV file, with columns client, from and to.
        clients: the number of clients.
    """
    columns: dict[str, Any] = {"client": Index, "from": Count, "to": Count}
    rows = []
    for where, row in _read_rows("availability", path, columns, required=("client", "from", "to"), clients=clients):
        first, last = row["from"] or 1, row["to"] or LAST_ROUND
        if last < first:
            raise UserError("availability", path, f"{where}: from {first} comes after to {last}")
        rows.append((row["client"], first - 1, last - 1))
    if not rows:
        raise UserError("availability", path, "names no client")
    return Availability(*np.array(rows, dtype=np.int64).T)


def read_client_settings(path: str, clients: int) -> dict[int, ClientSetting]:
    """Return the settings of the clients that the file names.

    Args:
        path: the CSV file, with the column client and at least one of lr, local_epochs and local_steps.
        clients: the number of clients.
    """
    columns: dict[str, Any] = {"client": Index, "lr": Positive, "local_epochs": Count, "local_steps": Count}
    settings: dict[int, ClientSetting] = {}
    for where, row in _read_rows("client_settings", path, columns, required=("client",), clients=clients):
        if row["client"] in settings:
            raise UserError("client_settings", path, f"{where}: client {row['client']} is named twice")
        if row["local_epochs"] and row["local_steps"]:
            raise UserError("client_settings", path, f"{where}: give local_epochs or local_steps, not both")
        settings[row["client"]] = ClientSetting(row["lr"], row["local_epochs"], row["local_steps"])
    if not any(value for setting in settings.values() for value in setting):
        raise UserError("client_settings", path, "sets neither lr, local_epochs nor local_steps of any client")
    return settings


def with_checksum(path: str) -> str:
    """Return PATH#CHECKSUM, with the CRC-32 of the file's content; `path` as it is if it has one or cannot be read."""
    try:
        return path if _CHECKSUM.search(path) else f"{path}#{zlib.crc32(_file(path).read_bytes()):08x}"
    except OSError:
        return path


def _file(path: str) -> Path:
    """The file without its checksum; OSError if it is a pipe or a device, which could be read for ever."""
    file = Path(_CHECKSUM.sub("", path)).expanduser()
    if file.exists() and not file.is_file():
        raise OSError("is not a regular file, but a folder, a pipe, a socket or a device")
    return file


def _read_text(option: str, path: str) -> str:
    """Return the file's content; raise UserError if it cannot be read or is not the one of the checksum."""
    try:
        content = _file(path).read_bytes()
        if _CHECKSUM.search(path) and not path.endswith(f"#{zlib.crc32(content):08x}"):
            raise UserError(option, path, "the file has changed since the run began")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UserError(option, path, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise UserError(option, path, f"not a CSV file ({error})") from None


def _read_rows(
    option: str, path: str, columns: dict[str, Any], required: Sequence[str], clients: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's name ("line 2") and its values by column, None where a cell is empty or a column missing.

    Args:
        option: the option that names the file.
        path: the file.
        columns: the type of each allowed column.
        required: columns that the file must have.
        clients: the number of clients, below which the column client must be.
    """
    reader = csv.DictReader(io.StringIO(_read_text(option, path), newline=""), skipinitialspace=True)
    try:
        _check_header(option, path, [*(reader.fieldnames or ())], columns, required)
        for row in reader:
            where = f"line {reader.line_num}"
            if None in row:  # as in 0,1,5 for 1.5
                raise UserError(option, path, f"{where}: has more cells than the {len(row) - 1} columns of line 1")
            values = {name: _cell(option, path, where, name, row.get(name), columns[name]) for name in columns}
            if values["client"] is None or values["client"] >= clients:
                raise UserError(option, path, f"{where}: client must be a number below {clients}")
            yield where, values
    except csv.Error as error:
        raise UserError(option, path, f"not a CSV file ({error})") from None


def _check_header(
    option: str, path: str, found: Sequence[str], columns: Collection[str], required: Sequence[str]
) -> None:
    allowed = f"columns are {', '.join(columns)}"
    for name in found:
        if name not in columns:
            raise UserError(option, path, f"unknown column '{shorten(name)}'{near_miss(name, columns)}; {allowed}")
    if len(set(found)) < len(found):
        raise UserError(option, path, f"names a column twice; {allowed}")
    if missing := [name for name in required if name not in found]:
        raise UserError(option, path, f"has no column {missing[0]}; {allowed}")


def _cell(option: str, path: str, where: str, name: str, text: str | None, kind: Any) -> Any:
    """Return the value of a cell, None if it is empty."""
    if text is None or not text.strip():
        return None
    value = parse_words(kind, [text.strip()])
    if problem := value_problem(kind, value):
        raise UserError(option, path, f"{where}: {name} '{shorten(text.strip())}' {problem}")
    return value
