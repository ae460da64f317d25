"""Who takes part: sizes, no client twice, exact probabilities, availability, lost replies and stragglers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedflat as ff
from fedflat.core.optimiser import Optimiser
from fedflat.core.random import hash_words
from fedflat.data.client_files import Availability, ClientSetting, read_availability, read_client_settings
from fedflat.engine.participation import LocalWork, Participation, choose_by_size, choose_cohort, cohort_size
from fedflat.runs.build import build_participation
from fedflat.runs.experiment import Setting

SAMPLINGS = get_args(get_type_hints(Setting)["sampling"])
SIZES = [9, 1, 4, 4, 7, 2, 3, 3, 6, 1]
clients_and_cohort = st.integers(1, 90).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def assert_rates(counts: Counter[int], draws: int, rates: dict[int, float]) -> None:
    """Every count is within five standard deviations of the binomial distribution."""
    for who, rate in rates.items():
        spread = 5 * math.sqrt(draws * rate * (1 - rate))
        assert abs(counts[who] - draws * rate) <= spread, (who, counts[who], draws * rate)


def count(rounds: Iterable[list[int]]) -> Counter[int]:
    return Counter(client for chosen in rounds for client in chosen)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(deadline=None, max_examples=30)
@given(clients_and_cohort, st.integers(0, 5), st.integers(0, 200))
def test_no_client_twice_and_never_more_than_the_cohort(sampling, numbers, seed, round):
    clients, cohort = numbers
    who = Participation([1 + 5 * n % 7 for n in range(clients)], cohort, sampling)
    chosen = who.chosen(seed, round)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(clients))
    assert chosen == who.chosen(seed, round), "a function of its arguments"
    if sampling in ("uniform", "weighted", "released"):
        assert len(chosen) == cohort
    elif sampling in ("cyclic", "round-robin"):
        groups = -(-clients // cohort)
        assert clients // groups <= len(chosen) <= cohort


@settings(deadline=None)
@given(st.integers(1, 10**6), st.floats(1e-6, 1))
def test_a_share_is_a_number_of_clients(clients, share):
    assert 1 <= cohort_size(share, clients) <= clients
    assert abs(cohort_size(share, clients) - share * clients) <= max(0.5, 1 - share * clients)
    assert cohort_size(clients, 1) == clients, "a whole number is not a share"


def test_one_is_a_client_and_one_point_zero_all_of_them():
    assert (cohort_size(1, 20), cohort_size(1.0, 20), cohort_size(0.1, 20), cohort_size(0.01, 20)) == (1, 20, 2, 1)


@pytest.mark.parametrize("sampling", ["uniform", "poisson"])
def test_every_client_is_equally_likely(sampling):
    who, draws = Participation([3] * 70, 0.2, sampling), 1000
    rounds = [who.chosen(1, r) for r in range(draws)]
    assert_rates(count(rounds), draws, dict.fromkeys(range(70), 0.2))


def test_poisson_draws_each_client_on_its_own():
    """Sizes are binomial, pairs independent, and an empty round happens."""
    who, draws = Participation([3] * 8, 2, "poisson"), 2000
    rounds = [who.chosen(0, r) for r in range(draws)]
    sizes = Counter(map(len, rounds))
    assert_rates(sizes, draws, {k: math.comb(8, k) * 0.25**k * 0.75 ** (8 - k) for k in range(9)})
    pairs = Counter((a, b) for chosen in rounds for a in chosen for b in chosen if a < b)
    assert_rates(pairs, draws, {(a, b): 1 / 16 for a in range(8) for b in range(a + 1, 8)})
    assert [] in rounds


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 14), st.integers(0, 2**40))
def test_clients_drawn_by_size_are_as_many_as_asked(sizes, wanted, key):
    drawn = choose_by_size(key, dict(enumerate(sizes)), wanted)
    assert len(set(drawn)) == len(drawn) == min(wanted, len(sizes))


def test_clients_are_drawn_exactly_in_proportion_to_their_sizes():
    """A client whose share is one or more is certain; the others share what is left: 1/2 of 38, then 1/3 of 30."""
    draws, sizes = 1500, dict(enumerate([20, 1, 4, 4, 2, 3, 4]))
    counts = count(choose_by_size(int(hash_words(5, r)), sizes, 3) for r in range(draws))
    assert counts[0] == draws
    assert_rates(counts, draws, {client: 2 * n / 18 for client, n in sizes.items() if client})


def test_weighted_sampling_with_equal_weights_is_unbiased():
    """The mean over rounds of the plain mean of the cohort is the mean weighted by size, as the docs say."""
    sizes = np.array(SIZES)
    values = sizes**2 / 10 + np.array([3, -1, 2, 5, 0, 4, 1, 1, -2, 7])  # larger clients tend to have larger ones
    cohorts = [Participation(SIZES, 3, "weighted").chosen(0, r) for r in range(1500)]
    target = np.average(values, weights=sizes)
    once = [values[chosen].mean() for chosen in cohorts]
    twice = [np.average(values[chosen], weights=sizes[chosen]) for chosen in cohorts]
    assert abs(np.mean(once) - target) < 5 * np.std(once) / math.sqrt(1500)
    assert abs(np.mean(twice) - target) > 5 * np.std(twice) / math.sqrt(1500), "weighting twice is biased"


@pytest.mark.parametrize(("clients", "cohort"), [(10, 5), (10, 4), (7, 3), (5, 5), (9, 1)])
def test_everybody_takes_part_once_in_each_pass(clients, cohort):
    groups = -(-clients // cohort)
    passes = {}
    for sampling in ("cyclic", "round-robin"):
        who = Participation([1] * clients, cohort, sampling)
        passes[sampling] = [[who.chosen(3, p * groups + g) for g in range(groups)] for p in range(4)]
        assert all(count(rounds) == Counter(range(clients)) for rounds in passes[sampling])
    cyclic, round_robin = passes["cyclic"], passes["round-robin"]
    assert cyclic[0] == cyclic[1] == cyclic[2] == cyclic[3], "fixed groups in a fixed order"
    assert groups == 1 or len({str(p) for p in round_robin}) > 1, "new groups in every pass"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8))
def test_a_client_that_is_not_available_is_never_chosen(sampling, spans):
    trace = Availability(*np.array([(c, min(a, b), max(a, b)) for c, a, b in spans]).T)
    who = Participation(SIZES, 4, sampling, trace)
    for r in range(22):
        available = {c for c, a, b in spans if min(a, b) <= r <= max(a, b)}
        chosen = who.chosen(0, r)
        assert set(chosen) <= available
        assert len(set(chosen)) == len(chosen)
        if sampling in ("uniform", "weighted", "released"):
            assert len(chosen) == min(4, len(available)), "all of them, if they are fewer than the cohort"


def test_uniform_sampling_among_available_clients_is_uniform():
    trace = Availability(np.arange(6), np.zeros(6, dtype=int), np.full(6, 10**6))
    who, draws = Participation([1] * 90, 2, "uniform", trace), 500
    assert_rates(count(who.chosen(0, r) for r in range(draws)), draws, dict.fromkeys(range(6), 1 / 3))
    assert Participation([1] * 90, 2).chosen(4, 7) == choose_cohort(4, 7, 90, 2), "as before without a trace"


def test_lost_replies_and_late_stragglers():
    draws = 1000
    who = Participation(SIZES, 5, dropout_rate=0.2, stragglers=0.3, straggler_work=0.0)
    rounds = [who.replying(2, r) for r in range(draws)]
    assert all(set(replied) <= set(who.chosen(2, r)) for r, replied in enumerate(rounds))
    assert_rates(count(rounds), draws, dict.fromkeys(range(10), 0.5 * 0.8 * 0.7))
    assert Participation(SIZES, 5, stragglers=0.3).replying(2, 0) == who.chosen(2, 0), "slow ones reply"


def test_stragglers_take_a_share_of_their_steps():
    who = Participation(SIZES, 5, stragglers=0.3, straggler_work=0.5, work=LocalWork(3), batch_size=2)
    full = [3 * -(-n // 2) for n in SIZES]
    everyone, slow = range(10), Counter[int]()
    for r in range(500):
        for client, steps in enumerate(who.step_counts([7] * 10, r, everyone)):
            assert steps in (full[client], max(1, int(full[client] / 2 + 0.5)))
            slow[client] += steps != full[client]
    assert_rates(slow, 500, dict.fromkeys(everyone, 0.3))
    alone = [who.step_counts([7], 5, [client])[0] for client in everyone]
    assert alone == who.step_counts([7] * 10, 5, everyone), "it does not depend on who else is asked"


def test_settings_of_single_clients():
    own = {1: ClientSetting(0.5, 7, None), 2: ClientSetting(None, None, 20), 3: ClientSetting(0.1, None, None)}
    who = Participation(SIZES, 5, work=LocalWork(2), batch_size=4, settings=own)
    assert who.step_counts([0] * 4, 0, [0, 1, 2, 3]) == [2 * 3, 7 * 1, 20, 2 * 1]
    decayed = Optimiser(torch.tensor(0.025).double())
    lrs = who.with_client_lrs(decayed, 0.05, [0, 1, 2, 3]).lr
    torch.testing.assert_close(lrs, torch.tensor([0.05, 0.5, 0.05, 0.1]).double() / 2)
    assert who.with_client_lrs(decayed, 0.05, [0, 2]) is decayed
    without_data = Participation([0, 5], 1, work=LocalWork(5, 20))
    assert without_data.step_counts([0, 0], 0, [0, 1]) == [0, 20]


def test_files_are_read(tmp_path: Path):
    (tmp_path / "trace.csv").write_text("\ufeffclient,from,to\n0, 1, 3\n1,2,\n1,1,1\n", encoding="utf-8")
    trace = read_availability(str(tmp_path / "trace.csv"), 4)
    assert [trace.available(r) for r in range(4)] == [{0, 1}, {0, 1}, {0, 1}, {1}]
    (tmp_path / "own.csv").write_text("client,lr,local_steps\n2,0.1,\n0,,7\n", encoding="utf-8")
    expected = {2: ClientSetting(0.1, None, None), 0: ClientSetting(None, None, 7)}
    assert read_client_settings(str(tmp_path / "own.csv"), 4) == expected


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("availability", "client,from,to\n0,5,2\n", "line 2: from 5 comes after to 2"),
        ("availability", "client,from,to\n4,1,2\n", "line 2: client must be a number below 4"),
        ("availability", "client,from,to\n0,x,2\n", "line 2: from 'x' must be a whole number"),
        ("availability", "client,from,to\n0,0,2\n", "line 2: from '0' must be between 1 and 1000000000"),
        ("availability", "client,from\n0,1\n", "has no column to; columns are client, from, to"),
        ("availability", "client,from,to\n", "names no client"),
        ("availability", "client,from,to\n0,7,9\n", "no client is available in rounds 1 to 6"),
        ("client_settings", "client,local_step\n0,1\n", "unknown column 'local_step' (did you mean local_steps?)"),
        ("client_settings", "client,lr\n0,-1\n", "line 2: lr '-1' must be more than 0"),
        ("client_settings", "client,lr\n0,1\n0,2\n", "line 3: client 0 is named twice"),
        ("client_settings", "client,local_epochs,local_steps\n0,1,2\n", "give local_epochs or local_steps, not both"),
        ("client_settings", "client,lr\n0,\xff\n", "not a CSV file"),
        ("client_settings", "client,lr\n0,1,5\n", "line 2: has more cells than the 2 columns of line 1"),
        ("client_settings", "client,lr,lr\n0,1,2\n", "names a column twice"),
        ("client_settings", "client\n0\n", "sets neither lr, local_epochs nor local_steps of any client"),
    ],
)
def test_mistakes_in_files(tmp_path: Path, option: str, text: str, problem: str):
    path = tmp_path / "file.csv"
    path.write_bytes(text.encode("latin-1"))
    experiment = ff.Experiment(rounds=6, cohort=2, **{option: str(path)})
    with pytest.raises(ff.UserError, match=r"file\.csv") as raised:
        build_participation(experiment, [3] * 4)
    assert problem in str(raised.value)


def test_mistakes_in_options():
    for options, problem in [
        ({"local_steps": 20, "local_epochs": 5}, "local_steps=20: cannot be used together with local_epochs=5"),
        ({"stragglers": 1.0, "straggler_work": 0.0}, "stragglers=1.0: nobody replies with straggler_work=0"),
        ({"cohort": 1.5}, "cohort=1.5: must be a whole number or between 0 (not included) and 1"),
        ({"dropout_rate": 1.0}, "dropout_rate=1.0: must be between 0 and 0.99"),
    ]:
        with pytest.raises(ff.UserError) as raised:
            ff.Experiment(**options).check()
        assert problem in str(raised.value)


def test_stragglers_that_work_reply_and_lost_replies_do_not() -> None:
    sizes, rounds = [10] * 20, range(50)
    lossy = Participation(sizes, 10, dropout_rate=0.3)
    slow = Participation(sizes, 10, dropout_rate=0.3, stragglers=0.9, straggler_work=0.5)
    assert [lossy.replying(0, r) for r in rounds] == [slow.replying(0, r) for r in rounds]
    replies = sum(len(lossy.replying(0, r)) for r in rounds)
    assert abs(replies - 350) < 4 * math.sqrt(500 * 0.3 * 0.7)
    assert (lossy.has_fixed_size, Participation(sizes, 10, stragglers=0.9).has_fixed_size) == (False, True)


def test_clients_without_samples_are_not_drawn_by_size() -> None:
    weighted = Participation([5, 0, 7, 0, 9], 4, "weighted")
    assert all(weighted.chosen(0, round) == [0, 2, 4] for round in range(5))


def test_the_size_is_only_expected_where_clients_are_drawn_one_by_one() -> None:
    assert Participation([1] * 20, 5, "poisson").expected_size == 5
    assert Participation([1] * 20, 5, "uniform").expected_size is None
