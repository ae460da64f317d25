"""Stateless random numbers: deterministic, uniform, and the same for Python numbers and tensors."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedflat.core.random import choose_without_replacement, hash_words, integer_below, uniform_from
from fedflat.engine.participation import choose_cohort


@given(st.integers(0, 2**62), st.integers(1, 3000), st.data())
def test_choose_is_without_replacement(key, n, data):
    k = data.draw(st.integers(0, min(n, 60)))
    chosen = choose_without_replacement(key, n, k)
    assert len(set(chosen)) == k
    assert all(0 <= number < n for number in chosen)
    assert chosen == choose_without_replacement(key, n, k)


@given(st.integers(0, 10**6), st.integers(-(2**40), 2**40))
def test_numbers_and_tensors_hash_alike(key, word):
    assert hash_words(key, word) == hash_words(torch.tensor(key), torch.tensor(word))


@pytest.mark.parametrize(("n", "k"), [(5, 2), (8, 2), (10, 3), (20, 2)])
def test_every_choice_is_equally_likely(n, k):
    """χ² of the counts of all sets is within four standard deviations of its mean (the number of sets less one)."""
    sets, rounds = math.comb(n, k), 200 * math.comb(n, k)
    counts = Counter(frozenset(choose_cohort(7, round, n, k)) for round in range(rounds))
    chi2 = sum((count - 200) ** 2 / 200 for count in counts.values()) + 200 * (sets - len(counts))
    assert abs(chi2 - (sets - 1)) < 4 * math.sqrt(2 * (sets - 1))


def test_the_released_cohorts_are_numpys_and_alike_for_all_seeds():
    """np.random.seed(round); np.random.choice(N, K, replace=False), as FedSOL's released code calls them."""
    state = np.random.get_state()  # noqa: NPY002
    for round in range(3):
        np.random.seed(round)  # noqa: NPY002
        drawn = np.random.choice(100, 10, replace=False).tolist()  # noqa: NPY002
        assert choose_cohort(0, round, 100, 10, "released") == choose_cohort(7, round, 100, 10, "released") == drawn
        assert choose_cohort(0, round, 100, 100, "released")[:10] == drawn, "a federation goes on in the same order"
    np.random.set_state(state)  # noqa: NPY002


def test_choose_covers_all_evenly():
    counts = torch.zeros(20)
    for round in range(4000):
        counts[choose_cohort(0, round, 20, 5)] += 1
    expected = 4000 * 5 / 20
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 43.8  # 99.9 % of χ² with 19 degrees of freedom (an upper bound: choices exclude each other)


def test_uniform_from_and_integer_below_are_uniform():
    words = hash_words(torch.tensor(1), torch.arange(100_000))
    u = uniform_from(words)
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 0.005
    assert torch.bincount(integer_below(words, 9), minlength=9).min() > 100_000 / 9 * 0.95


def test_neighbouring_words_are_unrelated():
    bits = hash_words(torch.tensor(0), torch.arange(20_000))
    changed = torch.stack([((bits[1:] ^ bits[:-1]) >> bit) & 1 for bit in range(63)]).double().mean(1)
    assert (changed - 0.5).abs().max() < 0.02
