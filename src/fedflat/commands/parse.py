"""Words of the command line to typed options, with tyro; its error boxes become one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml

from fedflat.errors import UserError
from fedflat.experiments.config import find_method, method_from_dict
from fedflat.experiments.experiment import Setting
from fedflat.method import Method

T = TypeVar("T")


def parse(options: type[T], words: Sequence[str], prog: str, default: T | None = None) -> T:
    """The dataclass `options` filled from `words`; nested dataclasses are groups of flags without prefix."""
    import tyro

    if any(word in ("-h", "--help") for word in words):
        os.environ.setdefault("COLUMNS", "110")
    errors = io.StringIO()
    extra = {} if default is None else {"default": default}
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(options, prog=prog, args=list(words), config=markers, **extra)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_one_line(errors.getvalue())) from None


def _one_line(box: str) -> str:
    """tyro's message without frame, title and help: what was wrong, and the flag that was probably meant."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    sections = _sections(plain)
    what = " ".join(sections[0]) if sections else "the options could not be read"
    meant = next((re.findall(r"--[\w-]+", " ".join(s)) for s in sections[1:] if s[0].startswith("Perhaps")), [])
    return re.sub(r"\s+", " ", what).rstrip(".") + (f" (did you mean {meant[0]}?)" if meant else "")


def _sections(plain: str) -> list[list[str]]:
    """The blocks between the horizontal rules of a box, without its title."""
    sections: list[list[str]] = [[]]
    for line in plain.splitlines()[1:]:
        text = line.strip(" │|╰╯")
        if text and not set(text) - set("─-"):
            sections.append([])
        elif text:
            sections[-1].append(text)
    return [section for section in sections if section]


def cli_setting() -> type[Setting]:
    """Setting with text where Python users may pass objects."""
    text = [(name, str, getattr(Setting, name)) for name in ("dataset", "model")]
    cls = dataclasses.make_dataclass("Setting", text, bases=(Setting,), frozen=True, kw_only=True)
    cls.__doc__ = Setting.__doc__
    return cls


def method_spec(spec: str) -> Method:
    """A method from NAME, NAME:rho=2,beta=10 or WRAPPER+NAME:rho=2."""
    outer, _, inner = spec.partition("+")
    name, _, pairs = outer.partition(":")
    values: dict[str, Any] = {"name": name}
    for pair in filter(None, pairs.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"method {spec}: '{pair}' must look like name=value, for example fedsol:rho=2")
        values[key] = yaml.safe_load(value)
    if inner:
        if "inner" not in {f.name for f in dataclasses.fields(find_method(name))}:
            raise UserError(f"method {spec}: {name} cannot be put around another method; see fedflat methods")
        return dataclasses.replace(method_from_dict(values), inner=method_spec(inner))  # type: ignore[call-arg]
    return method_from_dict(values)


def leading(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Positional words before the first flag, and the rest."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])
