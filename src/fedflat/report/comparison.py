"""Which runs can be compared: their methods, the settings they were trained with, and how they were analysed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedflat.data.dataset import default_partition
from fedflat.data.load import load_dataset
from fedflat.errors import UserError
from fedflat.runs.build import table_columns
from fedflat.runs.build_model import default_model
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.experiment import DATA_OPTIONS, Setting
from fedflat.runs.read import StoredRun

SUMMARY_COLUMNS = {  # measurement: {number: heading in tables}; landscapes and spectra are shown as figures
    "hessian": {"lambda1": "λ1", "lambda1_over_lambda5": "λ1/λ5", "trace": "trace"},
    "lpf": {"lpf": "LPF"},
    "discrepancy": {"discrepancy": "Δ_F"},
    "local": {"mean_lambda_local": "λ1 local", "mean_lambda_global": "λ1 global"},
    "path": {"gradient_norm": "‖∇F‖"},
    "barrier": {"barrier": "barrier to next"},
}


RunSettings = dict[str, Any]  # name of a setting: its value
AnalysisDocuments = dict[str, dict[str, Any]]  # measurement, such as "hessian": the content of analysis/hessian.json

MethodChain = list[dict[str, Any]]  # a wrapper first, then the method it wraps: name and hyper-parameters of each


def unfold_method(method: Any) -> MethodChain:
    """Unfold a method of config.yaml and the methods it wraps.

    FedAvg inside a wrapper is left out, but for `compress`, whose name alone does not say what is compressed.
    """
    outer = {"name": "?", **method} if isinstance(method, Mapping) else {"name": method}
    inner = unfold_method(outer.pop("inner")) if "inner" in outer else []
    understood = inner and inner[0]["name"] == "fedavg" and outer["name"] != "compress"
    return [outer, *([] if understood else inner)]


def plain_number(value: Any) -> str:
    """Return a setting's value as text, a float without needless digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


# What the runs were trained with.

SETTING_DEFAULTS: RunSettings = {f.name: f.default for f in dataclasses.fields(Setting)}
NOT_COMPARED = ("method", "probes", "probe_every", "checkpoint_every")  # has its own column, or changes no result
IGNORED_DIFFERENCES = (
    "seeds",
    "engine",
    "device",
    "threads",
)  # shown, but runs that differ in these are still compared
ALWAYS_LISTED = (  # the page lists these even if they have their default
    *("model", "partition", "clients", "cohort", "alpha", "shards"),
    *("rounds", "local_epochs", "batch_size", "lr", "seeds"),
)
UNUSED_BY_PARTITION = {  # settings that have no effect with a partition
    "auto": ("shards",),
    "dirichlet": ("shards",),
    "lda": ("shards",),
    "lda-released": ("shards",),
    "lda-equal": ("shards",),
    "shards": ("alpha",),
    "iid": ("alpha", "shards"),
    "natural": ("alpha", "shards", "clients", "partition_seed"),
}


def training_settings(runs: Sequence[StoredRun]) -> list[RunSettings]:
    """Return the settings of each run that can affect its result.

    `auto` is replaced by what it stands for, and settings that the run's partition does not use are left out.

    Args:
        runs: the runs that are shown together.
    """
    all_settings = [{**SETTING_DEFAULTS, **run.config} for run in runs]
    keys = [json.dumps([settings[name] for name in DATA_OPTIONS], default=str) for settings in all_settings]
    data_settings = dict(zip(keys, all_settings, strict=True))  # one run of each data set
    auto_values = {key: _auto_values(settings) for key, settings in data_settings.items()}
    return [_used_settings(each, auto_values[key]) for key, each in zip(keys, all_settings, strict=True)]


def _auto_values(settings: RunSettings) -> RunSettings:
    """Return what `auto` stands for with a data set; nothing if the data are not on this machine."""
    try:
        setting = experiment_from_dict({name: settings[name] for name in DATA_OPTIONS})
        data = load_dataset(str(setting.dataset), columns=table_columns(setting))
        return {"partition": default_partition(data), "model": default_model(data)}
    except (UserError, OSError, ValueError):
        return {}


