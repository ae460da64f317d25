"""Results as JSON and CSV; a number that is not finite is null, or an empty cell."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedflat.flatness.measures import Measured
from fedflat.runs.folder import write_atomically


def plain(value: Any) -> Any:
    """Tensors as lists, numbers that are not finite as None."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(folder: Path, what: str, document: Mapping[str, Any], found: Mapping[int, Measured]) -> None:
    """folder/what.json with everything, folder/what.csv with the columns of every seed."""
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{what}.csv", table(found))
    write_atomically(folder / f"{what}.json", json.dumps(document, allow_nan=False) + "\n")


def table(found: Mapping[int, Measured]) -> str:
    """CSV with a column for the seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for first, (seed, measured) in enumerate(found.items()):
        columns = plain(measured.columns)
        if first == 0:
            writer.writerow(["seed", *columns])
        writer.writerows([seed, *row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()
