"""Probes of what single clients have: their accuracy, how their updates agree, which classes they forget, and of λ1."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jvp

from fedflat.core.batch import Batch, select_samples
from fedflat.core.metric import client_spread
from fedflat.core.random import hash_words, normal_from, purpose_key
from fedflat.core.task import Task
from fedflat.core.vectors import norm, unit
from fedflat.engine.rounds import main_metric, predict_classes
from fedflat.probes.probe import ProbeValue, RoundView

LANCZOS_STEPS = 8
SHARPNESS_SAMPLES = 256


def probe_sharpness(view: RoundView) -> dict[str, ProbeValue]:
    """Largest eigenvalue λ1 of the Hessian of the global model's loss, estimated cheaply while training.

    lambda1 = largest eigenvalue of the 8 × 8 Lanczos matrix of ∇²F(w) after the round, with F the mean loss over at
    most 256 test samples at equal distances; never above the true one on these samples but for rounding

    Costs 8 Hessian-vector products on 256 test samples, each about four gradients on them, and memory for 8 models.
    """
    w, data = view.server_after.params, _some_samples(view.test, SHARPNESS_SAMPLES)
    if not torch.isfinite(w).all():
        return {"lambda1": math.nan}
    task, places = view.evaluator, torch.arange(len(w), device=w.device)
    q = unit(normal_from(hash_words(purpose_key("sharpness"), places)).to(w))
    basis, matrix = [q], torch.zeros(LANCZOS_STEPS, LANCZOS_STEPS, dtype=torch.float64)
    for step in range(LANCZOS_STEPS):
        product = jvp(lambda v: task.grad(v, data), (w,), (basis[step],))[1]
        known = torch.stack(basis)
        overlaps = known @ product
        matrix[: step + 1, step] = matrix[step, : step + 1] = overlaps.double().cpu()
        rest = product - overlaps @ known
        rest = rest - (known @ rest) @ known  # once more: rounding has left a part of the basis in it
        if float(norm(rest)) <= 1e-6 * float(norm(product)):
            break  # the basis spans an invariant subspace: its eigenvalues are exact
        basis.append(unit(rest))
    size = min(len(basis), LANCZOS_STEPS)
    if not torch.isfinite(matrix[:size, :size]).all():
        return {"lambda1": math.nan}
    return {"lambda1": float(torch.linalg.eigvalsh(matrix[:size, :size])[-1])}


def _some_samples(data: Batch, count: int) -> Batch:
    """Return at most `count` samples at equal distances, so that sorted classes are all among them."""
    step = -(-len(data.y) // count)
    return select_samples(data, slice(None, None, step))


def probe_clients(view: RoundView) -> dict[str, ProbeValue]:
    """Accuracy of the global model on each client's own training samples, and how evenly it is spread.

    accuracy[k] = a_k, the share of client k's samples that the model after the round classifies correctly; not a number
    for a client without samples. Other tasks have their main metric in its place, such as mse[k]
    worst = mean of the worst tenth of the a_k
    spread = standard deviation of the a_k
    jain = (Σ a_k)² / (n Σ a_k²), Jain's index: 1 if all clients have the same accuracy, 1/n if one has all; for
    accuracy and other shares only

    Costs 1 forward pass over all training samples.
    """
    metric, counts = view.task.main_metric(), view.client_data.counts
    values = [_client_metric(view, client) if count else math.nan for client, count in enumerate(counts)]
    known = [value for value, count in zip(values, counts, strict=True) if count]
    spread = client_spread(known, metric)
    measured: dict[str, ProbeValue] = {metric.name: values, "worst": spread.worst10, "spread": spread.std}
    return measured | ({"jain": _jain_index(known)} if metric.is_share else {})


def _client_metric(view: RoundView, client: int) -> float:
    samples = view.client_data.samples(view.client_data.rows_of(client))
    return main_metric(view.evaluator, view.server_after.params, samples)


def _jain_index(values: list[float]) -> float:
    known = torch.tensor(sorted(values), dtype=torch.float64)
    squares = float((known**2).sum())
    return float(known.sum()) ** 2 / (len(known) * squares) if squares else math.nan


def probe_alignment(view: RoundView) -> dict[str, ProbeValue]:
    """How far the clients' updates of a round point the same way.

    cosine = mean over pairs k < j of ⟨u_k, u_j⟩ / (‖u_k‖ ‖u_j‖), with u_k = w_k − w
    mean_update = ‖mean of u_k‖ / mean of ‖u_k‖: 1 if all are equal, near 1/√|S| if they are orthogonal

    Only for cohorts of two clients or more.

    Costs no pass over data.
    """
    updates: Tensor = (view.local_models - view.received).double()
    if len(updates) < 2:
        return {}
    directions = unit(updates)
    cosines = directions @ directions.T
    pairs = torch.triu_indices(len(updates), len(updates), 1)
    share = norm(updates.mean(0)) / norm(updates).mean()
    return {"cosine": float(cosines[pairs[0], pairs[1]].mean()), "mean_update": float(share)}


def probe_class_forgetting(view: RoundView) -> dict[str, ProbeValue]:
    """What each client of the cohort forgets of each class in its local training.

    client = numbers of the clients in the cohort
    forgotten[k · C + c] = accuracy on the test samples of class c of w, minus that of w_k, with C the number of classes

    Costs |S| + 1 forward passes over the test set.
    """
    before = _class_accuracy(view, view.received_evaluator, view.received)
    after = [_class_accuracy(view, view.local_evaluator(k), w) for k, w in enumerate(view.local_models)]
    forgotten = torch.cat([before - accuracy for accuracy in after])
    return {"client": [float(client) for client in view.job.clients], "forgotten": forgotten.tolist()}


def _class_accuracy(view: RoundView, task: Task, w: Tensor) -> Tensor:
    y, count = view.test.y, view.client_data.dataset.classes
    correct = y[predict_classes(task, w, view.test) == y]
    return torch.bincount(correct, minlength=count).double() / torch.bincount(y, minlength=count)
