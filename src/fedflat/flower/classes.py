"""Classes by name: a node's folder may lack some of them, so its own numbering would mean nothing to others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from fedflat.data.dataset import Dataset
from fedflat.data.image_files import find_subfolder
from fedflat.errors import UserError


def class_names(source: object, classes: int) -> list[str]:
    """The federation's classes: the folders of the server's folder:PATH, the numbers of any other data set."""
    return _folders(source) or [str(label) for label in range(classes)]


def renumbered(own: Dataset, source: str, names: list[str]) -> Dataset:
    """A node's data with the federation's labels where its classes are folders; other data carry their labels."""
    mine = _folders(source)
    if not mine:
        return own
    if unknown := [name for name in mine if name not in names]:
        raise UserError(f"--node-config data={source}: no class is called {unknown[0]}; they are {', '.join(names)}")
    labels = torch.tensor([names.index(name) for name in mine])
    return dataclasses.replace(own, y=labels[own.y], y_test=labels[own.y_test])


def _folders(source: object) -> list[str]:
    """The class folders of folder:PATH in the order of their labels; none for other data."""
    kind, _, path = source.partition(":") if isinstance(source, str) else ("", "", "")
    if kind != "folder":
        return []
    train = find_subfolder(Path(path).expanduser().resolve(), "train")
    return sorted(entry.name for entry in train.iterdir() if entry.is_dir() and not entry.name.startswith("."))