def _used_settings(settings: RunSettings, auto_values: RunSettings) -> RunSettings:
    """Replace `auto` and drop what is not compared or not used."""
    settings = settings | {key: value for key, value in auto_values.items() if settings[key] == "auto"}
    left_out = (*NOT_COMPARED, *UNUSED_BY_PARTITION.get(str(settings["partition"]), ()))
    return {key: value for key, value in settings.items() if key not in left_out}


def differing_settings(settings: Sequence[RunSettings]) -> list[str]:
    """Return the names of the settings that are not the same in all runs."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def folder_name(run: StoredRun) -> str:
    """Return the name of a run's folder, also where it was given by dots."""
    return os.path.basename(os.path.abspath(run.path))


def method_settings(run: StoredRun) -> RunSettings:
    """Return a run's method as settings: its name, and the hyper-parameters of it and of the methods that it wraps."""
    chain = unfold_method(run.config["method"])
    found: RunSettings = {"method": "+".join(str(method["name"]) for method in chain)}
    for method in chain:
        for key, value in method.items():
            found.setdefault(key if key != "name" and key not in SETTING_DEFAULTS else f"method.{key}", value)
    return {key: value for key, value in found.items() if key != "method.name"}


def differing_hyper_parameters(runs: Sequence[StoredRun]) -> dict[str, list[str]]:
    """Return the hyper-parameters in which runs of one method differ, each with the text of its value in every run."""
    found = [method_settings(run) for run in runs]
    keys = dict.fromkeys(key for of_run in found for key in of_run)
    differing = [
        key
        for key in keys
        if any(a["method"] == b["method"] and a.get(key) != b.get(key) for a in found for b in found)
    ]
    return {key: [plain_number(of_run[key]) if key in of_run else "–" for of_run in found] for key in differing}


def are_comparable(one: RunSettings, other: RunSettings) -> bool:
    """Return whether two runs agree in all settings but method, seeds, engine and device."""
    return {*differing_settings([one, other])} <= {*IGNORED_DIFFERENCES}


def comparable_groups(numbers: Iterable[int], alike: Callable[[int, int], bool]) -> list[list[int]]:
    """Return the runs in groups of those that are alike.

    Args:
        numbers: the numbers of the runs.
        alike: whether two runs are; it must be an equivalence.
    """
    groups: list[list[int]] = []
    for n in numbers:
        group = next((group for group in groups if alike(group[0], n)), None)
        group.append(n) if group else groups.append([n])
    return groups


def common_settings(settings: Sequence[RunSettings]) -> str:
    """Return as text what all runs share: the important settings, and others that do not have their default."""
    first, left_out = settings[0], [*differing_settings(settings), "dataset"]
    listed = [key for key in first if key in ALWAYS_LISTED or first[key] != SETTING_DEFAULTS.get(key)]
    return ", ".join(f"{setting_name(key)} {setting_text(first, key)}" for key in listed if key not in left_out)


def setting_name(key: str) -> str:
    """Return a setting's name with spaces: local epochs."""
    return key.replace("_", " ")


def setting_text(settings: RunSettings, key: str) -> str:
    """Return a setting's value as text, a dash if the run does not use it."""
    value = settings.get(key)
    if key == "validation" and not value:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else "–" if value is None else str(value)


# How the runs were analysed.

_OF_GLOBAL_MODEL, _OF_CLIENT_MODELS = ("on", "seed"), ("clients", "seed")
MEASUREMENT_SETTINGS = {  # the settings of `fedflat analyse` on which each measurement depends
    "hessian": (*_OF_GLOBAL_MODEL, "solver", "probes"),
    "spectrum": (*_OF_GLOBAL_MODEL, "probes"),
    "lpf": (*_OF_GLOBAL_MODEL, "sigma", "draws"),
    "discrepancy": (*_OF_CLIENT_MODELS, "rho", "ascent_steps"),
    "local": _OF_CLIENT_MODELS,
    "landscape": (*_OF_GLOBAL_MODEL, "directions"),
    "local-landscape": (*_OF_CLIENT_MODELS, "directions"),
    "path": _OF_GLOBAL_MODEL,
    "barrier": (*_OF_GLOBAL_MODEL, "grid"),
    "barriers": (*_OF_GLOBAL_MODEL, "grid"),
    "trajectory": _OF_GLOBAL_MODEL,
}


