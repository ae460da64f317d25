"""Probes of the quantities of single methods (FedGF, FedGloSS, FedSOL's Λ), of communication and of a step's cost."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedflat.core.local_training import count_traffic, local_update
from fedflat.core.method import Method
from fedflat.core.vectors import norm, unit
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.wrappers import with_training_params
from fedflat.probes.probe import ProbeValue, RoundView, state_with


def probe_fedgf(view: RoundView) -> dict[str, ProbeValue]:
    """FedGF's divergence D and interpolation c (FedGF, eqs. 15-16 and Figure 7).

    distance = D = 1/|S| Σ_k ‖w_k − w‖ in this round
    c = share of the last W rounds, including this one, in which D exceeded T_D; clients use it in the next round

    Only for methods whose server keeps both.

    Costs no pass over data.
    """
    server = state_with(view.server_after, "c", "distance")
    return {} if server is None else {"distance": float(server.distance), "c": float(server.c)}


def probe_fedgloss(view: RoundView) -> dict[str, ProbeValue]:
    """Change of FedGloSS's perturbation from one round to the next (FedGloSS, eq. 6 and Figure 4, as in its text).

    delta = ρ ‖Δ̃ᵗ⁻¹ / ‖Δ̃ᵗ⁻¹‖ − Δ̃ᵗ / ‖Δ̃ᵗ‖‖, with Δ̃ᵗ = Σ p_k (w̃ − w_k) of this round and ρ = ‖w̃ − w‖

    Only for methods whose server keeps a pseudo-gradient, from the second round on.

    Costs no pass over data.
    """
    server = _perturbing_server(view)
    if server is None:
        return {}
    return _perturbation_change(view, server, state_with(view.server_after, "pseudo_grad").pseudo_grad)


def probe_fedgloss_exact(view: RoundView) -> dict[str, ProbeValue]:
    """Error of FedGloSS's perturbation (FedGloSS, eq. 6 and Figure 4, as in the equation).

    delta = ρ ‖Δ̃ᵗ⁻¹ / ‖Δ̃ᵗ⁻¹‖ − Δᵗ / ‖Δᵗ‖‖, with ρ = ‖w̃ − w‖ and Δᵗ = Σ p_k (w − w_k) of the same clients, trained
    once more from the unperturbed w

    Only for methods whose server keeps a pseudo-gradient, from the second round on.

    Costs the local training of one more round, client by client.
    """
    server = _perturbing_server(view)
    if server is None:
        return {}
    weights = view.job.weights / view.job.weights.sum()
    mean_model = torch.tensordot(weights, _train_from(view, server.params), 1)
    return _perturbation_change(view, server, server.params - mean_model)


def _perturbing_server(view: RoundView) -> Any:
    """Return the state before the round of a server that perturbed its model; None if it did not."""
    server = state_with(view.server_before, "pseudo_grad")
    return server if server is not None and bool(server.pseudo_grad.any()) else None


def _train_from(view: RoundView, params: Tensor) -> Tensor:
    """Return the models [clients, P] of the cohort trained again from `params`, one client after another."""
    message = with_training_params(view.job.message, params)
    cohort = range(len(view.local_models))
    optimisers = [view.job.optimiser.with_numbers(own) for own in view.job.optimiser.numbers(len(cohort))]
    return torch.stack(
        [
            local_update(view.method, view.task, optimisers[k], message, view.kept_state(k), view.batches(k))[0]
            for k in cohort
        ]
    )


def _perturbation_change(view: RoundView, server: Any, pseudo_grad: Tensor) -> dict[str, ProbeValue]:
    """Return the distance of this round's perturbation from one of equal length along `pseudo_grad`."""
    radius = norm(view.received - server.params)
    return {"delta": float(radius * norm(unit(server.pseudo_grad) - unit(pseudo_grad)))}


def probe_strength(view: RoundView) -> dict[str, ProbeValue]:
    """Mean of FedSOL's adaptive strength Λ in every parameter tensor (FedSOL, eq. 7 and Figure 4b).

    Λ[i] = |w_k[i] − w[i]| / ‖w_k − w‖ within a parameter tensor
    mean[m] = mean of Λ over the entries of tensor m and over the cohort; tensors in the order of the model

    Costs no pass over data.
    """
    changes = (view.local_models - view.received).abs().split(view.task.sizes, -1)
    return {"mean": [float(unit(change).mean()) for change in changes]}


def probe_communication(view: RoundView) -> dict[str, ProbeValue]:
    """Bytes that server and clients have exchanged since the first round.

    bytes = rounds · |S| · (bytes down + bytes up of a client in a round)

    Costs no pass over data.
    """
    traffic = count_traffic(view.method, view.received)
    return {"bytes": float((view.job.round + 1) * len(view.local_models) * (traffic.down + traffic.up))}


TIMED_STEPS = 10  # steps of each method; their median counts


def probe_cost(view: RoundView) -> dict[str, ProbeValue]:
    """Operations and time of one local step relative to FedAvg's (FedSOL, Tables 5 and 13), measured once in a run.

    gradients = operations of the method's step / operations of ∇f at one point, counted in matrix products and
    convolutions: 1 for FedAvg, 2 for SAM
    seconds = median time of the step in the sequential engine
    latency = seconds / seconds of FedAvg's step

    Costs 12 steps of the method and 12 of FedAvg.
    """
    if not view.first:
        return {}
    steps = [_one_step(view, method) for method in (view.method, FedAvg())]
    operations, seconds = [_count_operations(step) for step in steps], [_median_seconds(step) for step in steps]
    return {
        "gradients": operations[0] / operations[1] if operations[1] else math.nan,
        "seconds": seconds[0],
        "latency": seconds[0] / seconds[1],
    }


def _one_step(view: RoundView, method: Method) -> Callable[[], Tensor]:
    """Return a local step of `method` at the final model of the cohort's first client, on the client's first batch."""
    batch, state = next(view.batches(0)), view.client_state(0)
    return lambda: method.step(view.task, view.local_models[0], batch, view.job.message, state)[0]


def _count_operations(step: Callable[[], Tensor]) -> int:
    """Return the number of multiplications and additions."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def _median_seconds(step: Callable[[], Tensor]) -> float:
    """Return the median time of TIMED_STEPS steps, after one to warm up."""
    step()
    times = []
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        if step().is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
