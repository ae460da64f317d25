"""What `import fedflat` offers."""

from __future__ import annotations

from fedflat.data.dataset import Augment, Dataset
from fedflat.errors import UserError
from fedflat.experiments.experiment import Experiment, Setting
from fedflat.experiments.result import Result
from fedflat.experiments.run import run
from fedflat.method import Cohort, Local, Message, Method, Reply, Server
from fedflat.methods import *  # noqa: F403
from fedflat.methods import METHODS
from fedflat.task import Batch, Task

__all__ = [
    "METHODS",
    "Augment",
    "Batch",
    "Cohort",
    "Dataset",
    "Experiment",
    "Local",
    "Message",
    "Method",
    "Reply",
    "Result",
    "Server",
    "Setting",
    "Task",
    "UserError",
    "run",
    *(method.__name__ for method in METHODS.values()),
]
