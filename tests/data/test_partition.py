"""Invariants of every partition, and the errors."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedflat.cli import main
from fedflat.data import lda as lda_module
from fedflat.data.dirichlet import dirichlet
from fedflat.data.lda import lda, lda_equal, lda_released
from fedflat.data.partition import (
    PARTITIONS,
    class_counts,
    iid,
    long_tail_rows,
    matching_test_rows,
    natural,
    partition_rows,
    shards,
)
from fedflat.errors import UserError

CIFAR10 = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
seeds = st.integers(-(2**31), 2**63)
alphas = st.one_of(st.floats(5e-324, 1e-3), st.floats(1e-3, 1e9))
quick = settings(max_examples=60, deadline=None)


@st.composite
def cases(draw):
    """Draw labels of up to 7 classes, some of which may not occur, and a possible number of clients."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=7).filter(any))
    labels = np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return labels, draw(st.integers(1, min(40, len(labels))))


def _assert_valid(parts, labels, clients):
    rows = np.concatenate(parts)
    assert len(parts) == clients
    assert all(part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all() for part in parts)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(labels)


def _equal(one, other):
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@quick
@given(cases(), seeds)
def test_iid(case, seed):
    labels, clients = case
    parts = iid(labels, clients, seed)
    _assert_valid(parts, labels, clients)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == len(labels)
    assert max(sizes) - min(sizes) <= 1
    assert _equal(parts, iid(labels, clients, seed))


