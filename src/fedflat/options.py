"""What values an option may take: ranges are part of the types of dataclass fields, and `check` compares with them.

An option is a field of a dataclass: of Experiment, of a method, or of a command. `check` is the same for options from
Python, from the command line and from YAML files.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from fedflat.errors import UserError, near_miss


class Range(NamedTuple):
    """The numbers that a field may hold, as part of its type: `rho: Annotated[float, Range(0, 1)]`.

    Args:
        low: the smallest allowed number.
        high: the largest allowed number.
        open: whether `low` itself is excluded.
        finite: whether infinity is excluded. NaN is never allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    finite: bool = True

    def __contains__(self, value: object) -> bool:
        number: float = value  # type: ignore[assignment]
        above = self.low < number if self.open else self.low <= number
        return above and number <= self.high and (not self.finite or _is_finite(number))

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"must be between {self.low:.10g}{' (not included)' if self.open else ''} and {self.high:.10g}"
        above = f"must be {'more than' if self.open else 'at least'} {self.low:.10g}"
        return f"{above} and finite" if self.finite else above


def _is_finite(number: float) -> bool:
    """Whether a float can hold the number. YAML reads a long row of digits as an int that may be too large."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


class Pattern(NamedTuple):
    """The texts that a field may hold, as part of its type: `Annotated[str, Pattern("cpu|cuda", "cpu, cuda")]`.

    Args:
        expression: a regular expression for the whole text.
        allowed: the allowed texts, for messages.
    """

    expression: str
    allowed: str

    def __contains__(self, value: object) -> bool:
        return re.fullmatch(self.expression, str(value)) is not None

    def __str__(self) -> str:
        return f"must be one of {self.allowed}"


Positive = Annotated[float, Range(0, open=True)]  # a learning rate, a temperature
NonNegative = Annotated[float, Range(0)]  # a radius, a weight decay
Fraction = Annotated[float, Range(0, 1)]  # an accuracy, a share
Count = Annotated[int, Range(1, 10**9)]  # rounds, clients, samples
Index = Annotated[int, Range(0, 2**32 - 1)]  # a seed, the number of a client
Epochs = Annotated[int, Range(0, 10_000)]  # passes over a client's data
_DEVICES = Pattern(r"auto|cpu|cuda(:\d{1,3})?|mps", "auto, cpu, cuda, cuda:N, mps")
DeviceName = Annotated[str, _DEVICES]  # where to compute


def normalised_fields(options: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that `normalised` changes, with their new values."""
    values = [(name, value, _normalise(hint, value)) for name, hint, value in _fields(options)]
    return {name: new for name, old, new in values if new is not old}


def normalised(options: Any) -> Any:
    """Return a dataclass with lists and arrays as tuples and numpy's numbers as Python's.

    Equal options are then equal objects, and give the same YAML. Values of a wrong type stay, for `check` to refuse.
    """
    changed = normalised_fields(options)
    return dataclasses.replace(options, **changed) if changed else options


_PYTHON_TYPES: dict[Any, Callable[[Any], Any]] = {bool | np.bool_: bool, Integral: int, Real: float, str: str}


def _normalise(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, hint):  # a method
        return normalised(value)
    if get_origin(hint) is tuple and isinstance(value, list | tuple | range | np.ndarray):
        return tuple(_normalise(get_args(hint)[0], item) for item in value)
    return next((convert(value) for kind, convert in _PYTHON_TYPES.items() if isinstance(value, kind)), value)


def normalised_list(hint: Any, values: Any) -> Any:
    """Return a list, range or array of values of type `hint` as a tuple of Python's numbers; anything else as it is."""
    return _normalise(tuple[hint, ...], values)


def check(options: Any) -> None:
    """Raise UserError for the first field of a dataclass that is not of its type or outside its range."""
    for field, hint, value in _fields(options):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check(value)
        elif problem := value_problem(hint, value):
            raise UserError(field, value, problem)


