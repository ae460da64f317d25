"""Rounds of the tiny problem with probes, and everything that the probes were given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "methods"))

import tiny_problem as tiny

from fedflat.core.method import Method
from fedflat.engine import ENGINES
from fedflat.engine.rounds import CohortJob, Trial, cohort_jobs, update_servers
from fedflat.probes import ProbeRunner


class ProbedRound(NamedTuple):
    """One round: the probes' values, and what a calculation by hand needs."""

    values: dict[str, Any]
    server_before: Any
    server_after: Any
    job: CohortJob
    client_states: Any
    local_models: Tensor


def probe_rounds(method: Method, *names: str, engine: str = "sequential", rounds: int = 2) -> list[ProbedRound]:
    """Train rounds of one seed with these probes."""
    client_data, task = tiny.client_data(), tiny.task()
    trial, trainer = Trial(0, method, tiny.params()), ENGINES[engine](method, task, client_data)
    runner = ProbeRunner(names, lambda round: bool(names), method, task, client_data, client_data.test())
    probed = []
    for r in range(rounds):
        before, cohort = trial.server, tiny.COHORTS[r]
        for exchange in range(method.exchanges):
            weights = [client_data.sizes[cohort].to(client_data.dtype)]
            jobs = cohort_jobs(method, [trial], r, exchange, [cohort], weights, len(client_data.sizes), tiny.sgd())
            states = trial.clients.gather(cohort)
            runner.begin([trial], jobs)
            trained = trainer.train(jobs)
            runner.end(trained)
            update_servers(method, [trial], trained)
        values = runner.measure([trial], [{"probes": {}}] * r)[0].get("probes", {})
        probed.append(ProbedRound(values, before, trial.server, jobs[0], states, trained[0].ends))
    return probed
