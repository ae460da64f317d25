"""Which of several runs is significantly the best, judged by tests over seeds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Literal

Mark = Literal["", "best", "tied"]
SeedValues = Mapping[int, float]  # seed: its value
LEVEL = 0.05
RULE = (
    "Bold is significantly the best of the runs that differ in method and seeds only: better than each other one with "
    "p < 0.05 in a two-sided t-test, paired over the seeds that both runs have, or Welch's where they share fewer than "
    "two. ≈ marks the highest mean where it is not, and the runs that no test tells from it. Runs of one seed and "
    "runs that diverged are never bold."
)


def mark_best(values: Sequence[SeedValues], higher: bool = True) -> list[Mark]:
    """Return for each run whether it is significantly the best, tied with the best, or neither.

    Args:
        values: each run's values by seed; runs with fewer than two seeds are not judged.
        higher: whether higher values are better.
    """
    marks: list[Mark] = ["" for _ in values]
    judged = [n for n, of_run in enumerate(values) if len(of_run) > 1]
    if len(judged) < 2:
        return marks
    sign = 1 if higher else -1
    first = max(judged, key=lambda n: sign * sum(values[n].values()) / len(values[n]))
    tied = [n for n in judged if n != first and difference_p_value(values[first], values[n]) >= LEVEL]
    for n in [first, *tied]:
        marks[n] = "tied" if tied else "best"
    return marks


def difference_p_value(one: SeedValues, other: SeedValues) -> float:
    """Return p of a two-sided t-test for equal means: paired over shared seeds, Welch's if there are fewer than two.

    Args:
        one: a run's values by seed, at least two.
        other: those of another run.
    """
    from scipy import stats  # slow to import

    shared = sorted(one.keys() & other.keys())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences in all seeds: t is infinite, p is 0
        if len(shared) > 1:
            p = stats.ttest_rel([one[seed] for seed in shared], [other[seed] for seed in shared]).pvalue
        else:
            p = stats.ttest_ind([*one.values()], [*other.values()], equal_var=False).pvalue
    return 1.0 if p != p else float(p)  # 0 / 0: no difference at all
