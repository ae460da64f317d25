"""How large the model is."""

from __future__ import annotations

from fedflat.core.vectors import norm
from fedflat.probes.sight import Sight, Value


def model_norm(sight: Sight) -> dict[str, Value]:
    """Length of the global model (FedGloSS, Figure 8).

    model = ‖w‖ after the round

    Costs no pass over data.
    """
    return {"model": float(norm(sight.after.params))}
