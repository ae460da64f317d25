"""Who trains whom: ranks finish together, and clients stay at home where that costs nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedflat.engine.packing import assign, makespan

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=40)
ranks = st.integers(1, 8)


def longest(lengths: list[int], chosen: list[int]) -> int:
    return max(sum(n for n, rank in zip(lengths, chosen, strict=True) if rank == r) for r in set(chosen))


@given(lengths, ranks)
def test_stateless_clients_go_to_the_idlest(lengths: list[int], ranks: int) -> None:
    assert longest(lengths, assign(lengths, ranks)) == makespan(lengths, ranks)


@given(lengths, ranks, st.randoms(use_true_random=False))
def test_ranks_finish_together(lengths: list[int], ranks: int, chance) -> None:
    homes = [chance.randrange(ranks) for _ in lengths]
    chosen = assign(lengths, ranks, homes)
    assert set(chosen) <= set(range(ranks))
    assert longest(lengths, chosen) <= makespan(lengths, ranks) + max(lengths)


@given(lengths, ranks)
def test_nobody_travels_where_homes_are_balanced(lengths: list[int], ranks: int) -> None:
    homes = assign(lengths, ranks)
    assert assign(lengths, ranks, homes) == homes


def test_only_the_surplus_travels() -> None:
    """Twelve equal clients, eight of them at home on the same of three ranks: four stay there."""
    homes = [0] * 8 + [1, 1, 1, 2]
    chosen = assign([5] * 12, 3, homes)
    assert [chosen.count(rank) for rank in range(3)] == [4, 4, 4]
    assert sum(rank != home for rank, home in zip(chosen, homes, strict=True)) == 4
