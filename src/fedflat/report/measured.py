"""How the numbers of `fedflat analyse` were measured: only those that were measured alike compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedflat.report.analyses import Documents
from fedflat.report.settings import Settings, comparable, differing, value, words
from fedflat.runs.read import StoredRun

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


def way(document: Mapping[str, Any], what: str) -> Settings:
    """What a measurement was made with: the settings it depends on, and the number of samples."""
    return {"samples": document.get("samples"), **{key: document["settings"].get(key) for key in USES[what]}}


def alike(one: Documents, other: Documents, what: str) -> bool:
    """Whether two runs' measurements were made in the same way."""
    return way(one[what], what) == way(other[what], what)


def differences(
    runs: Sequence[StoredRun], settings: Sequence[Settings], documents: Sequence[Documents]
) -> Iterator[str]:
    """What is said of runs that compare as they were trained but not as they were measured."""
    for what in USES:
        found = [n for n, each in enumerate(documents) if what in each]
        rivals = {n: [m for m in found if comparable(settings[n], settings[m])] for n in found}
        apart = [n for n in found if not all(alike(documents[n], documents[m], what) for m in rivals[n])]
        if apart:
            ways = {runs[n].name: way(documents[n][what], what) for n in apart}
            yield f"{what} was measured in different ways, which are not compared: {_apart(ways)}"


def _apart(ways: Mapping[str, Settings]) -> str:
    """sigma 0.1 (a, b) and 0.5 (c); on test (a) and train (b, c)."""
    return "; ".join(f"{words(key)} {_holders(ways, key)}" for key in differing([*ways.values()]))


def _holders(ways: Mapping[str, Settings], key: str) -> str:
    holders: dict[str, list[str]] = {}
    for name, each in ways.items():
        holders.setdefault(value(each, key) or "default", []).append(name)
    return " and ".join(f"{text} ({', '.join(names)})" for text, names in holders.items())


def axes(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Along what the landscapes of runs, by their names, are drawn, and who shares it."""
    groups: dict[str, list[str]] = {}
    for name, document in documents.items():
        eigen = document["settings"].get("directions") == "eigen"
        groups.setdefault(EIGEN if eigen else random_directions(document), []).append(name)
    if len(groups) == 1:
        return EIGEN if EIGEN in groups else f"{RANDOM}, shared by all"
    said = (f"{', '.join(names)}: {EIGEN if found == EIGEN else RANDOM}" for found, names in groups.items())
    return f"directions that differ, so that shapes compare only within a group ({'; '.join(said)})"


def random_directions(document: Mapping[str, Any]) -> str:
    """What random directions come from: documents in which it is the same share them."""
    settings = document["settings"]
    return str([document.get("directions_shared_by"), settings.get("seed"), settings.get("run_seeds")])
