"""fedflat: federated learning on heterogeneous data with methods that seek flat minima.

    import fedflat as ff

    result = ff.run(ff.Experiment(method=ff.FedSOL(rho=2.0), dataset="digits"))

Everything public is here. A name's module is imported when the name is first used: the command line begins before torch
is imported, so that Ctrl-C meets it and not Python.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "fedflat.runs.experiment": ("Experiment", "Setting"),
    "fedflat.runs.train": ("run",),
    "fedflat.runs.federation": ("Federation",),
    "fedflat.runs.callbacks": ("STOP", "Callback", "TrainingView"),
    "fedflat.runs.stopping": ("EarlyStopping", "StopAtAccuracy"),
    "fedflat.runs.trackers": ("CSVLogger", "MLflowLogger", "TensorBoardLogger", "WandbLogger"),
    "fedflat.runs.sweep": ("SweepPoint", "sweep"),
    "fedflat.runs.search_space": ("SearchOptions", "SearchRange"),
    "fedflat.runs.tune": ("TuneResult", "tune"),
    "fedflat.runs.result": ("Result",),
    "fedflat.runs.read": ("load_model",),
    "fedflat.flatness.analyse": ("analyse",),
    "fedflat.reproduce": ("write_report",),
    "fedflat.personal": ("personalise",),
    "fedflat.data.dataset": ("Augment", "Dataset"),
    "fedflat.data.tables": ("load_table",),
    "fedflat.methods": ("METHODS", "register"),
    "fedflat.core.method": ("Cohort", "Local", "Message", "Method", "Reply", "Server"),
    "fedflat.core.batch": ("Batch",),
    "fedflat.core.task": ("Task",),
    "fedflat.core.tasks": ("Multilabel", "NextToken", "Regression", "make_task"),
    "fedflat.models.lora": ("lora",),
    "fedflat.core.vectors": ("cosine", "norm", "unit"),
    "fedflat.options": ("Count", "Fraction", "Index", "NonNegative", "Positive"),
    "fedflat.errors": ("UserError",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

if TYPE_CHECKING:
    from fedflat.core.batch import Batch
    from fedflat.core.method import Cohort, Local, Message, Method, Reply, Server
    from fedflat.core.task import Task
    from fedflat.core.tasks import Multilabel, NextToken, Regression, make_task
    from fedflat.core.vectors import cosine, norm, unit
    from fedflat.data.dataset import Augment, Dataset
    from fedflat.data.tables import load_table
    from fedflat.errors import UserError
    from fedflat.flatness.analyse import analyse
    from fedflat.methods import METHODS, register
    from fedflat.models.lora import lora
    from fedflat.options import Count, Fraction, Index, NonNegative, Positive
    from fedflat.personal import personalise
    from fedflat.reproduce import write_report
    from fedflat.runs.callbacks import STOP, Callback, TrainingView
    from fedflat.runs.experiment import Experiment, Setting
    from fedflat.runs.federation import Federation
    from fedflat.runs.read import load_model
    from fedflat.runs.result import Result
    from fedflat.runs.search_space import SearchOptions, SearchRange
    from fedflat.runs.stopping import EarlyStopping, StopAtAccuracy
    from fedflat.runs.sweep import SweepPoint, sweep
    from fedflat.runs.trackers import CSVLogger, MLflowLogger, TensorBoardLogger, WandbLogger
    from fedflat.runs.train import run
    from fedflat.runs.tune import TuneResult, tune


def __getattr__(name: str) -> Any:
    """A public name, a method's class, or a package of this one."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if not name.startswith("_") and find_spec(f"fedflat.{name}"):
        return import_module(f"fedflat.{name}")
    if name[:1].isupper() and (found := import_module("fedflat.methods").METHODS.class_named(name)):
        return found
    raise AttributeError(f"module 'fedflat' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *import_module("fedflat.methods").METHODS.class_names()})


__all__ = [
    "METHODS",
    "STOP",
    "Augment",
    "Batch",
    "CSVLogger",
    "Callback",
    "Cohort",
    "Count",
    "Dataset",
    "EarlyStopping",
    "Experiment",
    "Federation",
    "Fraction",
    "Index",
    "Local",
    "MLflowLogger",
    "Message",
    "Method",
    "Multilabel",
    "NextToken",
    "NonNegative",
    "Positive",
    "Regression",
    "Reply",
    "Result",
    "SearchOptions",
    "SearchRange",
    "Server",
    "Setting",
    "StopAtAccuracy",
    "SweepPoint",
    "Task",
    "TensorBoardLogger",
    "TrainingView",
    "TuneResult",
    "UserError",
    "WandbLogger",
    "analyse",
    "cosine",
    "load_model",
    "load_table",
    "lora",
    "make_task",
    "norm",
    "personalise",
    "register",
    "run",
    "sweep",
    "tune",
    "unit",
    "write_report",
]
