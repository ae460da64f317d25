"""Experiments as YAML and as dictionaries: {method: {name: fedsol, rho: 2.0}, rounds: 60, …}.

A run's folder keeps its experiment as config.yaml. Two configurations are the same run if they agree in all options but
the engine and the threads, however they are written.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from torch import nn

from fedflat.core.method import Method
from fedflat.core.state import checksum
from fedflat.data.client_files import with_checksum
from fedflat.data.dataset import Dataset, dataset_tensors
from fedflat.errors import UserError, mention, near_miss, shorten
from fedflat.methods import METHODS
from fedflat.options import value_words
from fedflat.own_code import absolute_own_code, is_own_code, short_own_code
from fedflat.runs.code_files import changed_files, code_checksums
from fedflat.runs.experiment import Experiment, Setting

MAY_CHANGE = ("engine", "threads")  # options that may change when a run is resumed
WRITTEN_IF_SET = (  # options that are left out where they have their default, as in files of earlier versions
    "norm_stats",
    "sequence_length",
    "target_column",
    "feature_columns",
    "client_column",
    "test_split",
    "target_scale",
    "holdout_clients",
    "task",
    "init",
    "lr_schedule",
    "lr_step",
    "lr_warmup",
    "lr_in_round",
    "optimiser",
    "optimiser_state",
    "clip_grad",
    "clip_replies",
    "aggregate",
    "attackers",
    "availability",
    "dropout_rate",
    "stragglers",
    "local_steps",
    "client_settings",
    "threads",
)
LONGEST_FILE = 1_000_000  # characters of a configuration file
MAY_GROW = ("rounds", "seeds")  # options that may grow: more rounds, seeds beside the old ones


class _Loader(yaml.SafeLoader):
    """Safe YAML that also reads 1e-3 as a number.

    It refuses a key that appears twice, because YAML would silently use the last one. It refuses aliases, because a few
    lines of them can stand for billions of values, and comparing or printing those would never end.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        times = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key in (key for key, count in times.items() if count > 1):
            problem = f"the key '{shorten(key)}' appears twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def parse_yaml(text: str) -> Any:
    """Return what a configuration file says; raise ValueError if it is not valid.

    Values with a tag, such as `!!int ''` or `!!timestamp x`, make the parser raise nearly anything.
    """
    try:
        return yaml.load(text, _Loader)
    except Exception as error:
        raise ValueError(
            f"{error}" if isinstance(error, yaml.YAMLError) else f"a value cannot be read: {shorten(error)}"
        ) from None


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Return the text that `parse_yaml` reads as `values`."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def is_unedited(text: str) -> bool:
    """Return whether a configuration is exactly as `dump_yaml` writes it: nobody has added a comment or reworded it."""
    values = _parse_options(text)
    return values is not None and dump_yaml(values) == text


def same_run(one: str, other: str, ignored: Collection[str] = MAY_CHANGE) -> bool:
    """Return whether two configurations have the same options, except for the `ignored` ones."""
    first, second = _parse_options(one), _parse_options(other)
    if first is None or second is None or _compared(first, ignored) != _compared(second, ignored):
        return False
    return "code" in ignored or not changed_files(first.get("code"), second.get("code"))


def config_differences(
    stored: str, given: str, where: str = "folder", ignored: Collection[str] = MAY_CHANGE
) -> list[str]:
    """Return the differences of two configurations, as parts of the problem of a UserError.

    Args:
        stored: the configuration that was found.
        given: the configuration that is asked for.
        where: where `stored` was found, in the message: "lr: 0.1 in the folder, 0.05 given".
        ignored: options that may differ.
    """
    first, second = (_parse_options(text) or {} for text in (stored, given))
    old, new = (_by_option(_compared(values, ignored)) for values in (first, second))
    if not old:
        return ["its config.yaml cannot be read"]
    names = [name for name in new | old if old.get(name) != new.get(name)]
    changed = changed_files(first.get("code"), second.get("code")) if "code" not in ignored else []
    differ = [f"{name}: {_value_text(old, name)} in the {where}, {_value_text(new, name)} given" for name in names]
    return differ + [f"{each}: only the old file continues it" for each in changed]


