"""Experiments as plain dicts and YAML: {method: {name: fedsol, rho: 2.0}, rounds: 60, ...}."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from torch import Tensor, nn

from fedflat.core.method import Method
from fedflat.core.state import checksum
from fedflat.data.dataset import Dataset
from fedflat.engine.configuration import parse, write
from fedflat.errors import UserError, near_miss
from fedflat.experiments.experiment import Experiment, Setting
from fedflat.methods import METHODS


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


def to_dict(experiment: Experiment) -> dict[str, Any]:
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


def from_dict(data: Any, where: str) -> Experiment:
    """The experiment a mapping describes; unknown keys are refused."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: must be a mapping of options, such as 'rounds: 60'")
    _known(data, [f.name for f in dataclasses.fields(Experiment)], where)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    if "method" in values:
        values["method"] = method_from_dict(values["method"], f"{where}: method")
    return Experiment(**values)


def load(path: Path) -> Experiment:
    """The experiment in a YAML file."""
    where = f"--config {path}"
    try:
        data = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{where}: not valid YAML ({error})") from None
    try:
        experiment = from_dict(data, where)
        experiment.check()
    except UserError as error:
        raise error if str(error).startswith(where) else UserError(f"{where}: {error}") from None
    return experiment


def dump(experiment: Experiment) -> str:
    """The experiment as YAML that `load` reads back."""
    return write(to_dict(experiment))


def _known(data: Iterable[Any], known: list[str], where: str) -> None:
    """Refuse keys that no option has."""
    for key in data:
        if key not in known:
            allowed = f"allowed are {', '.join(known)}" if known else "none are allowed"
            raise UserError(f"{where}: unknown key '{key}'{near_miss(str(key), known)}; {allowed}")
