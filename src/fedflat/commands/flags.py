"""The flags of fedflat run and compare: of the method, of the setting, and where files are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from fedflat.commands.parse import cli_setting, parse
from fedflat.core.method import Method
from fedflat.errors import UserError
from fedflat.options import flag
from fedflat.runs.experiment import Experiment, Setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """Where the run is described and what it leaves."""

    config: Path | None = None
    """YAML file with options; flags override it."""
    out: Path | None = None
    """Folder for the results; runs/METHOD-DATE-TIME unless given."""
    resume: bool = False
    """Continue what was interrupted in the folder given by --out."""


def parse_flags(
    method: Method | None, base: Experiment, files: type[Files], flags: list[str], prog: str, about: str
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
    return parse(options, flags, prog, options(), about)


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
