"""What runs were trained with: what they share, in what they differ, and which of them can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedflat.data.dataset import Dataset, default_partition
from fedflat.data.load import load_dataset
from fedflat.errors import UserError
from fedflat.runs.build import default_model
from fedflat.runs.experiment import Setting
from fedflat.runs.read import StoredRun

Settings = dict[str, Any]


DEFAULTS: Settings = {f.name: f.default for f in dataclasses.fields(Setting)}


UNSAID = ("method", "probes", "probe_every", "checkpoint_every")  # has its own column, or changes no result


FREE = ("seeds", "engine", "device")  # runs that differ in these are still compared


TRAINING = ("rounds", "local_epochs", "batch_size", "lr", "seeds")


ALWAYS = ("model", "partition", "clients", "cohort", "alpha", "shards", *TRAINING)  # said whatever they are


UNUSED = {  # settings that a partition has no use for
    "auto": ("shards",),
    "dirichlet": ("shards",),
    "lda": ("shards",),
    "lda-released": ("shards",),
    "shards": ("alpha",),
    "iid": ("alpha", "shards"),
    "natural": ("alpha", "shards", "clients", "partition_seed"),
}


class Form(NamedTuple):
    """What `auto` means for a data set."""

    partition: str
    model: str


def settings_of(runs: Sequence[StoredRun]) -> list[Settings]:
    """What each run was trained with: `auto` as what it means, without what its partition does not use."""
    names = dict.fromkeys(str(run.config.get("dataset", DEFAULTS["dataset"])) for run in runs)
    forms = {name: form_of(name) for name in names}
    return [_settings(run, forms) for run in runs]


def form_of(dataset: str) -> Form:
    """What `auto` means for a data set; still auto where the data are not on this machine."""
    try:
        return meaning(load_dataset(dataset))
    except (UserError, OSError, ValueError):
        return Form("auto", "auto")


def meaning(data: Dataset) -> Form:
    """What `auto` means for these data."""
    return Form(default_partition(data), default_model(data.shape))


def _settings(run: StoredRun, forms: Mapping[str, Form]) -> Settings:
    found = {key: value for key, value in {**DEFAULTS, **run.config}.items() if key not in UNSAID}
    meant = forms[str(found["dataset"])]._asdict()
    found |= {key: value for key, value in meant.items() if found[key] == "auto"}
    return {key: value for key, value in found.items() if key not in UNUSED.get(str(found["partition"]), ())}


def differing(settings: Sequence[Settings]) -> list[str]:
    """The settings that are not the same in all runs."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def comparable(one: Settings, other: Settings) -> bool:
    """Whether two runs agree in everything but their methods, seeds, and what changes no result."""
    return not {*differing([one, other])} - {*FREE}


def in_common(settings: Sequence[Settings]) -> str:
    """What all runs share, in words: the important settings, and of the others those that are not the default."""
    apart, first = differing(settings), settings[0]
    said = [key for key in first if key in ALWAYS or first[key] != DEFAULTS.get(key)]
    return ", ".join(f"{words(key)} {value(first, key)}" for key in said if key not in apart and key != "dataset")


def words(key: str) -> str:
    """A setting's name."""
    return key.replace("_", " ")


def value(settings: Settings, key: str) -> str:
    """A setting as text, a dash where it is of no use."""
    found = settings.get(key)
    if key == "validation" and not found:
        return "none"
    return " ".join(map(str, found)) if isinstance(found, list | tuple) else "–" if found is None else str(found)
