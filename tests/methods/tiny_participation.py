"""The tiny problem with cohorts that vary: samplings, lost replies, stragglers, traces, settings of single clients."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import numpy as np
import tiny_problem as tiny
import torch

import fedflat as ff
from fedflat.core.method import Method
from fedflat.data.batches import ClientBatches
from fedflat.data.client_files import Availability, ClientSetting
from fedflat.engine import ENGINES
from fedflat.engine.participation import LocalWork, Participation
from fedflat.engine.rounds import Trial, cohort_jobs, train_cohorts, update_servers
from fedflat.runs.experiment import Setting

SAMPLINGS = get_args(get_type_hints(Setting)["sampling"])
METHODS = {"fedavg": ff.FedAvg(), "scaffold": ff.SCAFFOLD(), "fedgloss": ff.FedGloSS(), "fednova": ff.FedNova()}
LOSSES: dict[str, Any] = {"dropout_rate": 0.2, "stragglers": 0.4, "straggler_work": 0.5}
OWN = {0: ClientSetting(None, 3, None), 2: ClientSetting(0.3, None, 7)}
TRACE = Availability(np.array([0, 1, 2, 3]), np.array([0, 1, 0, 3]), np.array([9, 2, 1, 9]))
ROUNDS = 4


def participation(sampling: str = "uniform", **more: Any) -> Participation:
    how: dict[str, Any] = {"work": LocalWork(2), "batch_size": 4, **LOSSES, **more}
    return Participation(list(tiny.RAGGED), 2, sampling, **how)


def source(who: Participation) -> ClientBatches:
    plain = tiny.client_data()
    parts = np.split(np.arange(sum(tiny.RAGGED)), np.cumsum(tiny.RAGGED)[:-1])
    return ClientBatches(plain.dataset, parts, 4, 2, dtype=torch.float64, step_counts=who.step_counts)


def train(
    method: Method, who: Participation, engine: str, rounds: range, trials: list[Trial] | None = None
) -> list[Trial]:
    """Play rounds of two seeds."""
    data = source(who)
    trials = trials or [Trial(seed, method, tiny.params(seed=seed)) for seed in (0, 1)]
    runner = ENGINES[engine](method, tiny.task(), data)
    for r in rounds:
        cohorts = [who.replying(trial.seed, r) for trial in trials]
        weights = [data.sizes[cohort].double() for cohort in cohorts]
        for exchange in range(method.exchanges):
            rest = (cohorts, weights, who.population, tiny.sgd(), who.expected_size)
            jobs = cohort_jobs(method, trials, r, exchange, *rest)
            own = [who.with_client_lrs(job.optimiser, 0.1, job.clients) for job in jobs]
            jobs = [job._replace(optimiser=optimiser) for job, optimiser in zip(jobs, own, strict=True)]
            update_servers(method, trials, train_cohorts(method, runner, jobs))
    return trials


def everything() -> Participation:
    """Poisson sampling with a trace, stragglers that miss the deadline, local steps and settings of single clients."""
    more = {"availability": TRACE, "straggler_work": 0.0, "work": LocalWork(0, 5), "settings": OWN}
    return participation("poisson", **more)
