"""What values options may take: ranges written into the dataclasses' types, and one check for all ways in."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from fedflat.errors import UserError, near_miss


class Range(NamedTuple):
    """The closed interval [low, high], without its lower end where `open` is set, without ∞ where `finite` is."""

    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    finite: bool = True

    def __contains__(self, value: object) -> bool:
        number: float = value  # type: ignore[assignment]
        above = self.low < number if self.open else self.low <= number
        return above and number <= self.high and (not self.finite or _finite(number))

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"must be between {self.low:.10g}{' (not included)' if self.open else ''} and {self.high:.10g}"
        above = f"must be {'more than' if self.open else 'at least'} {self.low:.10g}"
        return f"{above} and finite" if self.finite else above


def _finite(number: float) -> bool:
    """Whether a float can hold the number, which YAML may have read as a long int."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


Positive = Annotated[float, Range(0, open=True)]


NonNegative = Annotated[float, Range(0)]


Fraction = Annotated[float, Range(0, 1)]


Count = Annotated[int, Range(1, 10**9)]


Index = Annotated[int, Range(0, 2**32 - 1)]


Epochs = Annotated[int, Range(0, 10_000)]


def flag(name: str) -> str:
    """The command-line spelling of a field; one that is a word of Python ends in _."""
    return "--" + name.rstrip("_").replace("_", "-")


def plain(options: Any) -> dict[str, Any]:
    """The fields of a dataclass that should be plain for equal ones to be written alike: tuples, Python's numbers."""
    values = [(name, value, _plain(hint, value)) for name, hint, value in _fields(options)]
    return {name: new for name, old, new in values if new is not old}


def settled(options: Any) -> Any:
    """The same dataclass with plain values."""
    found = plain(options)
    return dataclasses.replace(options, **found) if found else options


_PLAIN: dict[Any, Callable[[Any], Any]] = {bool | np.bool_: bool, Integral: int, Real: float, str: str}


def _plain(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, hint):  # a method
        return settled(value)
    if get_origin(hint) is tuple and isinstance(value, list | tuple | range | np.ndarray):
        return tuple(_plain(get_args(hint)[0], item) for item in value)
    return next((own(value) for kind, own in _PLAIN.items() if isinstance(value, kind)), value)


def check(options: Any) -> None:
    """Raise UserError for the first field of a dataclass that is not of its type or outside its range."""
    for field, hint, value in _fields(options):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check(value)
        elif problem := _problem(hint, value):
            raise UserError(f"{' '.join([flag(field), *show(value)])}: {problem}")


def _fields(options: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and value of every field of a dataclass."""
    hints = _hints(type(options))
    return ((f.name, hints[f.name], getattr(options, f.name)) for f in dataclasses.fields(options))


_hints: Callable[[type], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))


def check_picture(out: Path) -> None:
    """Refuse an --out that is no .png file or cannot be written, before the picture is drawn."""
    if out.suffix.lower() != ".png" or out.is_dir() or not out.parent.is_dir():
        raise UserError(f"--out {out}: must be a .png file in a folder that exists")
    check_writable("--out", out, out.parent)


def check_writable(option: str, path: Path, folder: Path) -> None:
    """Refuse a path if nothing can be written to `folder`, which may have to be made."""
    try:
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written ({error.strerror or error})") from None


def show(value: Any) -> list[str]:
    """A value as the words that stand for it on the command line."""
    items = value if isinstance(value, tuple | list) else [value]
    return ["none" if item is None else str(item) for item in items]


def read(hint: Any, words: Sequence[str]) -> Any:
    """The value of type `hint` that `words` stand for; words that stand for none are left for `check` to refuse."""
    if get_origin(hint) is tuple:
        return tuple(read(get_args(hint)[0], [word]) for word in words)
    if len(words) != 1:
        return tuple(words)
    readings = [value for kind in kinds(hint) if (value := _read(kind, words[0])) is not _NOTHING]
    return readings[0] if readings else words[0]


def kinds(hint: Any) -> list[Any]:
    """The plain types and allowed values that a type is made of: int | None → int, None."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        return kinds(parts[0])
    if get_origin(hint) is Literal:
        return list(parts)
    return [kind for part in parts for kind in kinds(part)] if parts else [hint]


_NOTHING = object()


_READERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: lambda word: {"true": True, "false": False}[word.lower()],
    Path: lambda word: Path(word) if word else _NOTHING,
    type(None): lambda word: {"none": None}[word.lower()],
}


def _read(kind: Any, word: str) -> Any:
    """`word` as a value of a plain type or as the allowed value `kind`, _NOTHING where it is neither."""
    try:
        return _READERS[kind](word) if kind in _READERS else kind if str(kind) == word else _NOTHING
    except (ValueError, KeyError):
        return _NOTHING


def _problem(hint: Any, value: Any) -> str:
    """What is wrong with `value`, '' where nothing is."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bad = next((r for r in args[1:] if isinstance(r, Range) and _is(args[0], value) and value not in r), None)
        return str(bad) if bad else _problem(args[0], value)
    if origin is Literal:
        return "" if value in args else f"must be one of {', '.join(map(str, args))}{near_miss(str(value), args)}"
    if origin is tuple:
        problems = (
            [_problem(args[0], item) for item in value] if isinstance(value, tuple | list) else ["must be a list"]
        )
        return next(filter(None, problems), "")
    if args:  # a union: fine if any member is
        problems = [_problem(arg, value) for arg in args]
        return min(problems, key=bool) if "" in problems else problems[0]
    return "" if _is(hint, value) else f"must be {_KINDS.get(hint, hint.__name__)}"


_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "none",
}


def _is(hint: Any, value: Any) -> bool:
    """isinstance with numbers as users write them: 1 is a float, True is no int, NaN is no number."""
    if isinstance(value, bool):
        return hint in (bool, Any)
    if hint is float:
        return isinstance(value, int | float) and value == value
    return hint is Any or isinstance(value, hint)
