"""From the words of a command line to dataclasses of options.

tyro finds the flags and writes the help; `fedflat.options` parses and checks the values, so that a mistake gives the
same message on the command line, in a YAML file and in Python.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from fedflat.cli import flag
from fedflat.cli.tyro_rules import field_rule, options_rule
from fedflat.core.method import Method
from fedflat.core.metric import DEFAULT_TARGET
from fedflat.errors import UserError, near_miss, shorten
from fedflat.methods import METHODS
from fedflat.options import Fraction, NonNegative, check, parse_words
from fedflat.runs.experiment import Experiment, Setting

T = TypeVar("T")
TrackerName = Literal["wandb", "mlflow", "tensorboard"]


def parse_options(
    options: type[T], words: Sequence[str], prog: str, default: T | None = None, about: str | None = None
) -> T:
    """Return the dataclass `options` filled from command-line words, or print help and exit.

    Args:
        options: the dataclass; a dataclass nested in it becomes a group of flags in the help.
        words: what follows the command and its positional words.
        prog: the command as the help shows it.
        default: values of options that are not given; the fields' defaults if None.
        about: the help's first paragraph; the docstring of `options` if None.

    Raises UserError for an unknown flag or a value that is not allowed.
    """
    import tyro

    words = [re.sub("^--optimizer", "--optimiser", word) for word in words]
    if "--" in words:
        raise UserError(None, "--", f"is not needed, options follow without it; see {prog} --help")
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(field_rule)
    registry.struct_rule(options_rule)
    extra = {} if default is None else {"default": default}
    cli: Any = tyro.cli  # its overloads do not know that `default` is of the type of `options`
    values, rest = cli(
        options,
        prog=prog,
        description=about,
        args=list(words),
        config=(tyro.conf.OmitArgPrefixes,),
        registry=registry,
        return_unknown_args=True,
        **extra,
    )
    if rest:
        unknown = rest[0].partition("=")[0]
        if not unknown.startswith("-"):
            raise UserError(None, unknown, f"belongs to no option, and on/off takes no value; see {prog} --help")
        hint = near_miss(unknown, _all_flags(values), "--")
        raise UserError(None, unknown, f"unknown option{hint}; see {prog} --help")
    check(values)
    return values


def _all_flags(options: Any) -> Iterator[str]:
    """The flags of a dataclass and of those nested in it. A method inside a wrapper has no flags."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name != "inner":
            yield from _all_flags(value) if dataclasses.is_dataclass(value) else [flag(field.name)]


def _text_setting() -> type[Setting]:
    """Return Setting with text for `dataset`, `model` and `task`, which may be objects in Python."""
    text = [(name, str, getattr(Setting, name)) for name in ("dataset", "model", "task")]
    cls = dataclasses.make_dataclass("Setting", text, bases=(Setting,), frozen=True, kw_only=True)
    cls.__doc__ = Setting.__doc__
    return cls


def split_method(spec: str) -> tuple[str, str]:
    """Return name and hyper-parameters of NAME:rho=2,beta=10 or FILE.py:CLASS:rho=2,beta=10."""
    path, suffix, rest = spec.rpartition(".py:")
    name, _, pairs = rest.partition(":")
    return path + suffix + name, pairs


def parse_method(spec: str) -> Method:
    """Return the method that NAME, NAME:rho=2,beta=10 or WRAPPER+NAME:rho=2 describes. Raise UserError if none.

    NAME may be FILE.py:CLASS.
    """
    outer, plus, inner = spec.partition("+")
    name, pairs = split_method(outer)
    cls = METHODS.find(name)
    hints = get_type_hints(cls, include_extras=True)
    own = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    values = _hyper_parameters(spec, pairs, own)
    if plus and not inner:
        raise _method_error(spec, f"name a method after the +, for example {name}+fedsol")
    if inner and "inner" not in own:
        raise _method_error(spec, f"{name} cannot be put around another method; see fedflat methods")
    check_places(name, own, inner)
    method = cls(**values, **({"inner": parse_method(inner)} if inner else {}))
    try:
        check(method)
    except UserError as error:
        raise _method_error(spec, error) from None
    return method


def check_places(wrapper: str, own: Iterable[str], inner: str) -> None:
    """Raise UserError if a hyper-parameter of a wrapper is written behind the wrapped method: compress+fedavg:bits=4.

    Args:
        wrapper: the name before the +.
        own: the wrapper's hyper-parameters.
        inner: what follows the +.
    """
    name, pairs = split_method(inner.partition("+")[0])
    for pair in filter(None, pairs.split(",")):
        key = pair.partition("=")[0].replace("-", "_")
        if key in own and key not in {f.name for f in dataclasses.fields(METHODS.find(name))}:
            problem = f"{key} is a hyper-parameter of {wrapper}; write {wrapper}:{pair}+{name}"
            raise _method_error(f"{wrapper}+{inner}", problem)


def _method_error(spec: str, problem: str | UserError) -> UserError:
    return UserError(None, f"method {spec}", problem)


def _hyper_parameters(spec: str, pairs: str, hints: dict[str, Any]) -> dict[str, Any]:
    """The values in rho=2,beta=10 by name."""
    values: dict[str, Any] = {}
    for pair in filter(None, pairs.split(",")):
        name, value = _hyper_parameter(spec, pair, hints)
        if name in values:
            raise _method_error(spec, f"{name} may be given once")
        values[name] = value
    return values


