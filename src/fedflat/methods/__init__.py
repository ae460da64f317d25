"""The methods: one file for each, and METHODS, which finds their classes by the names of the command line.

A wrapper (fedavgm, fedadam, dpfedavg, ...) goes around any method; alone it is around FedAvg. A method's file is
imported when the method is first used, so that a run imports its own method only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any, TypeVar

from fedflat.core.method import Method
from fedflat.errors import UserError, near_miss
from fedflat.own_code import absolute_own_code, is_own_code, load_own_code

M = TypeVar("M", bound=type[Method])


class MethodRegistry(MutableMapping[str, type[Method]]):
    """A dict from names to method classes. Built-in classes are imported when they are looked up.

    Args:
        built_in: "file:Class" for the name of every built-in method, such as "fedsam:FedSAM".
    """

    def __init__(self, built_in: dict[str, str]) -> None:
        self._entries: dict[str, str | type[Method]] = dict(built_in)
        self._own: dict[type[Method], str] = {}  # PATH.py:CLASS of the methods that were given so

    def __getitem__(self, name: str) -> type[Method]:
        entry = self._entries[name]
        if not isinstance(entry, str):
            return entry
        file, _, cls = entry.partition(":")
        return getattr(import_module(f"{__name__}.{file}"), cls)

    def __setitem__(self, name: str, cls: type[Method]) -> None:
        self._entries[name] = cls

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def name_of(self, cls: type[Method]) -> str:
        """Return the name by which `find` gives a method's class: PATH.py:CLASS, NAME, or MODULE:CLASS.

        Args:
            cls: a method's class. If it is not registered, its name is that of its module and its own.
        """
        if cls in self._own:
            return self._own[cls]
        entries = (f"{cls.__module__.removeprefix(f'{__name__}.')}:{cls.__name__}", cls)
        registered = (name for name, entry in self._entries.items() if entry in entries)
        return next(registered, f"{cls.__module__}:{cls.__qualname__}")

    def find(self, name: str) -> type[Method]:
        """Return a method's class by its name, by PATH.py:CLASS, or by MODULE:CLASS.

        Args:
            name: the name, as the command line and configuration files give it.

        Raises:
            UserError: there is no such method.
        """
        if is_own_code(name):
            cls = _check_class(name, load_own_code(None, name))
            self._own[cls] = absolute_own_code(name)
            return cls
        if ":" in name:
            return _check_class(name, _import_class(name))
        if name not in self:
            problem = (
                f"unknown{near_miss(name, self)}; methods are {', '.join(self)}, or a class of yours, FILE.py:CLASS"
            )
            raise UserError(None, f"method {name}", problem)
        return self[name]

    def class_named(self, name: str) -> type[Method] | None:
        """Return the built-in method whose class has this name, None if there is none.

        Args:
            name: the name of a class, such as "FedSOL".
        """
        return next((self[key] for key, entry in self._entries.items() if str(entry).endswith(f":{name}")), None)

    def class_names(self) -> list[str]:
        """Return the class names of the built-in methods."""
        return [entry.partition(":")[2] for entry in self._entries.values() if isinstance(entry, str)]


def _import_class(name: str) -> Any:
    """The class that MODULE:CLASS names; UserError if the module cannot be imported here."""
    module, _, cls = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in cls.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        problem = f"there is no {cls} in the module {module} here ({error}); give its file, FILE.py:{cls}"
        raise UserError(None, f"method {name}", problem) from None
    return found


def _check_class(name: str, cls: Any) -> type[Method]:
    """The class; UserError if it is not that of a method with default values."""
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(None, f"method {name}", "is not a class derived from fedflat.Method")
    if "__dataclass_params__" not in vars(cls) and "__annotations__" in vars(cls):
        raise UserError(None, f"method {name}", "its class needs the line @dataclass(frozen=True) above it")
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if required:
        raise UserError(None, f"method {name}", f"its hyper-parameter {required[0]} needs a default value")
    return cls


METHODS = MethodRegistry(
    {
        "fedavg": "fedavg:FedAvg",
        "fedavgm": "wrappers:ServerMomentum",
        "fedadam": "wrappers:ServerAdam",
        "fedyogi": "wrappers:ServerYogi",
        "fedadagrad": "wrappers:ServerAdagrad",
        "fedswa": "wrappers:Averaged",
        "fedexp": "fedexp:FedExP",
        "compress": "compression:Compressed",
        "dpfedavg": "differential_privacy:Private",
        "fedprox": "fedprox:FedProx",
        "fednova": "fednova:FedNova",
        "scaffold": "scaffold:SCAFFOLD",
        "fedntd": "fedntd:FedNTD",
        "feddyn": "feddyn:FedDyn",
        "moon": "moon:MOON",
        "fedsam": "fedsam:FedSAM",
        "fedasam": "fedasam:FedASAM",
        "fedcm": "fedcm:FedCM",
        "fedacg": "fedacg:FedACG",
        "feddecorr": "feddecorr:FedDecorr",
        "mofedsam": "mofedsam:MoFedSAM",
        "fedgamma": "fedgamma:FedGAMMA",
        "fedsmoo": "fedsmoo:FedSMOO",
        "fedspeed": "fedspeed:FedSpeed",
        "fedlesam": "fedlesam:FedLESAM",
        "fedgmt": "fedgmt:FedGMT",
        "fedsol": "fedsol:FedSOL",
        "fedsol-ablation": "fedsol_ablation:FedSOLAblation",
        "fedgf": "fedgf:FedGF",
        "fedgloss": "fedgloss:FedGloSS",
        "naivefedgloss": "naivefedgloss:NaiveFedGloSS",
        "perfedavg": "perfedavg:PerFedAvg",
        "fedbabu": "fedbabu:FedBABU",
    }
)


def register(name: str) -> Callable[[M], M]:
    """Return a class decorator that adds a method of your own to METHODS: @fedflat.register("fedngd").

    In a program that has imported your module, configuration files and `load_model` find the method by this name.

    Args:
        name: the method's name. The same class may be registered again, as when a notebook's cell is run twice.

    Raises:
        UserError: another method has this name.
    """

    def add(cls: M) -> M:
        known = METHODS.get(name)
        if known and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UserError("method", name, f"is the name of {known.__name__} already; choose another")
        METHODS[name] = cls
        return cls

    return add


def __getattr__(name: str) -> Any:
    """Return the class of a built-in method, such as FedSOL, and import its file."""
    cls = METHODS.class_named(name) if name[:1].isupper() else None
    if cls is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return cls


__all__ = ["METHODS", "MethodRegistry", "register"]
