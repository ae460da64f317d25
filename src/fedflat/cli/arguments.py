"""Words of the command line to typed options: tyro finds the flags and writes the help, `options` reads and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedflat.core.method import Method
from fedflat.errors import UserError, near_miss
from fedflat.options import check, flag, kinds, read, show
from fedflat.runs.config import find_method
from fedflat.runs.experiment import Experiment, Setting

T = TypeVar("T")


def parse_options(
    options: type[T], words: Sequence[str], prog: str, default: T | None = None, about: str | None = None
) -> T:
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
        raise UserError(f"{rest[0]}: unknown option{near_miss(rest[0], _all_flags(values), '--')}; see {prog} --help")
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


def _all_flags(options: Any) -> Iterator[str]:
    """Every flag of a dataclass and those nested in it; wrapped methods have none."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name != "inner":
            yield from _all_flags(value) if dataclasses.is_dataclass(value) else [flag(field.name)]


def cli_setting() -> type[Setting]:
    """Setting with text where Python users may pass objects."""
    text = [(name, str, getattr(Setting, name)) for name in ("dataset", "model")]
    cls = dataclasses.make_dataclass("Setting", text, bases=(Setting,), frozen=True, kw_only=True)
    cls.__doc__ = Setting.__doc__
    return cls


def parse_method(spec: str) -> Method:
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
    method = cls(**values, **({"inner": parse_method(inner)} if inner else {}))
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


def split_positionals(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Positional words before the first flag, and the rest."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Where the run is described and what it leaves."""

    config: Path | None = None
    """YAML file with options; flags override it."""
    out: Path | None = None
    """Folder for the results; runs/METHOD-DATE-TIME unless given."""
    resume: bool = False
    """Continue what was interrupted in the folder given by --out."""


def parse_flags(
    method: Method | None, base: Experiment, files: type[RunFiles], flags: list[str], prog: str, about: str
) -> Any:
    """Flags for the method, the setting and the files, with `base` as defaults."""
    setting = cli_setting()
    values = {f.name: getattr(base, f.name) for f in dataclasses.fields(Setting)}
    fields: list[Any] = [("setting", setting, setting(**values)), ("files", files, files())]
    if method is not None:
        own = _flags_only(type(method))
        values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
        fields.insert(0, ("method", own, own(**values)))
    options = dataclasses.make_dataclass("Options", fields, frozen=True)
    return parse_options(options, flags, prog, options(), about)


def _flags_only(cls: type[Method]) -> Any:
    """The method's type without flags for a wrapped method, which the command line writes as WRAPPER+METHOD."""
    import tyro

    if "inner" not in {f.name for f in dataclasses.fields(cls)}:
        return cls
    hidden: list[Any] = [("inner", Annotated[Method, tyro.conf.Suppress, tyro.conf.Fixed], dataclasses.field())]
    return dataclasses.make_dataclass(
        cls.__name__, hidden, bases=(cls,), namespace={"__doc__": cls.__doc__}, frozen=True
    )


def refuse_inner(spec: str, method: Method, flags: list[str]) -> None:
    """Say how to write a hyper-parameter of a wrapped method, for which there is no flag."""
    outer = {flag(f.name) for f in (*dataclasses.fields(method), *dataclasses.fields(Setting))}
    levels, names = _levels(method), spec.split("+")
    for word, value in zip(flags, [*flags[1:], "..."], strict=True):
        name, _, given = word.partition("=")
        for level, inner in enumerate(levels[1 : len(names)], 1):
            if name not in outer and name in {flag(f.name) for f in dataclasses.fields(inner)}:
                pair = f"{name.removeprefix('--')}={given or (value if not value.startswith('--') else '...')}"
                names[level] += ("," if ":" in names[level] else ":") + pair
                raise UserError(f"{name}: flags set the outermost method, {names[0]}; write {'+'.join(names)}")


def _levels(method: Method) -> list[Method]:
    """A method, the one it wraps, and so on."""
    inner = getattr(method, "inner", None)
    return [method, *_levels(inner)] if inner is not None else [method]
