"""Which runs may be compared: what they were trained with, what they are called, and how they were analysed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedflat.cli.analyse import SUMMARY_COLUMNS
from fedflat.data.dataset import Dataset, default_partition
from fedflat.data.load import load_dataset
from fedflat.errors import UserError
from fedflat.runs.build import default_model
from fedflat.runs.experiment import Setting
from fedflat.runs.read import DAMAGE, StoredRun, is_measured, is_number, is_number_list

Chain = list[dict[str, Any]]


def method_labels(runs: Sequence[StoredRun]) -> list[str]:
    """Methods as the command line has them, with the hyper-parameters in which namesakes differ: fedsol:rho=2."""
    chains = [_chain(run.config["method"]) for run in runs]
    return [
        _name(chain, [other for other in chains if _plain_method(other) == _plain_method(chain)]) for chain in chains
    ]


def _chain(method: Any) -> Chain:
    """A method and those inside it; a wrapper has its name around FedAvg."""
    parts = {"name": "?", **method} if isinstance(method, Mapping) else {"name": method}
    inside = _chain(parts.pop("inner")) if "inner" in parts else []
    return [parts, *(inside if inside and inside[0]["name"] != "fedavg" else [])]


def _plain_method(chain: Chain) -> list[Any]:
    return [part["name"] for part in chain]


def _name(chain: Chain, alike: Sequence[Chain]) -> str:
    return "+".join(_part(part, [other[place] for other in alike]) for place, part in enumerate(chain))


def _part(part: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> str:
    """NAME, or NAME:rho=2,beta=10 where others of this name differ in rho and beta."""
    apart = [key for key, value in part.items() if any(other.get(key) != value for other in alike)]
    return f"{part['name']}{':' if apart else ''}{','.join(f'{key}={_short(part[key])}' for key in apart)}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


RunSettings = dict[str, Any]


DEFAULTS: RunSettings = {f.name: f.default for f in dataclasses.fields(Setting)}


UNSAID = ("method", "probes", "probe_every", "checkpoint_every")  # has its own column, or changes no result


NO_EFFECT = ("seeds", "engine", "device")  # runs that differ in these are still compared


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


class AutoMeaning(NamedTuple):
    """What `auto` means for a data set."""

    partition: str
    model: str


def settings_of(runs: Sequence[StoredRun]) -> list[RunSettings]:
    """What each run was trained with: `auto` as what it means, without what its partition does not use."""
    names = dict.fromkeys(str(run.config.get("dataset", DEFAULTS["dataset"])) for run in runs)
    forms = {name: auto_meaning_of(name) for name in names}
    return [_settings(run, forms) for run in runs]


def auto_meaning_of(dataset: str) -> AutoMeaning:
    """What `auto` means for a data set; still auto where the data are not on this machine."""
    try:
        return auto_meaning(load_dataset(dataset))
    except (UserError, OSError, ValueError):
        return AutoMeaning("auto", "auto")


def auto_meaning(data: Dataset) -> AutoMeaning:
    """What `auto` means for these data."""
    return AutoMeaning(default_partition(data), default_model(data.shape))


def _settings(run: StoredRun, forms: Mapping[str, AutoMeaning]) -> RunSettings:
    found = {key: value for key, value in {**DEFAULTS, **run.config}.items() if key not in UNSAID}
    meant = forms[str(found["dataset"])]._asdict()
    found |= {key: value for key, value in meant.items() if found[key] == "auto"}
    return {key: value for key, value in found.items() if key not in UNUSED.get(str(found["partition"]), ())}


def differing_settings(settings: Sequence[RunSettings]) -> list[str]:
    """The settings that are not the same in all runs."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def comparable_runs(one: RunSettings, other: RunSettings) -> bool:
    """Whether two runs agree in everything but their methods, seeds, and what changes no result."""
    return not {*differing_settings([one, other])} - {*NO_EFFECT}


def common_settings(settings: Sequence[RunSettings]) -> str:
    """What all runs share, in words: the important settings, and of the others those that are not the default."""
    apart, first = differing_settings(settings), settings[0]
    said = [key for key in first if key in ALWAYS or first[key] != DEFAULTS.get(key)]
    return ", ".join(
        f"{setting_name(key)} {setting_text(first, key)}" for key in said if key not in apart and key != "dataset"
    )


def setting_name(key: str) -> str:
    """A setting's name."""
    return key.replace("_", " ")


def setting_text(settings: RunSettings, key: str) -> str:
    """A setting as text, a dash where it is of no use."""
    found = settings.get(key)
    if key == "validation" and not found:
        return "none"
    return " ".join(map(str, found)) if isinstance(found, list | tuple) else "–" if found is None else str(found)


ARRAYS = {  # the arrays that figures need, all of one length; landscapes have surfaces
    "hessian": ("number", "eigenvalue"),
    "spectrum": ("eigenvalue", "density"),
    "lpf": (),
    "discrepancy": (),
    "local": ("client", "lambda_local", "lambda_global"),
    "landscape": (),
    "local-landscape": (),
    "path": ("distance", "along_gradient", "along_random"),
    "barrier": ("gamma", "loss"),
}


Documents = dict[str, dict[str, Any]]


