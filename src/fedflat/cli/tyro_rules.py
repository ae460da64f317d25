"""How tyro shows and reads options: it finds flags and writes the help, `fedflat.options` checks values."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from fedflat.core.method import Method
from fedflat.options import member_types, parse_words, value_words


def field_rule(info: Any) -> Any:
    """Tell tyro how to show and parse a field. It accepts any words: `check` says what is wrong with them."""
    import tyro

    if info.type is bool or dataclasses.is_dataclass(info.type):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar(info.type),
        instance_from_str=lambda words: parse_words(info.type, words),
        is_instance=lambda value: True,
        str_from_instance=value_words,
    )


def metavar(hint: Any) -> str:
    """Return what the help shows for a value: FLOAT, {a,b} or INT ..."""
    if get_origin(hint) is tuple:
        return metavar(get_args(hint)[0]) + " ..."
    shown = [kind for kind in member_types(hint) if kind is not type(None)]
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, shown)) + "}"
    names = {str: "TEXT"}
    return "|".join(names.get(kind, getattr(kind, "__name__", str(kind)).upper()) for kind in shown)


def options_rule(info: Any) -> Any:
    """Tell tyro the fields of a dataclass, with their help as one line and their default only where there is one."""
    import tyro

    if not dataclasses.is_dataclass(info.type):
        return None
    cls: Any = info.type
    fields = tuple(_field_spec(cls, field, info.default) for field in dataclasses.fields(cls) if field.init)
    return tyro.constructors.StructConstructorSpec(cls, fields)


def _field_spec(cls: type, field: dataclasses.Field[Any], values: Any) -> Any:
    """Return what tyro has to know about a field; `values` is an object with the defaults, or a mark of tyro's.

    A method's options that are on or off have two flags, --regularise and --no-regularise, of which a configuration can
    make either the default; those of a command are off by default and have one.
    """
    import tyro

    hint, default = get_type_hints(cls, include_extras=True)[field.name], _default(field, values)
    if hint is bool and not issubclass(cls, Method):
        hint = Annotated[hint, tyro.conf.FlagCreatePairsOff]
    if default in (None, "", ()):
        hint = Annotated[hint, tyro.conf.arg(help_behavior_hint="")]
    return tyro.constructors.StructFieldSpec(field.name, hint, default, partial(_help, cls, field.name))


def _default(field: dataclasses.Field[Any], values: Any) -> Any:
    """Return the value of a field in `values`, an object with defaults or tyro's mark that there is none."""
    import tyro

    if hasattr(values, field.name):
        return getattr(values, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING if field.default is dataclasses.MISSING else field.default


def _help(cls: type, name: str) -> str | None:
    """Return the string below a field as one line."""
    return next((docs[name] for base in cls.__mro__ if name in (docs := _field_docs(base))), None)


@cache
def _field_docs(cls: type) -> dict[str, str]:
    import docstring_parser

    if cls.__module__ == "builtins":
        return {}
    params = docstring_parser.parse_from_object(cls).params
    return {param.arg_name: " ".join(param.description.split()) for param in params if param.description}
