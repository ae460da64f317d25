"""Rounds of the tiny problem with probes looking on, and everything that they saw."""

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


class Round(NamedTuple):
    """One round: what the probes said, and what a calculation by hand may use."""

    found: dict[str, Any]
    before: Any
    after: Any
    job: CohortJob
    states: Any
    ends: Tensor


def watch(method: Method, *names: str, engine: str = "sequential", rounds: int = 2) -> list[Round]:
    """Play rounds of one seed with these probes."""
    feed, task = tiny.feed(), tiny.task()
    trial, runner = Trial(0, method, tiny.params()), ENGINES[engine](method, task, feed)
    probes, seen = ProbeRunner(names, lambda round: bool(names), method, task, feed, feed.test()), []
    for r in range(rounds):
        before, who = trial.server, tiny.COHORTS[r]
        for exchange in range(method.exchanges):
            weights = [feed.sizes[who].to(feed.dtype)]
            jobs = cohort_jobs(method, [trial], r, exchange, [who], weights, len(feed.sizes), tiny.sgd())
            states = trial.clients.gather(who)
            probes.begin([trial], jobs)
            trained = runner.train(jobs)
            probes.end(trained)
            update_servers(method, [trial], trained)
        found = probes.measure([trial], [{"probes": {}}] * r)[0]
        seen.append(Round(found.get("probes", {}), before, trial.server, jobs[0], states, trained[0].ends))
    return seen
