"""Which files of the user's an experiment needs, with their checksums: the entry `code` of config.yaml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedflat.core.method import Method
from fedflat.methods import METHODS
from fedflat.own_code import file_sha256, is_own_code, split_own_code
from fedflat.runs.experiment import Experiment


def code_checksums(experiment: Experiment) -> dict[str, str]:
    """Return the SHA-256, by path, of the files outside the package that define method, data set, model and task."""
    given = (experiment.dataset, experiment.model, experiment.task)
    named = [split_own_code(name)[0] for name in given if is_own_code(name)]
    return {str(path): file_sha256(path) for path in dict.fromkeys([*_method_files(experiment.method), *named])}


def _method_files(method: Method) -> list[Path]:
    """The files of a method and those it wraps: given as PATH.py:CLASS, or of an imported module."""
    name, inner = METHODS.name_of(type(method)), getattr(method, "inner", None)
    module = sys.modules.get(type(method).__module__)
    file = getattr(module, "__file__", None) if ":" in name and not name.startswith("__main__:") else None
    return ([Path(file).resolve()] if file else []) + (_method_files(inner) if isinstance(inner, Method) else [])


def changed_files(stored: Any, now: Any) -> list[str]:
    """Return what has changed between two entries `code`: "my_method.py has changed (SHA-256 …)".

    Files are compared by their names without folders, so that a project may be moved. A configuration without the entry
    agrees with any.

    Args:
        stored: the entry of a run.
        now: the entry of today.
    """
    if not isinstance(stored, Mapping) or not isinstance(now, Mapping):
        return []
    old, new = ({Path(path).name: str(sha) for path, sha in entry.items()} for entry in (stored, now))
    both = [name for name in old if name in new and old[name] != new[name]]
    return [f"{name} has changed (SHA-256 {old[name][:12]}…, now {new[name][:12]}…)" for name in both]
