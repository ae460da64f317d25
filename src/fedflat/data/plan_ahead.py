"""Batches that are planned for several rounds at once.

A plan takes about two hundred small tensor operations, whatever its size. In a short round, launching them on a GPU
takes longer than the training itself. Which clients train in which round is known ahead, so rounds can share a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedflat.core.task import Batch
from fedflat.data.batches import BatchPlan, ClientBatches, RoundCohort

ROUNDS_AHEAD = 16
MOST_SAMPLES = 1 << 20  # in the plans of all these rounds; a sample takes 17 bytes


class PlannedAhead:
    """The same batches as those of `source`, planned for several rounds at once.

    Args:
        source: where the batches come from.
        coming: returns the cohort of a round, or None if there is no such round.
        rounds: for how many rounds to plan at most.
    """

    def __init__(
        self, source: ClientBatches, coming: Callable[[int], RoundCohort | None], rounds: int = ROUNDS_AHEAD
    ) -> None:
        self.source, self._coming, self._rounds = source, coming, rounds
        self._plans: dict[tuple[int, RoundCohort], BatchPlan] = {}  # by exchange and cohort

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int) -> list[int]:
        """Return how many steps each client takes in this round."""
        return self.source.lengths(seeds, round, clients, exchange)

    def batch(self, plan: BatchPlan) -> Batch:
        """Return the samples of a plan or of a slice of one."""
        return self.source.batch(plan)

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int) -> BatchPlan:
        """Return the steps of each client. A cohort that was not foreseen is planned alone."""
        asked = RoundCohort(round, tuple(seeds), tuple(clients))
        if (exchange, asked) not in self._plans:
            cohorts = self._cohorts_ahead(asked, exchange)
            plans = self.source.plan_rounds(cohorts, exchange)
            others = {key: plan for key, plan in self._plans.items() if key[0] != exchange}
            self._plans = others | {(exchange, cohort): plan for cohort, plan in zip(cohorts, plans, strict=True)}
        return self._plans.pop((exchange, asked))

    def _cohorts_ahead(self, asked: RoundCohort, exchange: int) -> list[RoundCohort]:
        """The cohort that is asked for and, if it was foreseen, those of the next rounds, as far as they are small."""
        cohorts = [asked]
        ahead = range(asked.round + 1, asked.round + self._rounds) if self._coming(asked.round) == asked else ()
        samples = self._samples(asked, exchange)
        for cohort in filter(None, map(self._coming, ahead)):
            samples += self._samples(cohort, exchange) if cohort.clients else 0
            if samples > MOST_SAMPLES:
                break
            cohorts += [cohort] if cohort.clients else []
        return cohorts

    def _samples(self, cohort: RoundCohort, exchange: int) -> int:
        """The size of a cohort's plan, which is padded to the longest client."""
        longest = max(self.lengths(cohort.seeds, cohort.round, cohort.clients, exchange))
        return len(cohort.clients) * longest * self.source.batch_size
