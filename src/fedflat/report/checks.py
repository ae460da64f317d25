"""What the files of a run folder must hold for tables and figures; each check raises ValueError or UserError."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

from fedflat.experiments.experiment import Setting
from fedflat.experiments.result import Result
from fedflat.options import check

DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what reading damaged files raises


def number(value: Any) -> bool:
    """Whether a value of JSON is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def measured(value: Any) -> bool:
    """Whether a value of JSON is a number, or null, which stands for one that is not finite."""
    return value is None or number(value)


def row_of(value: Any) -> bool:
    """Whether a value of JSON is a list of numbers and nulls."""
    return isinstance(value, list) and all(map(measured, value))


def check_config(config: Any) -> None:
    """Text for keys, and for what is known a value that it may have; what is unknown may be anything."""
    if not isinstance(config["method"], str | Mapping):
        raise ValueError(f"config.yaml: method {config['method']}")
    for key in config:
        if not isinstance(key, str):
            raise ValueError(f"config.yaml: the key {key} is no text")
    for key in ("dataset", "model"):
        if not isinstance(config.get(key, ""), str):
            raise ValueError(f"config.yaml: {key} {config[key]} is no text")
    given = {field.name: config[field.name] for field in fields(Setting) if field.name in config}
    setting: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    check(Setting(**setting))


def check_row(row: Mapping[str, Any]) -> None:
    """A line of metrics.jsonl: numbers, and probes that are numbers or lists of them."""
    numbers = [row["round"], row["seed"], row["accuracy"], row.get("seconds", 0.0)]
    probes = row.get("probes", {}).values()
    if not all(map(number, numbers)) or not measured(row["loss"]) or not all(measured(p) or row_of(p) for p in probes):
        raise ValueError(f"metrics.jsonl: {row}")


KINDS = {
    int: number,
    float: number,
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    list: lambda value: isinstance(value, list) and all(map(number, value)),
    dict: lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
}


def check_result(result: Result) -> None:
    """Numbers, lists and names as the fields of Result say, and at least one seed."""
    for name, hint in get_type_hints(Result).items():
        value, right = getattr(result, name), KINDS.get(get_origin(hint) or hint)
        if name != "history" and right and not right(value):
            raise ValueError(f"result.json: {name} {value}")
    if not result.seeds:
        raise ValueError("result.json: no seeds")