def _fields(options: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and value of every field of a dataclass."""
    hints = _hints(type(options))
    return ((f.name, hints[f.name], getattr(options, f.name)) for f in dataclasses.fields(options))


_hints: Callable[[type], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))


def value_words(value: Any) -> list[str]:
    """Return a value as the words that stand for it on the command line: (0, 1) is 0 1, None is none."""
    items = value if isinstance(value, tuple | list) else [value]
    return ["none" if item is None else str(item) for item in items]


def parse_words(hint: Any, words: Sequence[str]) -> Any:
    """Return the value of type `hint` that command-line words stand for.

    Words that stand for no such value are returned as text, so that `check` can refuse them with the reason.
    """
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        items = words if kind is str else [item for word in words for item in word.split(",")]  # 0,1,2 is 0 1 2
        return tuple(parse_words(kind, [item]) for item in items)
    if len(words) != 1:
        return tuple(words)
    values = [value for kind in member_types(hint) if (value := _parse_word(kind, words[0])) is not _NO_VALUE]
    return values[0] if values else words[0]


def member_types(hint: Any) -> list[Any]:
    """Return the simple types and allowed values that a type is made of: `int | None` gives int and NoneType."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        return member_types(parts[0])
    if get_origin(hint) is Literal:
        return list(parts)
    return [kind for part in parts for kind in member_types(part)] if parts else [hint]


_NO_VALUE = object()
_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: lambda word: {"true": True, "false": False}[word.lower()],
    Path: lambda word: Path(word) if word else _NO_VALUE,
    type(None): lambda word: {"none": None}[word.lower()],
}


def _parse_word(kind: Any, word: str) -> Any:
    """Return `word` as a value of the simple type `kind`, or as the allowed value `kind`, else _NO_VALUE."""
    try:
        return _PARSERS[kind](word) if kind in _PARSERS else kind if str(kind) == word else _NO_VALUE
    except (ValueError, KeyError):
        return _NO_VALUE


def value_problem(hint: Any, value: Any) -> str:
    """Return what is wrong with `value` as one of type `hint`, '' if nothing is."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [limit for limit in args[1:] if isinstance(limit, Range | Pattern)]
        broken = next((limit for limit in limits if _is_a(args[0], value) and value not in limit), None)
        return str(broken) if broken else value_problem(args[0], value)
    if origin is Literal:
        words = [str(arg) for arg in args]
        return "" if value in args else f"must be one of {', '.join(words)}{near_miss(str(value), words)}"
    if origin in (tuple, list):
        items = value if isinstance(value, tuple | list) else None
        return "must be a list" if items is None else _first_problem(args[0], items)
    if origin is dict:
        return _first_problem(args[1], value.values()) if isinstance(value, dict) else "must be a mapping"
    if args:  # a union allows what any of its members allows
        problems = [value_problem(arg, value) for arg in args if arg is not type(None) or value is None]
        return "" if "" in problems else " or ".join([problems[0], *(p.removeprefix("must be ") for p in problems[1:])])
    if isinstance(value, str | Path) and not _can_be_stored(str(value)):
        return "has a character that neither a file's name nor a file of text can have"
    return "" if _is_a(hint, value) else f"must be {_TYPE_NAMES.get(hint, hint.__name__)}"


def _first_problem(hint: Any, items: Any) -> str:
    return next(filter(None, (value_problem(hint, item) for item in items)), "")


_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "none",
}


def _can_be_stored(text: str) -> bool:
    """Whether a text has neither the character 0 nor half a character, as "\\ud800" in YAML is."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _is_a(hint: Any, value: Any) -> bool:
    """isinstance with numbers as users write them: 1 is a float, True is not an int, NaN is not a number."""
    if isinstance(value, bool):
        return hint in (bool, Any)
    if hint is float:
        return isinstance(value, int | float) and value == value
    return hint is Any or isinstance(value, hint)
