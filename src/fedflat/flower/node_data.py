"""The samples of a node's client: its part of the experiment's partition, or its own data with the federation's labels.

Flower starts a process for every message. So that the data are not loaded and partitioned each time, a node with a
folder for states keeps its client's training samples there, in a file of their own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedflat import __version__
from fedflat.core.batch import Samples, map_samples
from fedflat.data.arrays import MAX_CLASSES, name_inputs, unname_inputs
from fedflat.data.dataset import Augment, Dataset
from fedflat.data.image_files import find_subfolder
from fedflat.data.load import is_own_data, load_dataset, load_own_data, own_data_fingerprint
from fedflat.errors import UserError
from fedflat.flower.messages import ReportedError, TrainRequest, sample_kind
from fedflat.runs.build import load_run_dataset, partition_clients
from fedflat.runs.checkpoint import load_tensors, save_tensors
from fedflat.runs.config import experiment_to_dict
from fedflat.runs.experiment import Experiment

NodeConfig = Mapping[str, Any]  # what a node was started with: partition-id and, if given, data and state
NOT_ABOUT_DATA = (  # options that leave the samples alone
    *("method", "rounds", "seeds", "engine", "device", "precision", "threads"),
)
logger = logging.getLogger("flwr")


def state_folder(node_config: NodeConfig) -> Path | None:
    """Return the folder in which the node keeps its client's states and samples, if it was given one."""
    return Path(str(node_config["state"])) if node_config.get("state") else None


def check_state_folder(folder: Path) -> None:
    """Make the folder, for its owner alone: it will hold samples. Raise ReportedError if it cannot be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        logger.error("node-config state=%s: cannot be written (%s)", folder, error)
        problem = f"must be a folder that can be written ({error.strerror or 'no file can be made in it'})"
        raise ReportedError(None, "node-config state", problem) from None


def client_samples(experiment: Experiment, node_config: NodeConfig, request: TrainRequest, client: int) -> Dataset:
    """Return the data set of one client alone; its test samples are only examples, which no node uses.

    Raises ReportedError if the node's own data cannot be used.

    Args:
        experiment: what the federation trains.
        node_config: may name the client's own data (data) and a folder in which to keep the samples (state).
        request: what all clients must agree on.
        client: the number of the client.
    """
    folder, own = state_folder(node_config), node_config.get("data")
    source = str(own if own else experiment.dataset)
    path = folder / f"data-{client}-{_cache_key(experiment, source, request)}.safetensors" if folder else None
    if path and (stored := load_tensors(path)):
        pairs = zip(Augment(), stored["augment"].tolist(), strict=True)
        values: list[Any] = [type(default)(value) for default, value in pairs]
        return _dataset(unname_inputs(stored), stored["y"], Augment(*values), request)
    dataset = _own_data(source, request, experiment) if own else _part_of_run(experiment, client)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"data-{client}-*.safetensors"):
            old.unlink(missing_ok=True)  # also samples that the client has removed since
        augment = torch.tensor([float(v) for v in dataset.augment])
        save_tensors(path, {**name_inputs(dataset.x), "y": dataset.y, "augment": augment})
    return _dataset(dataset.x, dataset.y, dataset.augment, request)


def _dataset(x: Samples, y: torch.Tensor, augment: Augment, request: TrainRequest) -> Dataset:
    first = map_samples(lambda t: t[:1], x)
    return Dataset("node", x, y, first, y[:1], request.classes, tuple(request.mean), tuple(request.std), augment)


def _cache_key(experiment: Experiment, source: str, request: TrainRequest) -> str:
    """Return a hash of everything that the samples depend on, also of the files' sizes and times of change."""
    options = {name: value for name, value in experiment_to_dict(experiment).items() if name not in NOT_ABOUT_DATA}
    files = _explained(own_data_fingerprint, source) if is_own_data(source) else ""
    shared = [request.names, request.samples, request.classes, request.population]
    text = json.dumps([__version__, Augment._fields, source, files, options, shared], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _part_of_run(experiment: Experiment, client: int) -> Dataset:
    """Return the client's part of the experiment's data set."""
    dataset = load_run_dataset(experiment)
    rows = torch.from_numpy(partition_clients(experiment, dataset)[client])
    return dataclasses.replace(dataset, x=map_samples(lambda t: t[rows], dataset.x), y=dataset.y[rows])


def _own_data(source: str, request: TrainRequest, experiment: Experiment) -> Dataset:
    """Return a node's own data with the federation's labels; raise ReportedError if they do not fit."""
    if source.startswith("table:"):
        problem = "a table is scaled by all rows of the federation; give a node arrays, npz:FILE"
        raise ReportedError(None, "node-config data", problem)
    load = partial(_load, sequence_length=experiment.sequence_length)
    own = with_federation_labels(_explained(load, source), source, request.names)
    if sample_kind(own) != request.samples:
        problem = f"samples are {sample_kind(own)}, the federation's are {request.samples}"
        raise ReportedError(None, "node-config data", problem)
    if own.task == "classification" and int(own.y.max()) >= request.classes:
        problem = f"label {int(own.y.max())} found, there are {request.classes} classes"
        raise ReportedError(None, "node-config data", problem)
    return own


def _load(source: str, sequence_length: int) -> Dataset:
    """Return a node's data, whose labels may lack some of the federation's classes."""
    if is_own_data(source):
        return load_own_data(source, None, MAX_CLASSES, sequence_length)
    return load_dataset(source, sequence_length=sequence_length)


def _explained(load: Any, source: str) -> Any:
    """Return load(source). The reason why data cannot be loaded names files, so only the node's log has it."""
    try:
        return load(source)
    except UserError as error:
        logger.error("node-config data=%s: %s", source, error)
        raise ReportedError(None, "node-config data", "cannot be loaded; the node's log says why") from None


def class_names(source: object, classes: int) -> list[str]:
    """Return the names of the federation's classes: the folders of the server's folder:PATH, else "0", "1", …

    Args:
        source: the server's data set, as given in the experiment.
        classes: number of classes, for data without folders.
    """
    return _class_folders(source) or [str(label) for label in range(classes)]


def with_federation_labels(own: Dataset, source: str, names: list[str]) -> Dataset:
    """Return a node's data with the federation's labels; raise ReportedError if it has a class of another name.

    Only folder:PATH needs this. Its labels number the folders of the node, which may lack some of the classes. Labels
    of other formats mean the same on all nodes.

    Args:
        own: the node's data.
        source: where they come from.
        names: names of the federation's classes, in the order of their labels.
    """
    own_names = _class_folders(source)
    if not own_names:
        return own
    if unknown := [name for name in own_names if name not in names]:
        logger.error("node-config data=%s: no class is called %s; they are %s", source, unknown[0], ", ".join(names))
        problem = f"{len(unknown)} of its classes are unknown here; the node's log names one of them"
        raise ReportedError(None, "node-config data", problem)
    labels = torch.tensor([names.index(name) for name in own_names])
    return dataclasses.replace(own, y=labels[own.y], y_test=labels[own.y_test])


def _class_folders(source: object) -> list[str]:
    """Return the class folders of folder:PATH in the order of their labels, and [] for other data."""
    kind, _, path = source.partition(":") if isinstance(source, str) else ("", "", "")
    if kind != "folder":
        return []
    train = find_subfolder(Path(path).expanduser().resolve(), "train")
    return sorted(entry.name for entry in train.iterdir() if entry.is_dir() and not entry.name.startswith("."))
