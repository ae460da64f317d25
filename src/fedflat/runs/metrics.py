"""Files of JSON lines such as metrics.jsonl, which has one row per evaluation and seed: reading and checking them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedflat.core.metric import metric_name
from fedflat.errors import UserError


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines, [] if it does not exist.

    A last line that a crash left incomplete is ignored; any other damage raises UserError.
    """
    *lines, last = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows = [_parse_json_object(line) for line in lines]
    if None in rows:
        raise UserError(None, path, f"line {rows.index(None) + 1} is damaged; restore the file")
    return [row for row in [*rows, _parse_json_object(last)] if row is not None]


def _parse_json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl, one per evaluation and seed; raise UserError if it is damaged."""
    rows = read_json_lines(path)
    for number, row in enumerate(rows, 1):
        if not _is_metrics_row(row):
            raise UserError(None, path, f"line {number} was not written by a run; restore the file")
        if metric_name(row) != metric_name(rows[0]):
            raise UserError(None, path, f"line {number} has another metric than line 1; restore the file")
    return rows


def _is_metrics_row(row: Mapping[str, Any]) -> bool:
    """Whether a row has a round, a seed, a metric and a loss, and probes that are numbers or lists of them."""
    numbers, probes = [*map(row.get, ("round", "seed")), row.get("seconds", 0.0)], row.get("probes", {})
    metrics = {name: value for name, value in row.items() if name not in ("round", "seed", "seconds", "probes")}
    if not all(map(is_number, numbers)) or not all(map(is_number_or_null, metrics.values())):
        return False
    if "loss" not in metrics or len(metrics) < 2 or row.get("accuracy", 0.0) is None or not isinstance(probes, dict):
        return False
    return all(is_number_or_null(value) or is_number_list(value) for value in probes.values())


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_number_or_null(value: Any) -> bool:
    """Return whether a JSON value is a number, or null, which stands for a number that is not finite."""
    return value is None or is_number(value)


def is_number_list(value: Any) -> bool:
    """Return whether a JSON value is a list of numbers and nulls."""
    return isinstance(value, list) and all(map(is_number_or_null, value))