@quick
@given(cases(), st.integers(1, 5), seeds)
def test_shards(case, number, seed):
    (labels, clients), sizes = case, np.bincount(case[0])
    assume(number * clients >= (sizes > 0).sum())
    try:
        parts = shards(labels, clients, number, seed)
    except UserError:
        assert sizes[sizes > 0].min() < -(-number * clients // (sizes > 0).sum())  # a shard had to stay empty
        return
    _assert_valid(parts, labels, clients)
    assert sum(len(part) for part in parts) == len(labels)
    assert ((class_counts(labels, parts, 7) > 0).sum(1) <= number).all()
    assert _equal(parts, shards(labels, clients, number, seed))


@quick
@given(cases(), seeds)
def test_the_largest_classes_are_cut_into_one_shard_more(case, seed):
    """With one shard per client, the clients of a class are its shards."""
    (labels, clients), sizes = case, np.unique(case[0], return_counts=True)[1]
    assume(len(sizes) <= clients and sizes.min() > clients // len(sizes))
    parts = shards(labels, clients, 1, seed)
    table = class_counts(np.unique(labels, return_inverse=True)[1], parts, len(sizes))
    pieces = (table > 0).sum(0)
    more = sizes[pieces > clients // len(sizes)]
    assert set(pieces) <= {clients // len(sizes), clients // len(sizes) + 1}
    assert sorted(more) == sorted(sizes)[len(sizes) - clients % len(sizes) :]
    assert all(np.ptp(own[own > 0]) <= 1 for own in table.T), "the shards of a class are equal"


@quick
@given(cases(), alphas, st.integers(1, 12), seeds)
def test_lda(case, alpha, minimum, seed):
    labels, clients = case
    minimum = min(minimum, len(labels) // clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lda_module, "_MAX_SHARES", 20_000)
        patch.setattr(lda_module, "_SHARES_AT_ONCE", 5_000)
        parts = lda(labels, clients, alpha, seed, minimum)
        assert _equal(parts, lda(labels, clients, alpha, seed, minimum))
    _assert_valid(parts, labels, clients)
    assert sum(len(part) for part in parts) == len(labels)
    assert min(len(part) for part in parts) >= minimum


@quick
@given(cases(), alphas, st.integers(1, 3), seeds)
def test_lda_as_released(case, alpha, minimum, seed):
    labels, clients = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedflat.data.lda.RELEASED_ATTEMPTS", 30)
        try:
            parts = lda_released(labels, clients, alpha, seed, minimum)
        except UserError:
            assume(False)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert min(len(part) for part in parts) >= minimum


@quick
@given(cases(), alphas, seeds)
def test_lda_equal_uses_every_row_in_slices_of_equal_size(case, alpha, seed):
    labels, clients = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lda_module, "_MAX_SHARES", 2_000)
        patch.setattr(lda_module, "_SHARES_AT_ONCE", 1_000)
        parts = lda_equal(labels, clients, alpha, seed)
        assert _equal(parts, lda_equal(labels, clients, alpha, seed))
    _assert_valid(parts, labels, clients)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == len(labels)
    assert max(sizes) - min(sizes) <= 1


def test_lda_equal_draws_for_ten_clients_at_a_time():
    """A group of ten clients holds a random tenth of the data, so all classes are in every group, whatever α is."""
    table = class_counts(CIFAR10, lda_equal(CIFAR10, 100, 0.01, 0), 10)
    groups = table.reshape(10, 10, 10).sum(1)
    assert (abs(groups - 500) < 110).all()  # five standard deviations
    assert (table > 0).sum(1).mean() < 3.5
    assert (class_counts(CIFAR10, lda_equal(CIFAR10, 100, 1e6, 0), 10) > 20).all()


@quick
@given(cases(), st.floats(1e-6, 1), st.integers(0, 2**32 - 1))
def test_a_long_tail_keeps_a_falling_share_of_each_class(case, ratio, seed):
    labels, _ = case
    rows = long_tail_rows(labels, ratio, seed)
    assert (np.diff(rows) > 0).all()
    sizes, kept = np.unique(labels, return_counts=True)[1], np.unique(labels[rows], return_counts=True)[1]
    assert len(sizes) == len(kept), "no class is lost"
    share = ratio ** (np.arange(len(sizes)) / max(len(sizes) - 1, 1))
    assert (kept == np.maximum(np.floor(sizes * share), 1)).all()
    assert kept[0] == sizes[0]
    assert np.array_equal(rows, long_tail_rows(labels, ratio, seed))


def test_a_long_tail_of_cifar10():
    rows = long_tail_rows(CIFAR10, 0.5, 0)
    assert np.bincount(CIFAR10[rows]).tolist() == [5000, 4629, 4286, 3968, 3674, 3401, 3149, 2916, 2700, 2500]
    assert not np.array_equal(rows, long_tail_rows(CIFAR10, 0.5, 1))
    assert np.array_equal(long_tail_rows(CIFAR10, 1, 0), np.arange(50_000))


@quick
@given(cases(), alphas, seeds)
def test_dirichlet_has_equal_sizes(case, alpha, seed):
    labels, clients = case
    parts = dirichlet(labels, clients, alpha, seed)
    _assert_valid(parts, labels, clients)
    assert {len(part) for part in parts} == {len(labels) // clients}
    assert _equal(parts, dirichlet(labels, clients, alpha, seed))


@quick
@given(cases(), seeds)
def test_dirichlet_with_alpha_zero_separates_the_classes(case, seed):
    labels, clients = case
    parts = dirichlet(labels, clients, 0.0, seed)
    _assert_valid(parts, labels, clients)
    table, present = class_counts(labels, parts, 7), np.unique(labels)
    assert table.sum() == len(labels)
    if clients >= len(present):
        assert ((table > 0).sum(1) == 1).all()
        held = [table[:, c][table[:, c] > 0] for c in present]
        assert all(column.max() - column.min() <= 1 for column in held)
    else:
        assert ((table > 0).sum(0)[present] == 1).all()


@quick
@given(st.lists(st.integers(-1, 5), min_size=1, max_size=60).map(np.array))
def test_natural(owner):
    clients = max(int(owner.max()) + 1, 1)
    empty = set(range(clients)) - set(owner.tolist())
    if empty:
        with pytest.raises(UserError, match=f"client {min(empty)} would have no data"):
            natural(owner)
        return
    parts = natural(owner)
    _assert_valid(parts, owner, clients)
    assert all((owner[part] == client).all() for client, part in enumerate(parts))
    assert sum(len(part) for part in parts) == (owner >= 0).sum()


@pytest.mark.parametrize("name", ["iid", "shards", "lda", "lda-released", "lda-equal", "dirichlet"])
def test_only_the_seed_changes_the_partition(name):
    np.random.seed(0)  # noqa: NPY002 - the global state must not matter
    first = partition_rows(name, CIFAR10, 20, 1, 0.5, 2)
    np.random.seed(1)  # noqa: NPY002
    assert _equal(first, partition_rows(name, CIFAR10, 20, 1, 0.5, 2))
    assert not _equal(first, partition_rows(name, CIFAR10, 20, 2, 0.5, 2))


def test_lda_warns_once_if_it_tops_up_clients(monkeypatch, capsys):
    monkeypatch.setattr(lda_module, "_MAX_SHARES", 200_000)
    lda_module._warn_once.cache_clear()
    parts, again = (lda(CIFAR10, 100, 0.01, 0) for _ in range(2))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lda with alpha 0.01: none of 200 draws gave each of 100 clients 10 samples; moved ")
    _assert_valid(parts, CIFAR10, 100)
    assert min(len(part) for part in parts) == 10
    assert _equal(parts, again)


def test_only_rank_0_warns(monkeypatch, capsys):
    monkeypatch.setattr(lda_module, "_MAX_SHARES", 200_000)
    monkeypatch.setenv("RANK", "1")
    lda_module._warn_once.cache_clear()
    lda(CIFAR10, 100, 0.01, 0)
    lda_module._warn_once.cache_clear()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("labels", "clients", "draws"), [(CIFAR10, 100, 200), (CIFAR10[:1437], 143, 26)])
def test_lda_stops_early_only_if_many_samples_are_missing(monkeypatch, capsys, labels, clients, draws):
    """One sample in 20 can only be missing if clients have fewer than 200 samples on average."""
    monkeypatch.setattr(lda_module, "_MAX_SHARES", 200_000)
    monkeypatch.setattr(lda_module, "_SHARES_AT_ONCE", 20_000)
    lda_module._warn_once.cache_clear()
    lda(labels, clients, 0.01, 1)
    assert f"none of {draws} draws" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("alpha", "sizes", "classes"),
    [(0.1, (18, 431.5, 2670), 3.79), (0.3, (34, 503.5, 1317), 6.88), (0.5, (134, 506.5, 1004), 7.98)],
)
def test_the_splits_of_fedsols_code(alpha, sizes, classes):
    labels = np.repeat(np.arange(10), 5000)
    table = class_counts(labels, lda_released(labels, 100, alpha, 19940817), 10)
    size = table.sum(1)
    assert (size.min(), np.median(size), size.max()) == sizes
    assert (table > 0).sum(1).mean() == pytest.approx(classes)


def test_lda_as_released_fails_after_too_many_draws(monkeypatch):
    monkeypatch.setattr("fedflat.data.lda.RELEASED_ATTEMPTS", 3)
    with pytest.raises(UserError, match=r"alpha=0\.05: none of 3 draws of lda-released gave each of 100 clients 10"):
        lda_released(CIFAR10, 100, 0.05, 0)
    with pytest.raises(UserError, match="alpha=1e-06: none of 3 draws"):
        lda_released(CIFAR10, 100, 1e-6, 0)


def test_one_class_each_with_unequal_classes():
    """The digits: 20 clients, 10 classes of 142 to 147, so two clients for each class."""
    labels = np.repeat(np.arange(10), [142, 146, 142, 146, 145, 145, 145, 143, 139, 144])
    table = class_counts(labels, dirichlet(labels, 20, 0.0, 0), 10)
    assert ((table > 0).sum(1) == 1).all()
    assert ((table > 0).sum(0) == 2).all()
    assert table.sum(0).tolist() == np.bincount(labels).tolist()


def test_class_counts():
    assert class_counts(np.array([0, 2, 2, 1]), [np.array([1, 2]), np.array([0])], 3).tolist() == [[0, 0, 2], [1, 0, 0]]


@quick
@given(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), st.integers(1, 200), st.integers(0, 9))
def test_matching_test_rows(client_counts, size, seed):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(3), [20, 40, 60]))
    rows = matching_test_rows(labels, np.array(client_counts), seed, size)
    assert (np.diff(rows) > 0).all()
    wanted = [
        min(present, size * n // sum(client_counts)) for present, n in zip([20, 40, 60], client_counts, strict=True)
    ]
    assert np.bincount(labels[rows], minlength=3).tolist() == wanted
    assert np.array_equal(rows, matching_test_rows(labels, np.array(client_counts), seed, size))


DIGITS = np.arange(1437) % 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "lad"}, r'partition="lad": unknown \(did you mean lda\?\); known partitions: iid, shards'),
        ({"clients": 0}, "clients=0: must be 1 or more"),
        (
            {"clients": 2000},
            "clients=2000: client 1437 would have no data; "
            "at most 1437 clients are possible with 1437 training samples",
        ),
        ({"name": "lda", "clients": 144}, "at least 10 samples; at most 143 clients are possible with 1437"),
        ({"alpha": -1}, "alpha=-1: must be 0 or more"),
        ({"alpha": float("nan")}, "alpha=nan: must be 0 or more"),
        ({"alpha": float("inf")}, "alpha=inf: must be 0 or more, and finite"),
        ({"name": "lda", "alpha": 0}, "alpha=0: must be more than 0"),
        ({"name": "lda-equal", "alpha": 0}, "alpha=0: must be more than 0"),
        ({"name": "shards", "clients": 4}, "shards=2: 4 clients cannot cover 10 classes; use 3 or more"),
        (
            {"name": "shards", "clients": 1000},
            "clients=1000: with 2 shards per client, client [0-9]+ would have no data",
        ),
        ({"name": "natural"}, 'partition="natural": these data have no clients of their own'),
    ],
)
def test_errors(options, message):
    call = {"name": "dirichlet", "clients": 10, "alpha": 0.1, "shards": 2} | options
    with pytest.raises(UserError, match=message):
        partition_rows(labels=DIGITS, seed=0, **call)


def test_partition_rows_reaches_every_partition():
    for name in PARTITIONS:
        _assert_valid(partition_rows(name, DIGITS, 20, 0, 0.5, 2, DIGITS), DIGITS, 10 if name == "natural" else 20)


def test_the_example_of_the_two_conventions(capsys):
    page = (Path(__file__).parents[2] / "docs" / "data-partitions.md").read_text(encoding="utf-8")
    ((block, printed),) = re.findall(r"-->\n```python\n(.*?)```\n\n```text\n(.*?)```", page, re.S)
    exec(compile(block, "data-partitions.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_first_table_of_the_page(capsys, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "data-partitions.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(re.findall(r"^fedflat (.*)$", page, re.M)[0].split()) == 0
    out = capsys.readouterr().out
    assert all(row in out for row in re.findall(r"^│ \d.*│$", page, re.M))
    assert Path("partition.png").exists()
