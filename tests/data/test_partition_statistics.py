"""Partitions of CIFAR-10's labels over 100 clients have the published statistics."""

from math import comb

import numpy as np
import pytest

from fedflat.data.dirichlet import dirichlet
from fedflat.data.lda import lda
from fedflat.data.partition import class_counts, partition_rows, shards

CIFAR10 = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))


def _statistics(parts):
    """Return the mean number of classes per client, the mean share of a client's largest class, and the sizes."""
    table = class_counts(CIFAR10, parts, 10)
    return (table > 0).sum(1).mean(), (table.max(1) / table.sum(1)).mean(), table.sum(1)


@pytest.mark.parametrize(("number", "published"), [(2, 1.90), (3, 2.84), (5, 4.06), (10, 6.41)])
def test_shards_have_the_published_statistics(number, published):
    """The expectation is 10 (1 - C(s N - s N / 10, s) / C(s N, s)).

    The mean over 20 seeds is within 0.06 of it, and within 0.2 of the published values, which are one seed.
    """
    statistics = [_statistics(shards(CIFAR10, 100, number, seed)) for seed in range(20)]
    expected = 10 * (1 - comb(90 * number, number) / comb(100 * number, number))
    assert np.mean([s[0] for s in statistics]) == pytest.approx(expected, abs=0.06)
    assert np.mean([s[0] for s in statistics]) == pytest.approx(published, abs=0.2)
    assert all(s[2].min() >= 498 and s[2].max() <= 501 for s in statistics)


def _naive_lda(clients, alpha, rng):
    """Draw a table [clients, classes] class by class, one attempt after another, as FedSOL describes it."""
    held = np.zeros((10, clients))
    while held.sum(0).min() < 10:
        held[:] = 0
        for label in range(10):
            p = rng.dirichlet([alpha] * clients) * (held.sum(0) < 50_000 / clients)
            cuts = (np.cumsum(p / p.sum()) * 5000).astype(int)[:-1]
            held[label] = np.diff([0, *cuts, 5000])
    return held.T


@pytest.mark.parametrize(("alpha", "classes", "median"), [(0.1, 3.79, 431), (0.3, 6.88, 503), (0.5, 7.98, 506)])
def test_lda_has_the_published_statistics(alpha, classes, median):
    """Published values, which are one seed, are within 3.5 standard deviations; our means agree with naive draws."""
    ours = [_statistics(lda(CIFAR10, 100, alpha, seed)) for seed in range(20)]
    classes_found, medians = np.array([o[0] for o in ours]), np.array([np.median(o[2]) for o in ours])
    naive = [(_naive_lda(100, alpha, np.random.default_rng(seed)) > 0).sum(1).mean() for seed in range(20)]
    assert classes_found.mean() == pytest.approx(np.mean(naive), abs=4 * classes_found.std() * (2 / 20) ** 0.5)
    assert abs(classes - classes_found.mean()) < 3.5 * classes_found.std()
    assert abs(median - medians.mean()) < 3.5 * medians.std()
    assert min(o[2].min() for o in ours) >= 10


def test_lda_redraws_until_the_minimum_holds_at_strong_skew(capsys):
    """For α = 0.05, 2.93 classes per client are published (one seed); ours vary by about 0.15 between seeds."""
    classes, _, sizes = _statistics(lda(CIFAR10, 100, 0.05, 0))
    assert capsys.readouterr().err == ""  # nothing was topped up
    assert sizes.min() >= 10
    assert classes == pytest.approx(2.93, abs=0.5)


DIRICHLET = [
    (0.05, 1.35, 0.956),
    (0.1, 1.57, 0.932),
    (0.2, 2.04, 0.890),
    (0.5, 3.22, 0.789),
    (1, 4.58, 0.682),
    (10, 9.37, 0.312),
    (100, 9.87, 0.163),
]


@pytest.mark.parametrize(("alpha", "classes", "top"), DIRICHLET)
def test_dirichlet_has_the_statistics_of_a_draw_by_draw_simulation(alpha, classes, top):
    """Means over 20 seeds are within 0.12 classes and 0.015 of the top share of a draw-by-draw simulation."""
    statistics = [_statistics(dirichlet(CIFAR10, 100, alpha, seed)) for seed in range(20)]
    assert np.mean([s[0] for s in statistics]) == pytest.approx(classes, abs=0.12)
    assert np.mean([s[1] for s in statistics]) == pytest.approx(top, abs=0.015)


def test_dirichlet_keeps_every_sample_of_many_small_clients_distinct():
    parts = dirichlet(CIFAR10, 5000, 0.1, 0)
    assert [len(part) for part in parts] == [10] * 5000
    assert len(np.unique(np.concatenate(parts))) == len(CIFAR10)


@pytest.mark.parametrize(("name", "alpha", "classes"), [("dirichlet", 0.0, 10), ("lda", 1e6, 1)])
def test_seeds_change_the_rows_even_if_the_counts_are_equal(name, alpha, classes):
    """Each class has two clients, which get about half of it each; the seed decides which half."""
    labels, clients = np.repeat(np.arange(classes), 40), 2 * classes
    one, other = (partition_rows(name, labels, clients, seed, alpha, 2) for seed in (0, 1))
    assert np.array_equal(*(np.unique(class_counts(labels, parts, classes), axis=0) for parts in (one, other)))
    assert not {tuple(part) for part in one} & {tuple(part) for part in other}
