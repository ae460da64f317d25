"""Experiments as dicts and YAML: {method: {name: fedsol, rho: 2.0}, rounds: 60, …}, and when two of them are the same run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any
import yaml
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints
from torch import Tensor, nn
from fedflat.core.method import Method
from fedflat.core.state import checksum
from fedflat.data.dataset import Dataset
from fedflat.errors import UserError, near_miss
from fedflat.methods import METHODS
from fedflat.options import flag, show
from fedflat.runs.experiment import Experiment, Setting



MAY_CHANGE = ("engine",)  # any engine can take over from another


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


def parse_yaml(text: str) -> Any:
    """What a configuration file says; raises ValueError where it is not valid."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def dump_yaml(values: Mapping[str, Any]) -> str:
    """The text that `parse` reads back."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def as_written(text: str) -> bool:
    """Whether `write` could have given this text: nobody has put in a comment or another way to say the same."""
    values = _values(text)
    return values is not None and dump_yaml(values) == text


def same_run(one: str, other: str, free: Collection[str] = MAY_CHANGE) -> bool:
    """Whether two configurations say the same about all but the `free` options, however it is written."""
    there, here = _values(one), _values(other)
    return there is not None and here is not None and _bound(there, free) == _bound(here, free)


def config_differences(stored: str, given: str, where: str = "folder", free: Collection[str] = MAY_CHANGE) -> list[str]:
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
        values = parse_yaml(text)
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


def method_to_dict(method: Method) -> dict[str, Any]:
    """A method's name and hyper-parameters; wrapped methods nest."""
    names = {cls: name for name, cls in METHODS.items()}
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    values = {name: method_to_dict(v) if isinstance(v, Method) else v for name, v in fields.items()}
    return {"name": names.get(type(method), type(method).__name__), **values}


def method_from_dict(data: Any, where: str = "method") -> Method:
    """The inverse; `data` may be just a name."""
    data = {"name": data} if isinstance(data, str) else data
    if not isinstance(data, Mapping) or "name" not in data:
        raise UserError(f"{where}: must be a method's name or a mapping with the key 'name'")
    cls = find_method(str(data["name"]))
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items() if name != "name"}
    _known(values, [f.name for f in dataclasses.fields(cls)], f"{where} {data['name']}")
    hints = get_type_hints(cls)
    inner = {name: method_from_dict(v, f"{where}.{name}") for name, v in values.items() if hints[name] is Method}
    return cls(**{**values, **inner})


def find_method(name: str) -> type[Method]:
    """A method's class by its command-line name."""
    if name not in METHODS:
        raise UserError(f"method {name}: unknown{near_miss(name, METHODS)}; methods are {', '.join(METHODS)}")
    return METHODS[name]


def experiment_to_dict(experiment: Experiment) -> dict[str, Any]:
    """Everything about an experiment as plain values, probes if any; own data and models by name and checksum."""
    unused = {"probes": experiment.probes, "probe_every": experiment.probes, "validation": experiment.validation}
    left_out = [name for name, used in unused.items() if not used]
    values = {f.name: getattr(experiment, f.name) for f in dataclasses.fields(Setting) if f.name not in left_out}
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    own = {name: _own(plain[name]) for name in ("dataset", "model") if not isinstance(plain[name], str)}
    return {"method": method_to_dict(experiment.method), **plain, **own}


def _own(value: Any) -> str:
    """own:NAME-CHECKSUM, so that a folder is only resumed with the data and the initial model it was begun with."""
    if isinstance(value, Dataset):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        tensors = {name: v for name, v in fields.items() if isinstance(v, Tensor)}
        return f"own:{value.name}-{checksum(tensors):08x}"
    if isinstance(value, nn.Module):
        tensors = {name: t.detach().cpu() for name, t in [*value.named_parameters(), *value.named_buffers()]}
        return f"own:{type(value).__name__}-{checksum(tensors):08x}"
    return f"own:{getattr(value, '__name__', type(value).__name__)}"


def experiment_from_dict(data: Any, where: str) -> Experiment:
    """The experiment a mapping describes; unknown keys are refused."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: must be a mapping of options, such as 'rounds: 60'")
    _known(data, [f.name for f in dataclasses.fields(Experiment)], where)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    if "method" in values:
        values["method"] = method_from_dict(values["method"], f"{where}: method")
    return Experiment(**values)


def load_experiment(path: Path) -> Experiment:
    """The experiment in a YAML file."""
    where = f"--config {path}"
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{where}: not valid YAML ({error})") from None
    try:
        experiment = experiment_from_dict(data, where)
        experiment.check()
    except UserError as error:
        raise error if str(error).startswith(where) else UserError(f"{where}: {error}") from None
    return experiment


def dump_experiment(experiment: Experiment) -> str:
    """The experiment as YAML that `load` reads back."""
    return dump_yaml(experiment_to_dict(experiment))


def _known(data: Iterable[Any], known: list[str], where: str) -> None:
    """Refuse keys that no option has."""
    for key in data:
        if key not in known:
            allowed = f"allowed are {', '.join(known)}" if known else "none are allowed"
            raise UserError(f"{where}: unknown key '{key}'{near_miss(str(key), known)}; {allowed}")
