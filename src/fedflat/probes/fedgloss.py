"""How well FedGloSS knows where to climb."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedflat.core.local_training import local_update
from fedflat.core.vectors import norm, unit
from fedflat.probes.sight import Sight, Value, state_with


def fedgloss(sight: Sight) -> dict[str, Value]:
    """Change of FedGloSS's perturbation from one round to the next (FedGloSS, eq. 6 and Figure 4, as its text reads).

    delta = ρ ‖Δ̃ᵗ⁻¹ / ‖Δ̃ᵗ⁻¹‖ − Δ̃ᵗ / ‖Δ̃ᵗ‖‖, with Δ̃ᵗ = Σ p_k (w̃ − w_k) of this round and ρ = ‖w̃ − w‖

    Only of methods whose server keeps a pseudo-gradient, from the second round on.

    Costs no pass over data.
    """
    server = _perturbing(sight)
    return {} if server is None else _delta(sight, server, state_with(sight.after, "pseudo_grad").pseudo_grad)


def fedgloss_exact(sight: Sight) -> dict[str, Value]:
    """Error of FedGloSS's perturbation (FedGloSS, eq. 6 and Figure 4, as the equation reads).

    delta = ρ ‖Δ̃ᵗ⁻¹ / ‖Δ̃ᵗ⁻¹‖ − Δᵗ / ‖Δᵗ‖‖, with Δᵗ = Σ p_k (w − w_k) of the same clients had they started from the
    unperturbed w, and ρ = ‖w̃ − w‖

    Only of methods whose server keeps a pseudo-gradient, from the second round on.

    Costs the local training of one more round, client by client.
    """
    server = _perturbing(sight)
    if server is None:
        return {}
    weights = sight.job.weights / sight.job.weights.sum()
    return _delta(sight, server, server.params - torch.tensordot(weights, _ends(sight, server.params), 1))


def _perturbing(sight: Sight) -> Any:
    """The state before the round of a server that perturbed its model; None where it did not."""
    server = state_with(sight.before, "pseudo_grad")
    return server if server is not None and bool(server.pseudo_grad.any()) else None


def _ends(sight: Sight, params: Tensor) -> Tensor:
    """The cohort's models, had it started from `params`; trained one after another, and forgotten."""
    message = sight.job.message._replace(params=params)
    setting = (sight.method, sight.task, sight.job.sgd, message)
    cohort = range(len(sight.ends))
    return torch.stack([local_update(*setting, sight.state(k), sight.batches(k))[0] for k in cohort])


def _delta(sight: Sight, server: Any, pseudo_grad: Tensor) -> dict[str, Value]:
    """How far the perturbation of this round is from an equally long one along `pseudo_grad`."""
    radius = norm(sight.start - server.params)
    return {"delta": float(radius * norm(unit(server.pseudo_grad) - unit(pseudo_grad)))}
