"""Who trains whom: ranks finish together, clients stay at home where that costs nothing, one vector ends a round."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "methods"))

import tiny_problem as tiny

from fedflat.engine import ENGINES
from fedflat.engine.distributed import Distributed
from fedflat.engine.lane_packing import assign_ranks, makespan
from fedflat.engine.processes import ProcessGroup, Rank
from fedflat.methods import METHODS

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=40)
ranks = st.integers(1, 8)


def longest(lengths: list[int], chosen: list[int]) -> int:
    return max(sum(n for n, rank in zip(lengths, chosen, strict=True) if rank == r) for r in set(chosen))


@given(lengths, ranks)
def test_stateless_clients_go_to_the_idlest(lengths: list[int], ranks: int) -> None:
    assert longest(lengths, assign_ranks(lengths, ranks)) == makespan(lengths, ranks)


@given(lengths, ranks, st.randoms(use_true_random=False))
def test_ranks_finish_together(lengths: list[int], ranks: int, chance) -> None:
    homes = [chance.randrange(ranks) for _ in lengths]
    chosen = assign_ranks(lengths, ranks, homes)
    assert set(chosen) <= set(range(ranks))
    assert longest(lengths, chosen) <= makespan(lengths, ranks) + max(lengths)


@given(lengths, ranks)
def test_nobody_travels_where_homes_are_balanced(lengths: list[int], ranks: int) -> None:
    homes = assign_ranks(lengths, ranks)
    assert assign_ranks(lengths, ranks, homes) == homes


def test_only_the_surplus_travels() -> None:
    """Twelve equal clients, eight of them at home on the same of three ranks: four stay there."""
    homes = [0] * 8 + [1, 1, 1, 2]
    chosen = assign_ranks([5] * 12, 3, homes)
    assert [chosen.count(rank) for rank in range(3)] == [4, 4, 4]
    assert sum(rank != home for rank, home in zip(chosen, homes, strict=True)) == 4


class Counted(ProcessGroup):
    """One process that notes how many numbers it would have summed over ranks."""

    def __init__(self) -> None:
        super().__init__(Rank())
        self.sums: list[int] = []

    def total(self, tensor: Tensor) -> Tensor:
        self.sums.append(tensor.numel())
        return tensor


@pytest.mark.parametrize(("name", "reply"), [("fedavg", 35), ("scaffold", 70), ("fedgf", 36), ("naivefedgloss", 35)])
def test_one_vector_is_summed_in_an_exchange(name: str, reply: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 J R numbers, as docs/scaling.md has it, whatever the cohort."""
    world, method = Counted(), METHODS[name]()
    monkeypatch.setitem(ENGINES, "distributed", functools.partial(Distributed, world=world))
    tiny.train(method, "distributed", range(2), cohorts=([0, 2, 1], [1]))
    assert world.sums == [2 * 2 * reply] * 2 * method.exchanges


def test_a_rank_says_in_how_many_lanes_it_trains() -> None:
    """What the estimate of a GPU's memory begins with."""
    engine = Distributed(METHODS["fedavg"](), tiny.task(), tiny.feed(), ProcessGroup(Rank()))
    assert engine.lanes is None
    engine.prepare([[3, 2, 2]])
    assert engine.lanes in (1, 2, 3)