def measurement_settings(documents: AnalysisDocuments, what: str) -> RunSettings:
    """Return what a measurement was made with: the number of samples, and the settings on which it depends."""
    document = documents[what]
    return {"samples": document.get("samples")} | {
        key: document["settings"].get(key) for key in MEASUREMENT_SETTINGS[what]
    }


def measured_alike(one: AnalysisDocuments, other: AnalysisDocuments, what: str) -> bool:
    """Return whether two runs' measurements were made with the same settings."""
    return measurement_settings(one, what) == measurement_settings(other, what)


def analysed_seeds(documents: AnalysisDocuments, what: str, key: str) -> dict[int, float]:
    """Return one number of an analysed run for every seed that has it.

    Args:
        documents: the run's analyses.
        what: the measurement, such as "hessian".
        key: the number, such as "lambda1".
    """
    seeds = documents.get(what, {}).get("seeds", {})
    return {int(seed): found[key] for seed, found in seeds.items() if found.get(key) is not None}


def measurement_warnings(
    runs: Sequence[StoredRun], settings: Sequence[RunSettings], documents: Sequence[AnalysisDocuments]
) -> Iterator[str]:
    """Yield a warning for each measurement that was made in different ways for comparable runs.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
        documents: their analyses.
    """
    for what in MEASUREMENT_SETTINGS:
        measured = [n for n, of_run in enumerate(documents) if what in of_run]
        differing = [
            n
            for n in measured
            for other in measured
            if are_comparable(settings[n], settings[other]) and not measured_alike(documents[n], documents[other], what)
        ]
        if differing:
            ways = {runs[n].name: measurement_settings(documents[n], what) for n in differing}
            yield f"{what} was measured in different ways, which are not compared: {_differences(ways)}"


def _differences(settings: Mapping[str, RunSettings]) -> str:
    """Describe how settings by run name differ: "sigma 0.1 (a, b) and 0.5 (c); on test (a) and train (b, c)"."""
    keys = differing_settings([*settings.values()])
    return "; ".join(f"{setting_name(key)} {_runs_by_value(settings, key)}" for key in keys)


def _runs_by_value(settings: Mapping[str, RunSettings], key: str) -> str:
    """Describe which runs have which value: "0.1 (a, b) and 0.5 (c)"."""
    runs: dict[str, list[str]] = {}
    for name, of_run in settings.items():
        runs.setdefault(setting_text(of_run, key) or "default", []).append(name)
    return " and ".join(f"{text} ({', '.join(names)})" for text, names in runs.items())


EIGENVECTORS = "each model's two top eigenvectors"
RANDOM_DIRECTIONS = "two random filter-normalised directions"


def landscape_axes(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe the directions along which landscapes are drawn, and which runs share them.

    Args:
        documents: the measurement "landscape" or "local-landscape" by the name of the run.
    """
    groups: dict[str, list[str]] = {}  # runs whose landscapes have the same directions
    for name, document in documents.items():
        eigen = document["settings"].get("directions") == "eigen"
        groups.setdefault(EIGENVECTORS if eigen else random_directions_key(document), []).append(name)
    if len(groups) == 1:
        return EIGENVECTORS if EIGENVECTORS in groups else f"{RANDOM_DIRECTIONS}, shared by all"
    parts = (
        f"{', '.join(names)}: {EIGENVECTORS if key == EIGENVECTORS else RANDOM_DIRECTIONS}"
        for key, names in groups.items()
    )
    return f"directions that differ, so that shapes compare only within a group ({'; '.join(parts)})"


def random_directions_key(document: Mapping[str, Any]) -> str:
    """Return a text that is equal for two documents if and only if they used the same random directions."""
    settings = document["settings"]
    return str([document.get("directions_shared_by"), settings.get("seed"), settings.get("run_seeds")])