def growing_options(stored: str, given: str, may_grow: Collection[str] = MAY_GROW, trained: int = 0) -> tuple[str, ...]:
    """Return which options of MAY_GROW may differ in two configurations, if `given` is to continue a run of `stored`.

    Args:
        stored: the configuration of the run.
        given: the configuration with which it is continued.
        may_grow: which options may grow at all.
        trained: the rounds that are trained; `rounds` may be fewer than before, but not fewer than these. The cosine
            schedule of learning rates depends on the number of rounds, which may not change then.
    """
    old, new = _parse_options(stored) or {}, _parse_options(given) or {}
    seeds = old.get("seeds")
    keeps = {
        "rounds": new.get("rounds", 0) >= trained and new.get("lr_schedule") != "cosine",
        "seeds": isinstance(seeds, list) and all(seed in new.get("seeds", ()) for seed in seeds),
    }
    return tuple(name for name in may_grow if keeps[name])


def _parse_options(text: str) -> dict[str, Any] | None:
    """The options in a configuration, None if it is damaged or not a mapping."""
    try:
        values = parse_yaml(text)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def _compared(values: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """The options that must agree, as they are written today; code of the user's by its name without folders."""
    left_out = {*ignored, "code"}
    told_apart = {"cohort": str(values["cohort"])} if "cohort" in values else {}  # 1.0 is all clients, 1 is one
    compared = {name: _without_folders(upgrade_method(value)) for name, value in {**values, **told_apart}.items()}
    return {name: value for name, value in compared.items() if name not in left_out}


def _without_folders(value: Any) -> Any:
    """PATH.py:NAME as FILE.py:NAME, and a method's MODULE:CLASS as CLASS, which early versions wrote."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        name = value["name"] if is_own_code(value["name"]) else value["name"].rpartition(":")[2]
        return {key: _without_folders(each) for key, each in value.items()} | {"name": short_own_code(name)}
    return short_own_code(value) if isinstance(value, str) else value


def _value_text(options: Mapping[str, Any], name: str) -> str:
    return " ".join(value_words(options.get(name)))


def _by_option(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values by option as messages name it: method, lr, rho; inner rho for a hyper-parameter of a wrapped method."""
    options: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            options |= _by_option(value, f"{path}{key} ")
        else:
            options[path.strip() if key == "name" else path.removeprefix("method ") + mention(key)] = value
    return options


def method_to_dict(method: Method) -> dict[str, Any]:
    """Return a method's name and hyper-parameters; a wrapped method is a dictionary inside."""
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    values = {name: method_to_dict(v) if isinstance(v, Method) else v for name, v in fields.items()}
    return {"name": METHODS.name_of(type(method)), **values}


def upgrade_method(data: Any) -> Any:
    """A method's entry as it is written today, with the defaults of hyper-parameters that it did not have yet."""
    if not isinstance(data, Mapping):
        return data
    values = {key: upgrade_method(value) if key == "inner" else value for key, value in data.items()}
    values = _upgrade_fedsol(values) if values.get("name") == "fedsol" else values
    cls = METHODS.get(str(values.get("name")))
    fields = dataclasses.fields(cls) if cls else ()
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    return values | {name: default for name, default in defaults.items() if name not in values}


def _upgrade_fedsol(values: dict[str, Any]) -> dict[str, Any]:
    """FedSOL's entry as it is written today: its ablations were options of `fedsol` in version 0.1.0."""
    if values.get("proximal", "kl") != "kl" or values.get("strategy", "A1") != "A1":
        return values | {"name": "fedsol-ablation"}
    if "temperature" in values and values["temperature"] is None:
        values["temperature"] = 3.0
    return {key: value for key, value in values.items() if key not in ("proximal", "strategy", "beta")}


def method_from_dict(data: Any, where: str = "method") -> Method:
    """Return the method that `method_to_dict` described; a name alone is the method with its defaults.

    Args:
        data: the name, or a mapping with the key `name` and hyper-parameters.
        where: how messages call it: method, or method.inner.
    """
    data = {"name": data} if isinstance(data, str) else upgrade_method(data)
    if not isinstance(data, Mapping) or "name" not in data:
        raise UserError(None, where, "must be a method's name or a mapping with the key 'name'")
    cls = METHODS.find(str(data["name"]))
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items() if name != "name"}
    if error := _unknown_key(values, [f.name for f in dataclasses.fields(cls)]):
        raise UserError(None, f"{where} {data['name']}", error)
    hints = get_type_hints(cls)
    inner = {name: method_from_dict(v, f"{where}.{name}") for name, v in values.items() if hints[name] is Method}
    return cls(**{**values, **inner})


