"""How far apart models are after local training."""

from __future__ import annotations

import torch

from fedflat.core.vectors import norm
from fedflat.probes.sight import Sight, Value


def drift(sight: Sight) -> dict[str, Value]:
    """Distance of local models from the global one and from each other (FedSOL, Figure 5).

    global_local = 1/|S| Σ_k ‖w_k − w‖, with w the model that the clients received
    local_local = mean over pairs k < j of ‖w_k − w_j‖, where the cohort has two clients or more

    Costs no pass over data.
    """
    found: dict[str, Value] = {"global_local": float(norm(sight.ends - sight.start).mean())}
    if len(sight.ends) > 1:
        found["local_local"] = float(torch.pdist(sight.ends).mean())
    return found
