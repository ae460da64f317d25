"""Which layers move most unevenly."""

from __future__ import annotations

from fedflat.core.vectors import unit
from fedflat.probes.sight import Sight, Value


def strength(sight: Sight) -> dict[str, Value]:
    """Mean of FedSOL's adaptive strength Λ in every parameter tensor (FedSOL, eq. 7 and Figure 4b).

    Λ[i] = |w_k[i] − w[i]| / ‖w_k − w‖ within a tensor
    mean[m] = mean of Λ over the entries of tensor m and over the cohort, in the order of the model's parameters

    Costs no pass over data.
    """
    moved = (sight.ends - sight.start).abs().split(sight.task.sizes, -1)
    return {"mean": [float(unit(tensor).mean()) for tensor in moved]}