def experiment_to_dict(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as values that YAML can hold.

    A data set or a model that is a Python object becomes own:NAME-CHECKSUM. `code` has the checksums of the user's
    files that are given as PATH.py:NAME. Options of unused features are left out.
    """
    used: dict[str, Any] = {"probes": experiment.probes, "probe_every": experiment.probes}
    used |= {"validation": experiment.validation, "sampling": experiment.sampling != "uniform"}
    used["long_tail"] = experiment.long_tail != 1
    used |= {name: getattr(experiment, name) != getattr(Setting, name) for name in WRITTEN_IF_SET}
    used |= {"straggler_work": experiment.stragglers, "local_epochs": not experiment.local_steps}
    used |= dict.fromkeys(("attack", "attack_strength"), experiment.attackers)
    names = [f.name for f in dataclasses.fields(Setting) if used.get(f.name, True)]
    values = {name: getattr(experiment, name) for name in names}
    values |= {"local_epochs": experiment.epochs} if "local_epochs" in values else {}
    values |= {name: with_checksum(values[name]) for name in ("availability", "client_settings") if name in values}
    lists = {name: list(v) for name, v in values.items() if isinstance(v, tuple)}
    own: dict[str, Any] = {name: _own_name(values[name]) for name in ("dataset", "model", "task") if name in values}
    code = code_checksums(experiment)
    method = method_to_dict(experiment.method)
    return {"method": method, **values, **lists, **own, **({"code": code} if code else {})}


def _own_name(value: Any) -> str:
    """A name, or own:NAME-CHECKSUM: a folder is only resumed with the data and the initial model it was begun with."""
    if isinstance(value, str):
        return absolute_own_code(value) if is_own_code(value) else value
    if isinstance(value, Dataset):
        return f"own:{value.name}-{checksum(dataset_tensors(value)):08x}"
    if isinstance(value, nn.Module):
        tensors = {name: t.detach().cpu() for name, t in [*value.named_parameters(), *value.named_buffers()]}
        return f"own:{type(value).__name__}-{checksum(tensors):08x}"
    return f"own:{getattr(value, '__name__', type(value).__name__)}"


def experiment_from_dict(data: Any) -> Experiment:
    """Return the experiment that a mapping describes; raise UserError for unknown keys. Values are not checked."""
    if not isinstance(data, Mapping):
        raise UserError(None, "options", "must be a mapping, such as 'rounds: 60'")
    data = {name: value for name, value in data.items() if name != "code"}
    if error := _unknown_key(data, [f.name for f in dataclasses.fields(Experiment)]):
        raise error
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    if "method" in values:
        values["method"] = method_from_dict(values["method"])
    return Experiment(**values)


def load_experiment(path: Path) -> Experiment:
    """Return the experiment in a YAML file; raise UserError, with the file's name, if it cannot be used."""
    try:
        experiment = experiment_from_dict(parse_yaml(_read_text(path)))
        experiment.check()
    except OSError as error:
        raise UserError("config", path, error.strerror or str(error)) from None
    except UserError as error:
        raise UserError("config", path, error) from None
    except ValueError as error:
        raise UserError("config", path, f"not valid YAML ({error})") from None
    return experiment


def _read_text(path: Path) -> str:
    """The text of a configuration file, which may be a pipe; ValueError if it has no end."""
    with open(path, encoding="utf-8") as file:
        text = file.read(LONGEST_FILE + 1)
    if len(text) > LONGEST_FILE:
        raise ValueError(f"more than {LONGEST_FILE:,} characters")
    return text


def dump_experiment(experiment: Experiment) -> str:
    """Return an experiment as the YAML that `load_experiment` reads."""
    return dump_yaml(experiment_to_dict(experiment))


def _unknown_key(data: Iterable[Any], known: list[str]) -> UserError | None:
    """The error about the first key of `data` that is not an option."""
    for key in data:
        if key not in known:
            allowed = f"allowed are {', '.join(known)}" if known else "no keys are allowed"
            return UserError(None, f"unknown key '{key}'{near_miss(str(key), known)}", allowed)
    return None
