"""The division of clients over ranks: ranks finish together, few states are lent, one vector ends an exchange."""

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
from fedflat.engine.processes import ProcessGroup
from fedflat.engine.ranks import Rank
from fedflat.methods import METHODS

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=40)
ranks = st.integers(1, 8)


def longest(lengths: list[int], chosen: list[int]) -> int:
    return max(sum(n for n, rank in zip(lengths, chosen, strict=True) if rank == r) for r in set(chosen))


@given(lengths, ranks)
def test_stateless_clients_go_to_the_least_busy_rank(lengths: list[int], ranks: int) -> None:
    assert longest(lengths, assign_ranks(lengths, ranks)) == makespan(lengths, ranks)


@given(lengths, ranks, st.randoms(use_true_random=False))
def test_ranks_finish_together(lengths: list[int], ranks: int, chance) -> None:
    owners = [chance.randrange(ranks) for _ in lengths]
    chosen = assign_ranks(lengths, ranks, owners)
    assert set(chosen) <= set(range(ranks))
    assert longest(lengths, chosen) <= makespan(lengths, ranks) + max(lengths)


@given(lengths, ranks)
def test_no_state_is_lent_if_owners_have_equal_work(lengths: list[int], ranks: int) -> None:
    owners = assign_ranks(lengths, ranks)
    assert assign_ranks(lengths, ranks, owners) == owners


def test_only_the_surplus_of_states_is_lent() -> None:
    """Twelve equal clients, eight of them owned by the same of three ranks: it trains four of them."""
    owners = [0] * 8 + [1, 1, 1, 2]
    chosen = assign_ranks([5] * 12, 3, owners)
    assert [chosen.count(rank) for rank in range(3)] == [4, 4, 4]
    assert sum(rank != owner for rank, owner in zip(chosen, owners, strict=True)) == 4


class CountingGroup(ProcessGroup):
    """One process that counts the numbers it would have summed over ranks."""

    def __init__(self) -> None:
        super().__init__(Rank())
        self.sums: list[int] = []

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        self.sums.append(tensor.numel())
        return tensor


@pytest.mark.parametrize(("name", "reply"), [("fedavg", 35), ("scaffold", 70), ("fedgf", 36), ("naivefedgloss", 35)])
def test_one_vector_is_summed_in_an_exchange(name: str, reply: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 J R numbers, as in docs/scaling.md, for every cohort."""
    processes, method = CountingGroup(), METHODS[name]()
    monkeypatch.setitem(ENGINES, "distributed", functools.partial(Distributed, processes=processes))
    tiny.train(method, "distributed", range(2), cohorts=([0, 2, 1], [1]))
    assert processes.sums == [2 * 2 * reply] * 2 * method.exchanges


def test_a_rank_knows_its_number_of_lanes() -> None:
    """The estimate of a GPU's memory needs it."""
    engine = Distributed(METHODS["fedavg"](), tiny.task(), tiny.client_data(), ProcessGroup(Rank()))
    assert engine.lanes is None
    engine.prepare([[3, 2, 2]])
    assert engine.lanes in (1, 2, 3)
