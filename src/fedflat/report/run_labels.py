"""One label and one place in the order for every run, used by the terminal's table, the page and the figures."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedflat.errors import UserError
from fedflat.methods import METHODS
from fedflat.own_code import is_own_code
from fedflat.report.comparison import (
    differing_settings,
    folder_name,
    plain_number,
    setting_name,
    setting_text,
    training_settings,
    unfold_method,
)
from fedflat.runs.read import StoredRun

METHOD_NAMES = {  # where the class has another name than the paper's method
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
    "fedswa": "FedSWA",
    "dpfedavg": "DP-FedAvg",
    "fedsol-ablation": "FedSOL ablation",
}
GREEK = {"rho": "ρ", "alpha": "α", "beta": "β", "lam": "λ", "mu": "μ", "tau": "τ", "sigma": "σ", "gamma": "γ"}


def label_runs(
    runs: Sequence[StoredRun], labels: Mapping[str, str] | None = None, order: Sequence[str] = ()
) -> list[StoredRun]:
    """Return the runs in the order of the report, each with its label as `name`.

    Methods are in the order of `fedflat methods`, FedAvg first; numbers in labels sort as numbers.

    Args:
        runs: the runs that are shown together.
        labels: texts to use instead of our own, by the run's folder or its name.
        order: labels, names or folders of the runs that come first.

    Raises:
        UserError: `labels` or `order` names no run.
    """
    given = {name.rstrip("/"): text for name, text in (labels or {}).items()}
    own = run_labels(runs)
    texts = [next((given[name] for name in given if name in _names(run)), own[n]) for n, run in enumerate(runs)]
    names = [{own[n], texts[n], *_names(run)} for n, run in enumerate(runs)]
    for option, words in (("label", given), ("order", order)):
        for word in words:
            if not any(word.rstrip("/") in each for each in names):
                raise UserError(option, word, f"is not a run; runs are {', '.join(run.name for run in runs)}")
    places = [next((n for n, word in enumerate(order) if word.rstrip("/") in each), len(order)) for each in names]
    keys = [(places[n], _registry_place(run), natural_key(texts[n]), str(run.path)) for n, run in enumerate(runs)]
    return [dataclasses.replace(runs[n], name=texts[n]) for n in sorted(range(len(runs)), key=keys.__getitem__)]


def _names(run: StoredRun) -> set[str]:
    """Return what may stand for a run in the options `label` and `order`."""
    return {run.name, folder_name(run), str(run.path)}


def _registry_place(run: StoredRun) -> int:
    name = unfold_method(run.config["method"])[0]["name"]
    return [*METHODS].index(name) if name in METHODS else len(METHODS)


def natural_key(text: str) -> list[tuple[int, float, str]]:
    """Return a sort key under which numbers in a text count by their value: lr = 0.5 comes before lr = 10."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text.lower())
    return [(0, float(part), "") if n % 2 else (1, 0.0, part) for n, part in enumerate(parts)]


def run_labels(runs: Sequence[StoredRun]) -> list[str]:
    """Return a label for each run, no two alike: FedSOL, ρ = 2, all.

    A label has the method's name and the hyper-parameters that are not the default, or in which runs of this method
    differ. Where runs would still share a label, the settings in which they differ follow, then their folders.

    Args:
        runs: the runs that are shown together.
    """
    labels = method_labels(runs)
    settings = training_settings(runs) if len(set(labels)) < len(labels) else [{} for _ in runs]
    for label in {label for label in labels if labels.count(label) > 1}:
        alike = [n for n, other in enumerate(labels) if other == label]
        keys = [
            key
            for key in differing_settings([settings[n] for n in alike])
            if key not in ("seeds", "device", "engine", "threads")
        ]
        for n in alike:
            labels[n] = ", ".join([label, *(f"{_symbol(key)} = {setting_text(settings[n], key)}" for key in keys)])
    return [
        f"{label} ({run.name})" if labels.count(label) > 1 else label for label, run in zip(labels, runs, strict=True)
    ]


def method_labels(runs: Sequence[StoredRun]) -> list[str]:
    """Return each run's method with its telling hyper-parameters; runs that differ in settings only share a label."""
    chains = [unfold_method(run.config["method"]) for run in runs]
    return [_chain_text(chain, [other for other in chains if _same_names(chain, other)]) for chain in chains]


def _same_names(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    return [method["name"] for method in one] == [method["name"] for method in other]


def _chain_text(chain: Sequence[Mapping[str, Any]], alike: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    return " + ".join(_method_text(method, [other[n] for other in alike]) for n, method in enumerate(chain))


def _method_text(method: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> str:
    """Return a method's name and its telling hyper-parameters; `alike` are the methods of the same name."""
    name, defaults = method["name"], _defaults(method["name"])
    telling = [
        key
        for key, value in method.items()
        if key != "name" and (defaults.get(key, value) != value or any(other.get(key) != value for other in alike))
    ]
    return ", ".join([method_name(name), *(_hyper_parameter_text(key, method[key]) for key in telling)])


def _defaults(name: str) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(METHODS[name])} if name in METHODS else {}


def method_name(name: Any) -> str:
    """Return a method's name as papers write it: FedSOL for fedsol, the class for your own, FILE.py:CLASS."""
    if is_own_code(name):
        return name.rpartition(":")[2]
    return METHOD_NAMES.get(name) or (METHODS[name].__name__ if name in METHODS else str(name))


def _hyper_parameter_text(key: str, value: Any) -> str:
    if key == "perturb":
        return str(value)
    if isinstance(value, bool):
        return setting_name(key) if value else f"no {setting_name(key)}"
    return f"{_symbol(key)} = {plain_number(value)}"


def _symbol(key: str) -> str:
    return " ".join(GREEK.get(word, word) for word in key.split("_"))
