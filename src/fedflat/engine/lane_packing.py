"""Clients of unequal length packed into lanes, or dealt to ranks: longest first, each where it can start earliest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

STEP_OVERHEAD = 3.0  # cost of a step with L lanes is taken as OVERHEAD + L: what the GPU prototypes and CPU runs show


MAX_LANES = 5000  # clients whose lengths decide on the number of lanes


class LaneSchedule(NamedTuple):
    """Which item's which step every lane takes at every time [steps, lanes]; −1 where a lane has nothing to do.

    `starts` and `ends` are rows (time, lane, item) in order of time: before step `time` the lane takes the item up,
    or puts it aside.
    """

    item: np.ndarray
    step: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def pack_lanes(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Items of each lane in the order they are trained."""
    free = [(0, lane) for lane in range(lanes)]
    packed: list[list[int]] = [[] for _ in range(lanes)]
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        busy, lane = heapq.heappop(free)
        packed[lane].append(item)
        heapq.heappush(free, (busy + lengths[item], lane))
    return packed


def makespan(lengths: Sequence[int], lanes: int) -> int:
    """Steps until the last lane is done."""
    return max(sum(lengths[item] for item in lane) for lane in pack_lanes(lengths, lanes))


def choose_lanes(rounds: Iterable[Sequence[int]], most: int) -> int:
    """The number of lanes that makes these rounds cheapest: Σ makespan(L) · (OVERHEAD + L) is smallest.

    Of large cohorts fewer rounds and, beyond 64, only every sixteenth part more lanes are tried.
    """
    rounds = [list(lengths) for lengths in rounds]
    rounds = rounds[: max(1, MAX_LANES // len(rounds[0]))]
    useful = min(most, max(math.ceil(sum(lengths) / max(lengths)) for lengths in rounds) + 2)
    costs = {
        lanes: (STEP_OVERHEAD + lanes) * sum(makespan(lengths, lanes) for lengths in rounds)
        for lanes in _candidates(useful)
    }
    return min(costs, key=lambda lanes: costs[lanes])


def _candidates(most: int) -> Iterator[int]:
    """1, 2, … 64, 68, 72, … `most`."""
    lanes = 1
    while lanes < most:
        yield lanes
        lanes += max(1, lanes // 16) if lanes >= 64 else 1
    yield max(most, 1)


def assign_ranks(lengths: Sequence[int], ranks: int, homes: Sequence[int] = ()) -> list[int]:
    """The rank of each item, longest first: at home (where items have one) as far as that does not lengthen the round.

    The others go to the rank with the least to do.
    """
    order, load, chosen = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)), [0] * ranks, [-1] * len(lengths)
    limit = makespan(lengths, ranks) if homes else 0
    for item in order[: len(homes)]:
        if load[homes[item]] + lengths[item] <= limit:
            chosen[item] = homes[item]
            load[homes[item]] += lengths[item]
    idle = sorted((busy, rank) for rank, busy in enumerate(load))
    for item in (item for item in order if chosen[item] < 0):
        busy, chosen[item] = heapq.heappop(idle)
        heapq.heappush(idle, (busy + lengths[item], chosen[item]))
    return chosen


def schedule_lanes(lengths: Sequence[int], lanes: int) -> LaneSchedule:
    """Every lane's items one after another."""
    packed = pack_lanes(lengths, lanes)
    steps = max(sum(lengths[i] for i in lane) for lane in packed)
    item, step = np.full((steps, lanes), -1), np.zeros((steps, lanes), dtype=np.int64)
    starts, ends = [], []
    for lane, items in enumerate(packed):
        time = 0
        for current in items:
            end = time + lengths[current]
            item[time:end, lane], step[time:end, lane] = current, np.arange(lengths[current])
            starts.append((time, lane, current))
            ends.append((end, lane, current))
            time = end
    return LaneSchedule(item, step, np.array(sorted(starts)), np.array(sorted(ends)))
