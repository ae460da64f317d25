"""What local training costs in knowledge of everyone's data."""

from __future__ import annotations

import statistics

from fedflat.engine.rounds import evaluate
from fedflat.probes.sight import Sight, Value


def forgetting(sight: Sight) -> dict[str, Value]:
    """Accuracy on the global test data before and after local training (FedSOL, Figure 6a).

    before = accuracy of w, the model that the clients received
    after = mean over the cohort of the accuracy of w_k, after_std = its standard deviation over clients (0 for one)

    Costs |S| + 1 forward passes over the test set.
    """
    before, *after = (evaluate(sight.task, w, sight.test)[1] for w in (sight.start, *sight.ends))
    spread = statistics.stdev(after) if len(after) > 1 else 0.0
    return {"before": before, "after": statistics.fmean(after), "after_std": spread}
