"""Packing clients into lanes: every step once and in order, with a makespan near the best."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedflat.engine.lane_packing import choose_lanes, makespan, pack_lanes, schedule_lanes

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=25)
lanes = st.integers(1, 8)


@given(lengths, lanes)
def test_every_item_is_in_one_lane(lengths, lanes):
    packed = pack_lanes(lengths, lanes)
    assert sorted(item for lane in packed for item in lane) == list(range(len(lengths)))


@given(lengths, lanes)
def test_makespan_is_near_the_best(lengths, lanes):
    """Longest first is at most 4/3 of the best possible, which is at least the mean load and the longest item."""
    bound = max(sum(lengths) / lanes, max(lengths))
    assert bound <= makespan(lengths, lanes) <= (4 / 3) * bound + max(lengths) / 3


@given(lengths, lanes)
def test_schedule_has_every_step_once_and_in_order(lengths, lanes):
    schedule = schedule_lanes(lengths, lanes)
    for item, length in enumerate(lengths):
        times, where = np.nonzero(schedule.item == item)
        assert len(set(where)) == 1
        assert times.tolist() == list(range(times[0], times[0] + length))
        assert schedule.step[times, where].tolist() == list(range(length))


@given(lengths, lanes)
def test_starts_and_ends_enclose_the_steps(lengths, lanes):
    schedule = schedule_lanes(lengths, lanes)
    starts = {item: (time, lane) for time, lane, item in schedule.starts.tolist()}
    ends = {item: (time, lane) for time, lane, item in schedule.ends.tolist()}
    assert list(schedule.starts[:, 0]) == sorted(schedule.starts[:, 0])
    for item, length in enumerate(lengths):
        assert ends[item] == (starts[item][0] + length, starts[item][1])
        assert (schedule.item[starts[item][0] : ends[item][0], starts[item][1]] == item).all()


def test_equal_clients_get_a_lane_each():
    assert choose_lanes([[8, 8, 8, 8, 8]], 5) == 5


def test_one_long_client_needs_few_lanes():
    assert choose_lanes([[200, 10, 10, 10, 10, 10, 10, 10, 10, 10]], 10) <= 2


@given(lengths, lanes)
def test_long_clients_come_first(lengths, lanes):
    """A long client at the end would keep one lane busy while the others wait."""
    for lane in pack_lanes(lengths, lanes):
        own = [lengths[item] for item in lane]
        assert own == sorted(own, reverse=True)
    assert makespan([1, 1, 1, 1, 1, 1, 6], 3) == 6
