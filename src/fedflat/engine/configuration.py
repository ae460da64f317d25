"""Configurations as YAML: how they are read and written, and whether two of them describe the same run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from fedflat.options import flag, show

FREE = ("engine",)  # any engine can take over from another


class _Loader(yaml.SafeLoader):
    """Safe YAML that also takes 1e-3 for a number. Every key stands once, and nothing stands for something else:
    a few lines of aliases could stand for more values than anyone can compare."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        times = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key in (key for key, count in times.items() if count > 1):
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' appears twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def parse(text: str) -> Any:
    """What a configuration file says; raises ValueError where it is not valid."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def write(values: Mapping[str, Any]) -> str:
    """The text that `parse` reads back."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def as_written(text: str) -> bool:
    """Whether `write` could have given this text: nobody has put in a comment or another way to say the same."""
    values = _values(text)
    return values is not None and write(values) == text


def same_run(one: str, other: str, free: Collection[str] = FREE) -> bool:
    """Whether two configurations say the same about all but the `free` options, however it is written."""
    there, here = _values(one), _values(other)
    return there is not None and here is not None and _bound(there, free) == _bound(here, free)


def differences(stored: str, given: str, where: str = "folder", free: Collection[str] = FREE) -> list[str]:
    """The options in which two configurations disagree: ["--lr: 0.1 in the folder, 0.05 given"]."""
    try:
        there, here = (_named(_bound(_values(text) or {}, free)) for text in (stored, given))
    except AttributeError:  # a key that is no text
        there = {}
    if not there:
        return ["its config.yaml cannot be read"]
    names = [name for name in here | there if there.get(name) != here.get(name)]
    return [f"{name}: {_words(there, name)} in the {where}, {_words(here, name)} given" for name in names]


def _values(text: str) -> dict[str, Any] | None:
    """The options in a text, None where it is damaged or no mapping."""
    try:
        values = parse(text)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def _bound(values: Mapping[str, Any], free: Collection[str]) -> dict[str, Any]:
    """The options that must agree."""
    return {name: value for name, value in values.items() if name not in free}


def _words(options: Mapping[str, Any], name: str) -> str:
    """An option's value as it is typed."""
    return " ".join(show(options.get(name)))


def _named(config: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """Options by their flags; those of a method inside another by the way that leads to it."""
    named: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            named |= _named(value, f"{of}{key} ")
        else:
            named[of.strip() if key == "name" else of.removeprefix("method ") + flag(key)] = value
    return named