def _hyper_parameter(spec: str, pair: str, hints: dict[str, Any]) -> tuple[str, Any]:
    """Name and value of rho=2."""
    name, equals, value = pair.partition("=")
    if not equals:
        raise _method_error(spec, f"'{shorten(pair)}' must look like name=value, for example fedsol:rho=2")
    key = name.replace("-", "_")
    if key not in hints or key == "inner":
        known = [name for name in hints if name != "inner"]
        allowed = f"its hyper-parameters are {', '.join(known)}" if known else "it has no hyper-parameters"
        raise _method_error(spec, f"no hyper-parameter '{shorten(name)}'{near_miss(name, known)}; {allowed}")
    return key, parse_words(hints[key], [value])


def split_positionals(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first flag, and the rest."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputFiles:
    """Configuration file and results."""

    config: Path | None = None
    """YAML file with options; flags override it."""
    out: Path | None = None
    """Folder for the results; runs/METHOD-DATE-TIME unless given."""
    resume: bool = False
    """Continue the run in the folder of --out, with its options; more rounds or seeds extend it, also if complete."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFiles(OutputFiles):
    """Configuration file and results."""

    target: Fraction = DEFAULT_TARGET
    """Accuracy for which the rounds until it is first reached are counted."""
    stop_at_accuracy: NonNegative | None = None
    """End training when every seed has reached this accuracy, or value of another main metric (mse); none trains all
    rounds."""
    track: tuple[TrackerName, ...] = ()
    """Write metrics while training: wandb, mlflow (need fedflat[wandb], fedflat[mlflow]) or tensorboard, to the run's
    folder. docs/callbacks.md says how to set them up."""


def parse_flags(
    method: Method | None, base: Experiment, files: type[OutputFiles], flags: list[str], prog: str, about: str
) -> Any:
    """Return the options `method` (unless None), `setting` and `files` from flags.

    Args:
        method: its hyper-parameters are flags, with its values as defaults.
        base: the defaults of the setting, such as those of --config.
        files: the class of the options `files`.
        flags: the words of the command line from the first flag on.
        prog: the command as the help shows it.
        about: the help's first paragraph.
    """
    setting = _text_setting()
    values = {f.name: getattr(base, f.name) for f in dataclasses.fields(Setting)}
    fields: list[Any] = [("setting", setting, setting(**values)), ("files", files, files())]
    if method is not None:
        check_flag_names(method)
        outer = _without_hidden_flags(type(method), {"inner", *(f.name for f in dataclasses.fields(files))})
        values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
        fields.insert(0, ("method", outer, outer(**values)))
    options = dataclasses.make_dataclass("Options", fields, frozen=True)
    return parse_options(options, _with_target_column(flags), prog, options(), about)


def _with_target_column(flags: Sequence[str]) -> list[str]:
    """Return flags with --target-column for --target where a name follows: --target 0.9 is an accuracy to reach."""
    words = list(flags)
    for n, (word, value) in enumerate(pairwise(flags)):
        number = value.startswith("-") or re.fullmatch(r"[\d.,]+%?", value) or parse_words(float, [value]) != value
        if word == "--target" and not number:
            words[n] = "--target-column"
    return words


def check_flag_names(method: Method) -> None:
    """Raise UserError for a hyper-parameter with the name of an option of the run: a flag cannot set both."""
    settings = {f.name for f in dataclasses.fields(Setting)}
    for field in dataclasses.fields(method):
        if field.name in settings:
            problem = f"its hyper-parameter {field.name} has the name of an option of every run; give it another name"
            raise UserError(None, f"method {type(method).__name__}", problem)


def _without_hidden_flags(cls: type[Method], names: Collection[str]) -> Any:
    """Return a method's class without flags for some fields, which are written as WRAPPER:keep=0.1+METHOD:rho=2.

    Args:
        cls: the class.
        names: the wrapped method, and what the command itself has an option for, as fedflat tune has --keep.
    """
    import tyro

    fields: Any = [f for f in dataclasses.fields(cls) if f.name in names]
    if not fields:
        return cls
    no_flag: Any = Annotated[Any, tyro.conf.Suppress, tyro.conf.Fixed]
    hidden = [
        (f.name, no_flag, dataclasses.field(default=f.default, default_factory=f.default_factory)) for f in fields
    ]
    return dataclasses.make_dataclass(
        cls.__name__, hidden, bases=(cls,), namespace={"__doc__": cls.__doc__}, frozen=True
    )


def check_inner_flags(spec: str, method: Method, flags: list[str]) -> None:
    """Raise UserError for a flag that is a hyper-parameter of a wrapped method, and say how to write it in the spec."""
    outer = {flag(f.name) for f in (*dataclasses.fields(method), *dataclasses.fields(Setting))}
    chain, names = method_chain(method), spec.split("+")
    for word, value in pairwise([*flags, "..."]):
        name, _, given = word.partition("=")
        for level, inner in enumerate(chain[1 : len(names)], 1):
            if name not in outer and name in {flag(f.name) for f in dataclasses.fields(inner)}:
                pair = f"{name.removeprefix('--')}={given or (value if not value.startswith('--') else '...')}"
                names[level] += ("," if split_method(names[level])[1] else ":") + pair
                problem = f"flags set the outermost method, {names[0]}; write {'+'.join(names)}"
                raise UserError(None, name, problem)


def method_chain(method: Method) -> list[Method]:
    """Return a method, the one it wraps, and so on."""
    inner = getattr(method, "inner", None)
    return [method, *method_chain(inner)] if inner is not None else [method]
