"""Words of the command line to typed options: tyro finds the flags and writes the help, `options` reads and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedflat.core.method import Method
from fedflat.errors import UserError, near_miss
from fedflat.options import check, flag, kinds, read, show
from fedflat.runs.config import find_method
from fedflat.runs.experiment import Setting

T = TypeVar("T")


def parse(options: type[T], words: Sequence[str], prog: str, default: T | None = None, about: str | None = None) -> T:
    """The dataclass `options` filled from `words`; nested dataclasses are groups of flags without prefix."""
    import tyro

    if "--" in words:
        raise UserError(f"--: is not needed, options follow without it; see {prog} --help")
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_rule)
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    extra = {} if default is None else {"default": default}
    cli: Any = tyro.cli  # its overloads do not know that `default` is of the type of `options`
    values, rest = cli(
        options,
        prog=prog,
        description=about,
        args=list(words),
        config=markers,
        registry=registry,
        return_unknown_args=True,
        **extra,
    )
    if rest:
        raise UserError(f"{rest[0]}: unknown option{near_miss(rest[0], _flags(values), '--')}; see {prog} --help")
    check(values)
    return values


def _rule(info: Any) -> Any:
    """How tyro shows and reads a field: never refusing, so that `check` explains what is wrong."""
    import tyro

    if info.type is bool or dataclasses.is_dataclass(info.type):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=_metavar(info.type),
        instance_from_str=lambda words: read(info.type, words),
        is_instance=lambda value: True,
        str_from_instance=show,
    )


def _metavar(hint: Any) -> str:
    """What help shows for a value: FLOAT, {a,b} or INT ..."""
    if get_origin(hint) is tuple:
        return _metavar(get_args(hint)[0]) + " ..."
    shown = [kind for kind in kinds(hint) if kind is not type(None)]
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, shown)) + "}"
    names = {str: "TEXT"}
    return "|".join(names.get(kind, getattr(kind, "__name__", str(kind)).upper()) for kind in shown)


def _flags(options: Any) -> Iterator[str]:
    """Every flag of a dataclass and those nested in it; wrapped methods have none."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name != "inner":
            yield from _flags(value) if dataclasses.is_dataclass(value) else [flag(field.name)]


def cli_setting() -> type[Setting]:
    """Setting with text where Python users may pass objects."""
    text = [(name, str, getattr(Setting, name)) for name in ("dataset", "model")]
    cls = dataclasses.make_dataclass("Setting", text, bases=(Setting,), frozen=True, kw_only=True)
    cls.__doc__ = Setting.__doc__
    return cls


def method_spec(spec: str) -> Method:
    """A method from NAME, NAME:rho=2,beta=10 or WRAPPER+NAME:rho=2."""
    outer, plus, inner = spec.partition("+")
    name, _, pairs = outer.partition(":")
    cls = find_method(name)
    hints = get_type_hints(cls, include_extras=True)
    own = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    values = _values(spec, pairs, own)
    if plus and not inner:
        raise UserError(f"method {spec}: name a method after the +, for example {name}+fedsol")
    if inner and "inner" not in own:
        raise UserError(f"method {spec}: {name} cannot be put around another method; see fedflat methods")
    method = cls(**values, **({"inner": method_spec(inner)} if inner else {}))
    try:
        check(method)
    except UserError as error:
        raise UserError(f"method {spec}: {error}") from None
    return method


def _values(spec: str, pairs: str, hints: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of a method's spec."""
    values: dict[str, Any] = {}
    for pair in filter(None, pairs.split(",")):
        name, value = _assignment(spec, pair, hints)
        if name in values:
            raise UserError(f"method {spec}: {name} may be given once")
        values[name] = value
    return values


def _assignment(spec: str, pair: str, hints: dict[str, Any]) -> tuple[str, Any]:
    """One name=value of a method's spec."""
    name, equals, value = pair.partition("=")
    if not equals:
        raise UserError(f"method {spec}: '{pair}' must look like name=value, for example fedsol:rho=2")
    key = name.replace("-", "_")
    if key not in hints or key == "inner":
        known = [name for name in hints if name != "inner"]
        allowed = f"its hyper-parameters are {', '.join(known)}" if known else "it has no hyper-parameters"
        raise UserError(f"method {spec}: no hyper-parameter '{name}'{near_miss(name, known)}; {allowed}")
    return key, read(hints[key], [value])


def leading(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Positional words before the first flag, and the rest."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])
