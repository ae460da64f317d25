"""The models with which an experiment's seeds start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from fedflat.core.model_check import check_model
from fedflat.core.task import Task
from fedflat.core.tasks import find_task
from fedflat.data.dataset import Dataset
from fedflat.errors import NOT_SHOWN, UserError
from fedflat.models import build_model
from fedflat.models.adapt import adapt_layers, load_weights
from fedflat.models.hugging_face import adapt_hugging_face, is_hugging_face, load_hugging_face_model
from fedflat.runs.device import set_precision
from fedflat.runs.experiment import Experiment


def build_task(experiment: Experiment, dataset: Dataset, device: torch.device) -> tuple[Task, list[Tensor]]:
    """Return the task, and the initial parameters [P] of every seed.

    Args:
        experiment: the experiment.
        dataset: its data.
        device: where the models are trained.
    """
    models = [_initial_model(experiment, dataset, seed) for seed in experiment.seeds]
    _check_same_for_all_seeds(models)
    compute = set_precision(experiment.precision, device)
    task = find_task_class(experiment, dataset)(models[0].to(device), compute)
    return task, [task.flatten(dict(model.named_parameters())).detach().to(device) for model in models]


def _check_same_for_all_seeds(models: Sequence[nn.Module]) -> None:
    """Raise UserError if the models of two seeds differ in what all seeds share: buffers and frozen parameters."""
    first, *others = (_shared_tensors(model) for model in models)
    for name, value in first.items():
        if not all(torch.equal(value, other[name]) for other in others):
            problem = f"'{name}' is not trained, and another for every seed; draw only trained parameters at random"
            raise UserError("model", NOT_SHOWN, problem)


def _shared_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that are not trained, by name."""
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return dict(model.named_buffers()) | frozen


def _initial_model(experiment: Experiment, dataset: Dataset, seed: int) -> nn.Module:
    """Return the model with which this seed starts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _new_model(experiment, dataset)
    if experiment.init is not None:
        load_weights(model, Path(experiment.init))
    return model


def _new_model(experiment: Experiment, dataset: Dataset) -> nn.Module:
    """Return the model as the option `model` gives it; torch's BatchNorm and dropout in it become ours."""
    model = experiment.model
    if isinstance(model, str):
        name = default_model(dataset) if model == "auto" else model
        if is_hugging_face(name):
            model = load_hugging_face_model(name, find_task_class(experiment, dataset).name, dataset.classes)
        else:
            model = build_model(name, dataset.shape, dataset.classes)
    model, replaced = adapt_layers(
        model if isinstance(model, nn.Module) else model(), track=experiment.norm_stats != "batch"
    )
    check_model(model)
    adapt_hugging_face(model)
    if replaced:
        _say_once(f"model: {replaced} replaced by fedflat's own, which know the padding of a batch (docs/models.md)")
    return model


@cache
def _say_once(text: str) -> None:
    """Print a line to stderr, unless it was printed before."""
    print(text, file=sys.stderr)


def default_model(dataset: Dataset) -> str:
    """Return the name of the model that `auto` means for this data set."""
    if dataset.task == "next-token":
        return "char-transformer"
    shape = dataset.shape
    if shape[1] == 1 or shape[2] == 1:
        return "mlp"
    return "fedavg-cnn" if min(shape[1:]) >= 28 else "digits-cnn"


def find_task_class(experiment: Experiment, dataset: Dataset) -> type[Task]:
    """Return the class of the experiment's task."""
    return find_task(dataset.task if experiment.task == "auto" else experiment.task)
