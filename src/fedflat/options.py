"""What values options may take: ranges written into the dataclasses' types, and one check for all ways in."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fedflat.errors import UserError, near_miss


class Range(NamedTuple):
    """The closed interval [low, high], without its lower end where `open` is set."""

    low: float = -math.inf
    high: float = math.inf
    open: bool = False

    def __contains__(self, value: object) -> bool:
        number = float(value)  # type: ignore[arg-type]
        return (self.low < number if self.open else self.low <= number) and number <= self.high

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"must be between {self.low:g}{' (not included)' if self.open else ''} and {self.high:g}"
        return f"must be {'more than' if self.open else 'at least'} {self.low:g}"


Positive = Annotated[float, Range(0, open=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]
Index = Annotated[int, Range(0)]


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


def check(options: Any) -> None:
    """Raise UserError for the first field of a dataclass that is not of its type or outside its range."""
    hints = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            check(value)
        elif problem := _problem(hints[field.name], value):
            raise UserError(f"{flag(field.name)} {_show(value)}: {problem}")


def _show(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _problem(hint: Any, value: Any) -> str:
    """What is wrong with `value`, '' where nothing is."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bad = next((r for r in args[1:] if isinstance(r, Range) and _is(args[0], value) and value not in r), None)
        return str(bad) if bad else _problem(args[0], value)
    if origin is Literal:
        return "" if value in args else f"must be one of {', '.join(map(str, args))}{near_miss(str(value), args)}"
    if origin is tuple:
        problems = (_problem(args[0], item) for item in value) if isinstance(value, tuple) else iter(["must be a list"])
        return next((problem for problem in problems if problem), "")
    if args:  # a union: fine if any member is
        problems = [_problem(arg, value) for arg in args]
        return min(problems, key=bool) if "" in problems else problems[0]
    return "" if _is(hint, value) else f"must be {_KINDS.get(hint, hint)}"


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "empty"}


def _is(hint: Any, value: Any) -> bool:
    """isinstance with numbers as users write them: 1 is a float, True is no int, NaN is no number."""
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and not math.isnan(value)
    return hint is Any or isinstance(value, hint)