def read_analyses(runs: Sequence[StoredRun]) -> tuple[list[Documents], list[str]]:
    """Each run's documents by measurement, and why others cannot be read."""
    found: list[Documents] = [{} for _ in runs]
    problems = []
    for run, documents in zip(runs, found, strict=True):
        for what in ARRAYS:
            path = run.path / "analysis" / f"{what}.json"
            try:
                documents[what] = _read(path, what)
            except FileNotFoundError:
                continue
            except DAMAGE as error:
                problems.append(f"{path}: damaged ({type(error).__name__}: {error}); run fedflat analyse again")
    return found, problems


def _read(path: Path, what: str) -> dict[str, Any]:
    """A document whose seeds all have the numbers and arrays that are shown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    seeds: Mapping[str, Mapping[str, Any]] = document["seeds"]
    if not seeds:
        raise ValueError("no seeds")
    if not isinstance(document["settings"], Mapping):
        raise ValueError("no settings")
    for seed in seeds.values():
        for key in SUMMARY_COLUMNS.get(what, {}):
            if not is_measured(seed.get(key)):
                raise ValueError(f"{key} {seed[key]}")
        for losses in _surfaces(seed, what):
            _check_surface(seed["x"], seed["y"], losses)
        _check_rows([seed[name] for name in ARRAYS[what]])
    return document


def _surfaces(seed: Mapping[str, Any], what: str) -> list[list[list[float | None]]]:
    """The losses over a plane that a measurement holds."""
    if what == "local-landscape":
        first = seed["surfaces"][0]
        return [first["own"], first["all"]]
    return [seed["loss"]] if what == "landscape" else []


def _check_surface(x: list[float], y: list[float], losses: list[list[float | None]]) -> None:
    """At least two places each way, and a loss for some of them."""
    if not all(map(is_number, [*x, *y])) or min(len(x), len(y)) < 2:
        raise ValueError("x and y are no axes")
    if all(loss is None for row in losses for loss in row):
        raise ValueError("no finite loss")
    _check_rows([x, *losses])
    _check_rows([y, [0.0] * len(losses)])


def _check_rows(arrays: Sequence[Any]) -> None:
    """Lists of numbers, as long as each other."""
    if not all(map(is_number_list, arrays)):
        raise ValueError("arrays without numbers")
    if len({len(array) for array in arrays}) > 1:
        raise ValueError("arrays of unequal length")


GLOBAL, LOCAL = ("on", "seed"), ("clients", "seed")


EIGEN, RANDOM = "each model's two top eigenvectors", "two random filter-normalised directions"


USES = {  # the settings on which each measurement depends
    "hessian": (*GLOBAL, "solver", "probes"),
    "spectrum": (*GLOBAL, "probes"),
    "lpf": (*GLOBAL, "sigma", "draws"),
    "discrepancy": (*LOCAL, "rho", "ascent_steps"),
    "local": LOCAL,
    "landscape": (*GLOBAL, "directions"),
    "local-landscape": (*LOCAL, "directions"),
    "path": GLOBAL,
    "barrier": (*GLOBAL, "grid"),
}


def measurement_settings(document: Mapping[str, Any], what: str) -> RunSettings:
    """What a measurement was made with: the settings it depends on, and the number of samples."""
    return {"samples": document.get("samples"), **{key: document["settings"].get(key) for key in USES[what]}}


def measured_alike(one: Documents, other: Documents, what: str) -> bool:
    """Whether two runs' measurements were made in the same way."""
    return measurement_settings(one[what], what) == measurement_settings(other[what], what)


def measurement_differences(
    runs: Sequence[StoredRun], settings: Sequence[RunSettings], documents: Sequence[Documents]
) -> Iterator[str]:
    """What is said of runs that compare as they were trained but not as they were measured."""
    for what in USES:
        found = [n for n, each in enumerate(documents) if what in each]
        rivals = {n: [m for m in found if comparable_runs(settings[n], settings[m])] for n in found}
        apart = [n for n in found if not all(measured_alike(documents[n], documents[m], what) for m in rivals[n])]
        if apart:
            ways = {runs[n].name: measurement_settings(documents[n][what], what) for n in apart}
            yield f"{what} was measured in different ways, which are not compared: {_apart(ways)}"


def _apart(ways: Mapping[str, RunSettings]) -> str:
    """sigma 0.1 (a, b) and 0.5 (c); on test (a) and train (b, c)."""
    return "; ".join(f"{setting_name(key)} {_holders(ways, key)}" for key in differing_settings([*ways.values()]))


def _holders(ways: Mapping[str, RunSettings], key: str) -> str:
    holders: dict[str, list[str]] = {}
    for name, each in ways.items():
        holders.setdefault(setting_text(each, key) or "default", []).append(name)
    return " and ".join(f"{text} ({', '.join(names)})" for text, names in holders.items())


def landscape_axes(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Along what the landscapes of runs, by their names, are drawn, and who shares it."""
    groups: dict[str, list[str]] = {}
    for name, document in documents.items():
        eigen = document["settings"].get("directions") == "eigen"
        groups.setdefault(EIGEN if eigen else direction_seed(document), []).append(name)
    if len(groups) == 1:
        return EIGEN if EIGEN in groups else f"{RANDOM}, shared by all"
    said = (f"{', '.join(names)}: {EIGEN if found == EIGEN else RANDOM}" for found, names in groups.items())
    return f"directions that differ, so that shapes compare only within a group ({'; '.join(said)})"


def direction_seed(document: Mapping[str, Any]) -> str:
    """What random directions come from: documents in which it is the same share them."""
    settings = document["settings"]
    return str([document.get("directions_shared_by"), settings.get("seed"), settings.get("run_seeds")])
