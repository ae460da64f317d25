"""Probes of one method's quantities (FedGF, FedGloSS, FedSOL's Λ), of communication and of a step's cost."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedflat.core.local_training import count_traffic, local_update
from fedflat.core.vectors import norm, unit
from fedflat.methods.fedavg import FedAvg
from fedflat.probes.probe import ProbeValue, RoundView, state_with


def probe_fedgf(view: RoundView) -> dict[str, ProbeValue]:
    """FedGF's divergence D and interpolation c (FedGF, eqs. 15-16 and Figure 7).

    distance = D = 1/|S| Σ_k ‖w_k − w‖ in this round
    c = share of the last W rounds, this one among them, in which D exceeded T_D; the next round uses it

    Only of methods whose server keeps both.

    Costs no pass over data.
    """
    server = state_with(view.after, "c", "distance")
    return {} if server is None else {"distance": float(server.distance), "c": float(server.c)}


def probe_fedgloss(view: RoundView) -> dict[str, ProbeValue]:
    """Change of FedGloSS's perturbation from one round to the next (FedGloSS, eq. 6 and Figure 4, as its text reads).

    delta = ρ ‖Δ̃ᵗ⁻¹ / ‖Δ̃ᵗ⁻¹‖ − Δ̃ᵗ / ‖Δ̃ᵗ‖‖, with Δ̃ᵗ = Σ p_k (w̃ − w_k) of this round and ρ = ‖w̃ − w‖

    Only of methods whose server keeps a pseudo-gradient, from the second round on.

    Costs no pass over data.
    """
    server = _perturbing(view)
    return {} if server is None else _delta(view, server, state_with(view.after, "pseudo_grad").pseudo_grad)


def probe_fedgloss_exact(view: RoundView) -> dict[str, ProbeValue]:
    """Error of FedGloSS's perturbation (FedGloSS, eq. 6 and Figure 4, as the equation reads).

    delta = ρ ‖Δ̃ᵗ⁻¹ / ‖Δ̃ᵗ⁻¹‖ − Δᵗ / ‖Δᵗ‖‖, with Δᵗ = Σ p_k (w − w_k) of the same clients had they started from the
    unperturbed w, and ρ = ‖w̃ − w‖

    Only of methods whose server keeps a pseudo-gradient, from the second round on.

    Costs the local training of one more round, client by client.
    """
    server = _perturbing(view)
    if server is None:
        return {}
    weights = view.job.weights / view.job.weights.sum()
    return _delta(view, server, server.params - torch.tensordot(weights, _ends(view, server.params), 1))


def _perturbing(view: RoundView) -> Any:
    """The state before the round of a server that perturbed its model; None where it did not."""
    server = state_with(view.before, "pseudo_grad")
    return server if server is not None and bool(server.pseudo_grad.any()) else None


def _ends(view: RoundView, params: Tensor) -> Tensor:
    """The cohort's models, had it started from `params`; trained one after another, and forgotten."""
    message = view.job.message._replace(params=params)
    setting = (view.method, view.task, view.job.sgd, message)
    cohort = range(len(view.ends))
    return torch.stack([local_update(*setting, view.state(k), view.batches(k))[0] for k in cohort])


def _delta(view: RoundView, server: Any, pseudo_grad: Tensor) -> dict[str, ProbeValue]:
    """How far the perturbation of this round is from an equally long one along `pseudo_grad`."""
    radius = norm(view.start - server.params)
    return {"delta": float(radius * norm(unit(server.pseudo_grad) - unit(pseudo_grad)))}


def probe_strength(view: RoundView) -> dict[str, ProbeValue]:
    """Mean of FedSOL's adaptive strength Λ in every parameter tensor (FedSOL, eq. 7 and Figure 4b).

    Λ[i] = |w_k[i] − w[i]| / ‖w_k − w‖ within a tensor
    mean[m] = mean of Λ over the entries of tensor m and over the cohort, in the order of the model's parameters

    Costs no pass over data.
    """
    moved = (view.ends - view.start).abs().split(view.task.sizes, -1)
    return {"mean": [float(unit(tensor).mean()) for tensor in moved]}


def probe_communication(view: RoundView) -> dict[str, ProbeValue]:
    """Bytes that server and clients have exchanged since the first round.

    bytes = rounds · |S| · (bytes down + bytes up of a client in a round)

    Costs no pass over data.
    """
    sent = count_traffic(view.method, view.start)
    return {"bytes": float((view.job.round + 1) * len(view.ends) * (sent.down + sent.up))}


TIMED_STEPS = 10  # steps of each method, of which the median counts


def probe_cost(view: RoundView) -> dict[str, ProbeValue]:
    """Work and time of one local step beside one of FedAvg's (FedSOL, Tables 5 and 13), measured once in a run.

    gradients = operations of the method's step / operations of ∇f at one point, counted in matrix products and
    convolutions: 1 for FedAvg, 2 for SAM
    seconds = median time of the step as the sequential engine takes it, latency = seconds / those of FedAvg

    Costs 12 steps of the method and 12 of FedAvg.
    """
    if not view.first:
        return {}
    own, plain = _step(view, False), _step(view, True)
    work, seconds = [_operations(step) for step in (own, plain)], [_seconds(step) for step in (own, plain)]
    return {
        "gradients": work[0] / work[1] if work[1] else math.nan,
        "seconds": seconds[0],
        "latency": seconds[0] / seconds[1],
    }


def _step(view: RoundView, plain: bool) -> Callable[[], Tensor]:
    """A step on the first batch of the cohort's first client, at the end of its training: the method's or FedAvg's."""
    method, batch, state = FedAvg() if plain else view.method, next(view.batches(0)), view.state(0)
    return lambda: method.step(view.task, view.ends[0], batch, view.job.message, state)[0]


def _operations(step: Callable[[], Tensor]) -> int:
    """Multiplications and additions."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def _seconds(step: Callable[[], Tensor]) -> float:
    """Median time, after one step to warm up."""
    step()
    times = []
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        if step().is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
