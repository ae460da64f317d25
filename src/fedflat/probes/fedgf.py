"""What FedGF decides by."""

from __future__ import annotations

from fedflat.probes.sight import Sight, Value, state_with


def fedgf(sight: Sight) -> dict[str, Value]:
    """FedGF's divergence D and interpolation c (FedGF, eqs. 15-16 and Figure 7).

    distance = D = 1/|S| Σ_k ‖w_k − w‖ in this round
    c = share of the last W rounds, this one among them, in which D exceeded T_D; the next round uses it

    Only of methods whose server keeps both.

    Costs no pass over data.
    """
    server = state_with(sight.after, "c", "distance")
    return {} if server is None else {"distance": float(server.distance), "c": float(server.c)}
