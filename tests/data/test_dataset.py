"""Data sets from arrays: what is accepted and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedflat import Dataset, Experiment, UserError, run
from fedflat.data.dataset import Augment

X, Y = np.zeros((6, 3)), np.array([0, 1, 2, 0, 1, 2])


def build(x=X, y=Y, clients=None):
    return Dataset.from_arrays(x, y, X[:2], Y[:2], clients)


def test_arrays_with_clients():
    data = build(clients=[[0, 1], np.array([2, 3, 4])])
    assert data.owner is not None
    assert data.owner.tolist() == [0, 0, 1, 1, 1, -1]
    assert data.classes == 3
    assert data.shape == (3, 1, 1)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([[0, 1], []], "client 1 has no data"),
        ([[0, 1], [1, 2]], "row of client 1 is given twice"),
        ([[0, 0], [1]], "row of client 0 is given twice"),
        ([[0], [6]], "client 1 has row 6; rows are 0 to 5"),
        ([[0], [-1]], "client 1 has row -1"),
        ([[0], [-1, 2]], "client 1 has row -1"),
        ([[0.0], [1]], "client 0 is float64 .* a list of row numbers"),
        ([[0], Y == 1], "client 1 is bool .*np.flatnonzero makes one of a mask"),
        ([0, 1], r"client 0 is int64 \[\]; give each client a list"),
        ([[[0, 1], [2]]], "client 0 cannot be read as an array"),
        ([["0"]], "client 0 is <U1"),
        ([], "clients: give a list that has, for each client"),
        ({"a": [0], "b": [1]}, "clients: give a list that has, for each client"),
        (3, "clients: give a list that has, for each client"),
    ],
)
def test_invalid_clients(clients, message):
    with pytest.raises(UserError, match=message):
        build(clients=clients)


@pytest.mark.parametrize("y", [Y - 1, Y > 0, ["a", "b", "c"] * 2, np.array([0, None] * 3), []])
def test_invalid_labels(y):
    with pytest.raises(UserError, match="whole numbers from 0"):
        build(y=y)


@pytest.mark.parametrize("y", [Y + 0.5, Y[:, None]])
def test_labels_of_two_kinds(y):
    with pytest.raises(UserError, match=r"training labels are .* and test labels int64 .*; all must be of one kind"):
        build(y=y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y + 1, "labels are 1 to 3; number the classes from 0"),
        (
            2 * Y,
            "labels go up to 4, but 1, 3 never occur; give classes=5 if they are meant, or number the classes 0 to 2",
        ),
    ],
)
def test_labels_that_do_not_count_from_0_without_gaps(y, message):
    with pytest.raises(UserError, match=message):
        Dataset.from_arrays(X, y, X, y)
    if y[0] == 0:
        assert Dataset.from_arrays(X, y, X, y, classes=9).classes == 9


def test_a_class_of_the_test_set_alone_counts():
    data = Dataset.from_arrays(X, [0, 1, 0, 1, 0, 1], X, Y)
    assert data.classes == 3


def test_tokens_are_whole_numbers_from_0_or_do_not_count():
    x = np.arange(12).reshape(4, 3)
    y = x.copy()
    y[0, 1:] = -100
    assert Dataset.from_arrays(x, y, x, y).classes == 12
    y[0, 0] = -1
    with pytest.raises(UserError, match="must be whole numbers from 0, or -100 where they do not count"):
        Dataset.from_arrays(x, y, x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_channels_last_images_are_refused_with_the_remedy(dtype):
    images = np.zeros((2, 8, 8, 3), dtype)
    with pytest.raises(UserError, match=r"channels last; give x.transpose\(0, 3, 1, 2\)"):
        Dataset.from_arrays(images, [0, 1], images, [0, 1])
    channels_first = images.transpose(0, 3, 1, 2)
    assert Dataset.from_arrays(channels_first, [0, 1], channels_first, [0, 1]).shape == (3, 8, 8)


def test_normalisation_and_augmentation_of_own_images():
    images = np.zeros((2, 3, 8, 8), np.uint8)
    arrays = (images, [0, 1], images, [0, 1])
    data = Dataset.from_arrays(*arrays, mean=(0.1, 0.2, 0.3), std=(1, 2, 3), augment=Augment(crop=2, flip=True))
    assert (data.mean, data.std, data.augment.crop) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), 2)
    for wrong in ({"mean": (0.1, 0.2)}, {"std": 0.0}, {"mean": float("nan")}):
        with pytest.raises(UserError, match=r"mean|std"):
            Dataset.from_arrays(*arrays, **wrong)
    with pytest.raises(UserError, match=r"only images .* can be augmented"):
        Dataset.from_arrays(X, Y, X, Y, augment=Augment(flip=True))


def test_a_label_that_is_too_large():
    with pytest.raises(UserError, match="training labels: the largest is 2000000000; number the classes from 0"):
        build(y=[0, 1, 2, 0, 1, 2_000_000_000])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X.astype(np.int32), "training samples are int64 .* and test samples float32 .*; all must be of one kind"),
        (X.astype(np.int32) - 1, "training samples hold -1; tokens are whole numbers from 0"),
        (
            X.astype(complex),
            "training samples are complex128; allowed are uint8 for images, floating-point",
        ),
        (X.astype(object), "training samples are object; allowed"),
        (X.astype(str), "training samples are <U32; allowed"),
        (X + np.nan, "training samples hold 18 of 18 numbers that are not finite"),
        (X - np.inf, "numbers that are not finite"),
        (X + 1e300, "training samples hold 18 of 18 numbers that are not finite in 32 bits"),
        (X[:0], r"training samples have shape \[0, 3\]; give at least one"),
        (5.0, r"training samples have shape \[\]; give at least one"),
        ([[1.0], [1.0, 2.0]], "training samples have different lengths; fill them up to one, and give a mask"),
        (np.zeros((6, 4)), r"training samples are float32 \[4\] and test samples float32 \[3\]; all must be"),
        (X.astype(np.uint8), r"training samples are uint8 \[3\] and test samples float32 \[3\]"),
    ],
)
def test_invalid_samples(x, message):
    with pytest.raises(UserError, match=f"data: .*{message}"):
        build(x=x)


@pytest.mark.parametrize(("shape", "as_image"), [((), (1, 1, 1)), ((4,), (4, 1, 1)), ((1, 2, 3, 4), (24, 1, 1))])
def test_samples_of_any_shape_can_be_learned(shape, as_image):
    x = np.random.default_rng(0).normal(size=(8, *shape))
    data = Dataset.from_arrays(x, np.arange(8) % 2, x, np.arange(8) % 2)
    assert data.shape == as_image
    assert run(Experiment(dataset=data, clients=2, cohort=2, rounds=1)).rounds == 1


def test_only_images_are_augmented():
    experiment = Experiment(dataset=build(), clients=2, cohort=2, rounds=1, augment="crop-flip")
    with pytest.raises(UserError, match='augment="crop-flip": samples of shape 3 are not images; use augment="none"'):
        run(experiment)


def test_samples_without_labels():
    with pytest.raises(UserError, match="6 training samples with 5 labels"):
        build(y=Y[:5])


def test_classes_in_one_column_are_refused_with_the_remedy():
    with pytest.raises(UserError, match=r"must be 0 or 1 for each label; classes are \[n\], y\[:, 0\]"):
        Dataset.from_arrays(X, Y[:, None], X, Y[:, None])


def test_a_mask_of_bytes_is_not_taken_for_an_image():
    ids, mask = np.full((6, 4), 300), np.ones((6, 4), np.uint8)
    with pytest.raises(UserError, match=r"training samples 1 are uint8 \[n, 4\], which is for images .*masks as int64"):
        Dataset.from_arrays((ids, mask), Y, (ids, mask), Y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": 127.5, "std": 60.0}, "must be between 0 and 1: images are divided by 255 before"),
        ({"augment": "crop-flip"}, r"must be a fedflat.Augment, such as Augment\(crop=4"),
    ],
)
def test_how_images_are_changed_is_checked(options: dict, message: str):
    images = np.zeros((6, 1, 4, 4), np.uint8)
    with pytest.raises(UserError, match=message):
        Dataset.from_arrays(images, Y, images, Y, **options)


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (np.linspace(0, 1, 6), {"partition": "lda"}, 'partition="lda": goes by classes, which these data do not have'),
        (np.eye(6, 2, dtype=int), {"partition": "dirichlet"}, "goes by classes"),
        (np.linspace(0, 1, 6), {"long_tail": 0.5}, "long_tail=0.5: goes by classes"),
    ],
)
def test_partitions_by_classes_need_classes(targets: np.ndarray, options: dict, message: str):
    data = Dataset.from_arrays(X, targets, X, targets)
    with pytest.raises(UserError, match=message):
        run(Experiment(dataset=data, clients=2, cohort=2, rounds=1, **options))
