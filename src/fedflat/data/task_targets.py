"""Whether the targets of a data set are those of a task: classes, labels of 0 and 1, numbers or tokens."""

from __future__ import annotations

from dataclasses import replace

from fedflat.core.task import Task
from fedflat.core.tasks import TASKS
from fedflat.data.arrays import input_tensors
from fedflat.data.dataset import Dataset
from fedflat.errors import UserError

NEEDED = {
    "classification": "classes, whole numbers [n]",
    "multilabel": "0 or 1 for each label, [n, labels]",
    "next-token": "tokens, whole numbers [n, length], for samples of tokens",
}


def fit_targets(dataset: Dataset, task: type[Task]) -> Dataset:
    """Return the data set with targets that the task can use; whole numbers become float32 for a regression.

    Args:
        dataset: the data set.
        task: the task; of one that the package does not have only those of classes are checked.

    Raises:
        UserError: the targets are of another kind.
    """
    if issubclass(task, TASKS["regression"]) and not dataset.y.is_floating_point():
        numbers = dataset.y[0].numel() if len(dataset.y) else 1
        return replace(dataset, y=dataset.y.float(), y_test=dataset.y_test.float(), classes=numbers)
    needed = task.name if task in TASKS.values() else "classification" if task.class_scores else "regression"
    if needed != "regression" and not _suits(dataset, needed):
        kind = str(dataset.y.dtype).removeprefix("torch.")
        given = f"{kind} {['n', *dataset.y.shape[1:]]}".replace("'", "")
        other = "" if task in TASKS.values() else "; a task without classes says class_scores = False"
        problem = f"needs targets that are {NEEDED[needed]}; those of the data are {given}{other}"
        raise UserError("task", task.name, problem)
    return dataset


def _suits(dataset: Dataset, task: str) -> bool:
    """Return whether the targets have the type, the dimensions and the values of a task."""
    y = dataset.y
    if y.is_floating_point() or y.dim() != (1 if task == "classification" else 2):
        return False
    if task == "multilabel":
        return bool(((y == 0) | (y == 1)).all())
    return task == "classification" or not input_tensors(dataset.x)[0].is_floating_point()
