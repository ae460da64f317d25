"""Which lane, or which rank, trains which clients, so that all of them finish at about the same time.

Clients have different numbers of local steps, because they have different numbers of samples. A *lane* trains one
client after another, and all lanes step together, so a round lasts as many steps as its longest lane (the *makespan*).
The same heuristic serves lanes and ranks: take the longest clients first, and give each to the lane, or rank, that is
free earliest. Its makespan is at most 4/3 of the best possible (R. L. Graham, Bounds on multiprocessing timing
anomalies, 1969).

In this file an *item* is one client of one trial, `lengths[item]` is its number of local steps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

STEP_OVERHEAD = 3.0  # a step of L lanes costs about STEP_OVERHEAD + L, as measured on a GPU and on a CPU
MAX_PLANNED_CLIENTS = 5000  # `choose_lanes` looks at rounds with no more clients than this in all


class LaneSchedule(NamedTuple):
    """What every lane does at every time, where one unit of time is one step of all lanes.

    Args:
        item: the item that the lane trains, or −1 if it is idle [times, lanes].
        step: the number of that item's step [times, lanes].
        starts: rows (time, lane, item), in order of time: before the step at `time` the lane starts with the item.
        ends: rows (time, lane, item), in order of time: before the step at `time` the lane has finished the item.
    """

    item: np.ndarray
    step: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda item: (-lengths[item], item))


def pack_lanes(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Return the items of each lane, in the order in which it trains them."""
    free = [(0, lane) for lane in range(lanes)]
    packed: list[list[int]] = [[] for _ in range(lanes)]
    for item in _longest_first(lengths):
        busy, lane = heapq.heappop(free)
        packed[lane].append(item)
        heapq.heappush(free, (busy + lengths[item], lane))
    return packed


def makespan(lengths: Sequence[int], lanes: int) -> int:
    """Return the number of steps until the last lane has finished."""
    return max(sum(lengths[item] for item in lane) for lane in pack_lanes(lengths, lanes))


def choose_lanes(rounds: Iterable[Sequence[int]], most: int) -> int:
    """Return the number of lanes L for which these rounds cost least: Σ makespan(L) · (STEP_OVERHEAD + L).

    To save time, fewer rounds are considered if cohorts are large, and above 64 not every number of lanes is tried.

    Args:
        rounds: the lengths of the items of each round.
        most: the largest number of lanes allowed.
    """
    rounds = [list(lengths) for lengths in rounds]
    rounds = rounds[: max(1, MAX_PLANNED_CLIENTS // len(rounds[0]))]
    useful = min(most, max(math.ceil(sum(lengths) / max(lengths)) for lengths in rounds) + 2)
    costs = {
        lanes: (STEP_OVERHEAD + lanes) * sum(makespan(lengths, lanes) for lengths in rounds)
        for lanes in _lane_numbers(useful)
    }
    return min(costs, key=lambda lanes: costs[lanes])


def _lane_numbers(most: int) -> Iterator[int]:
    """Yield 1, 2, … 64, 68, 72, … (beyond 64 each a sixteenth larger than the last) and `most`."""
    lanes = 1
    while lanes < most:
        yield lanes
        lanes += max(1, lanes // 16) if lanes >= 64 else 1
    yield max(most, 1)


def assign_ranks(lengths: Sequence[int], ranks: int, owners: Sequence[int] = ()) -> list[int]:
    """Return the rank that trains each item.

    Longest first, an item goes to its owner, as long as that does not lengthen the round; all others go to the rank
    with the fewest steps.

    Args:
        lengths: the number of steps of each item.
        ranks: the number of ranks.
        owners: the rank that keeps each item's state; empty if clients keep no state.
    """
    order, load, chosen = _longest_first(lengths), [0] * ranks, [-1] * len(lengths)
    limit = makespan(lengths, ranks) if owners else 0
    for item in order[: len(owners)]:
        if load[owners[item]] + lengths[item] <= limit:
            chosen[item] = owners[item]
            load[owners[item]] += lengths[item]
    idle = sorted((busy, rank) for rank, busy in enumerate(load))
    for item in (item for item in order if chosen[item] < 0):
        busy, chosen[item] = heapq.heappop(idle)
        heapq.heappush(idle, (busy + lengths[item], chosen[item]))
    return chosen


def schedule_lanes(lengths: Sequence[int], lanes: int) -> LaneSchedule:
    """Pack the items into lanes and write down what every lane does at every time."""
    packed = pack_lanes(lengths, lanes)
    times = max(sum(lengths[item] for item in lane) for lane in packed)
    item_at, step_at = np.full((times, lanes), -1), np.zeros((times, lanes), dtype=np.int64)
    starts, ends = [], []
    for lane, items in enumerate(packed):
        time = 0
        for item in items:
            end = time + lengths[item]
            item_at[time:end, lane], step_at[time:end, lane] = item, np.arange(lengths[item])
            starts.append((time, lane, item))
            ends.append((end, lane, item))
            time = end
    return LaneSchedule(item_at, step_at, np.array(sorted(starts)), np.array(sorted(ends)))
