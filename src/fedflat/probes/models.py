"""Probes of the global and the local models: accuracy per class, drift, forgetting, norm, proximal loss."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedflat.core.task import Batch
from fedflat.core.vectors import cosine, norm
from fedflat.engine.rounds import main_metric, predict_classes
from fedflat.methods.fedsol import kl_loss
from fedflat.probes.probe import ProbeValue, RoundView


def probe_classes(view: RoundView) -> dict[str, ProbeValue]:
    """Accuracy of the global model on each class of the test data (FedSOL, Figure 6b).

    accuracy[c] = share of the test samples of class c that the model after the round classifies correctly; not a
    number if there are none

    Costs 1 forward pass over the test set.
    """
    y, count = view.test.y, view.client_data.dataset.classes
    correct = y[predict_classes(view.evaluator, view.server_after.params, view.test) == y]
    shares = torch.bincount(correct, minlength=count).double() / torch.bincount(y, minlength=count)
    return {"accuracy": shares.tolist()}


def probe_drift(view: RoundView) -> dict[str, ProbeValue]:
    """Distance of the local models from the global model and from each other (FedSOL, Figure 5).

    global_local = 1/|S| Σ_k ‖w_k − w‖, with w the model that the clients received
    local_local = mean over pairs k < j of ‖w_k − w_j‖, if the cohort has two clients or more

    Costs no pass over data.
    """
    distances: dict[str, ProbeValue] = {"global_local": float(norm(view.local_models - view.received).mean())}
    if len(view.local_models) > 1:
        distances["local_local"] = float(torch.pdist(view.local_models).mean())
    return distances


def probe_forgetting(view: RoundView) -> dict[str, ProbeValue]:
    """Main metric on the global test data before and after local training (FedSOL, Figure 6a: accuracy).

    before = metric of w, the model that the clients received
    after = mean over the cohort of the metric of w_k
    after_std = standard deviation of that metric over the clients of the cohort (0 for one client)

    Costs |S| + 1 forward passes over the test set.
    """
    before = main_metric(view.received_evaluator, view.received, view.test)
    after = [main_metric(view.local_evaluator(k), w, view.test) for k, w in enumerate(view.local_models)]
    spread = statistics.stdev(after) if len(after) > 1 else 0.0
    return {"before": before, "after": statistics.fmean(after), "after_std": spread}


def probe_norm(view: RoundView) -> dict[str, ProbeValue]:
    """Norm of the global model's parameters (FedGloSS, Figure 8).

    model = ‖w‖ after the round

    Costs no pass over data.
    """
    return {"model": float(norm(view.server_after.params))}


def probe_proximal(view: RoundView) -> dict[str, ProbeValue]:
    """Proximal loss of the local models, and the angle between their updates and its gradient (FedSOL, Figure 2).

    loss = L_p(w_k; w) = KL(softmax(f_w / 3) ‖ softmax(f_{w_k} / 3))
    cosine = ⟨g_u, g_p⟩ / (‖g_u‖ ‖g_p‖), with g_p = ∇L_p(w_k; w) and g_u the direction that the method takes at w_k
    Both are means over the batches of one epoch of the client's data, weighted by batch size, then over the cohort.
    g_u is 0 in parameters that the method holds fixed.

    Costs one local step, one gradient and one forward pass for each batch of one local epoch.
    """
    clients = range(len(view.local_models))
    loss, cosine_mean = torch.stack([_proximal_on_client(view, number) for number in clients]).mean(0).tolist()
    return {"loss": loss, "cosine": cosine_mean}


def _proximal_on_client(view: RoundView, number: int) -> Tensor:
    """Return the mean loss and cosine [2] of one client's model over its data."""
    epoch = list(_first_epoch(view, number))
    state = view.client_state(number)
    per_batch = torch.stack([_proximal_on_batch(view, view.local_models[number], batch, state) for batch in epoch])
    sizes = per_batch.new_tensor([len(batch.y) for batch in epoch])
    return sizes @ per_batch / sizes.sum()


def _first_epoch(view: RoundView, number: int) -> Iterator[Batch]:
    """Return the batches of one client's first epoch in the round."""
    return islice(view.batches(number), view.client_data.steps_per_epoch(view.job.clients[number]))


def _proximal_on_batch(view: RoundView, w: Tensor, batch: Batch, state: Any) -> Tensor:
    """Return loss and cosine [2] at w on one batch."""
    method, task = view.method, view.task
    teacher = task.logits(view.received, batch)
    g_p, loss = grad_and_value(lambda v: kl_loss(task, task.logits(v, batch), teacher, batch, 3.0))(w)
    g_u, _ = method.step(task, w, batch, view.job.message, state)
    if method.frozen:
        g_u = torch.where(task.mask(method.frozen, w.device), 0, g_u)
    return torch.stack([loss, cosine(g_u, g_p)])
