"""A line of metrics.jsonl."""

from __future__ import annotations

import math
from typing import Any

from fedflat.core.task import Batch, Task
from fedflat.engine.rounds import Trial, evaluate


def metrics(task: Task, trial: Trial, test: Batch, played: int, seconds: float) -> dict[str, Any]:
    """How well a trial's model does after `played` rounds; a loss that is not finite is recorded as null."""
    loss, accuracy = evaluate(task, trial.server.params, test)
    finite = loss if math.isfinite(loss) else None
    return {
        "round": played,
        "seed": trial.seed,
        "accuracy": accuracy,
        "loss": finite,
        "seconds": round(seconds, 3),
    }
