"""Loading data sets by name, the list of data sets, memory use, and the real CIFAR-10 if its files are there."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedflat.data.digits import DIGITS_MEAN, DIGITS_STD
from fedflat.data.load import list_datasets, load_dataset
from fedflat.data.prepare import prepare_dataset
from fedflat.errors import UserError

CIFAR = Path(__file__).parents[2].parent / "shared" / "data" / "cifar10"
linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")


def prepare_small(root):
    """Prepare a pathmnist of six images in the cache folder `root`; return the prepared file."""
    x = np.arange(2 * 28 * 28 * 3, dtype=np.uint8).reshape(2, 28, 28, 3)
    arrays = {f"{split}_images": x for split in ("train", "val", "test")}
    labels = {f"{split}_labels": np.array([[3], [8]]) for split in ("train", "val", "test")}
    np.savez(root / "pathmnist.npz", **arrays, **labels)
    return prepare_dataset("pathmnist", root, root, progress=False)


def test_digits_are_split_four_to_one_in_every_class():
    data = load_dataset("digits")
    assert data.x.shape == (1437, 1, 8, 8)
    assert data.x_test.shape == (360, 1, 8, 8)
    share = data.y_test.bincount() / (data.y.bincount() + data.y_test.bincount())
    assert (share - 0.2).abs().max() < 0.005
    assert set(data.x.unique().tolist()) == {round(v * 255 / 16) for v in range(17)}


def test_digits_mean_and_std_are_those_of_the_training_pixels():
    pixels = load_dataset("digits").x.double() / 255
    assert abs(pixels.mean() - DIGITS_MEAN) < 1e-5
    assert abs(pixels.std() - DIGITS_STD) < 1e-5


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    parts = train_test_split(pixels, labels, test_size=0.2, random_state=0, stratify=labels)
    digits = load_dataset("digits")
    for ours, theirs in zip((digits.x, digits.x_test, digits.y, digits.y_test), parts, strict=True):
        assert np.array_equal(ours.numpy(), theirs)


def test_digits_are_the_same_every_time():
    assert torch.equal(load_dataset("digits").x, load_dataset("digits").x)


def test_the_error_for_an_unprepared_set_names_the_command(tmp_path):
    with pytest.raises(UserError, match=r'dataset="svhn": not prepared in .*; run: fedflat data prepare svhn$'):
        load_dataset("svhn", tmp_path)


def test_the_error_for_an_unknown_set_names_the_nearest(tmp_path):
    with pytest.raises(
        UserError,
        match=r'dataset="cifar-10": unknown data set \(did you mean cifar10\?\); allowed: digits, sklearn-text, mnist',
    ):
        load_dataset("cifar-10", tmp_path)


def test_the_cache_may_come_from_the_environment(tmp_path, monkeypatch):
    prepare_small(tmp_path)
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path))
    assert load_dataset("pathmnist").y.tolist() == [3, 8, 3, 8]


def test_the_error_for_a_damaged_prepared_file_names_it(tmp_path):
    path = prepare_small(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"pathmnist.safetensors: not a prepared data set .*delete it and prepare"):
        load_dataset("pathmnist", tmp_path)


@linux
def test_images_stay_on_disk_until_used(tmp_path):
    path = prepare_small(tmp_path)
    data = load_dataset("pathmnist", tmp_path)
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(path.name)]
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    assert any(low <= data.x.data_ptr() < high for low, high in spans)


def test_writing_to_a_loaded_set_leaves_the_file_alone(tmp_path):
    prepare_small(tmp_path)
    load_dataset("pathmnist", tmp_path).x.zero_()
    assert load_dataset("pathmnist", tmp_path).x.any()


def test_list_datasets(tmp_path):
    path = prepare_small(tmp_path)
    rows = {row.name: row for row in list_datasets(tmp_path)}
    assert rows["pathmnist"][1:6] == (True, 4, 2, (3, 28, 28), 9)
    assert rows["pathmnist"].bytes == path.stat().st_size
    assert rows["pathmnist"].path == path
    assert rows["pathmnist"].source == "npz"
    assert rows["digits"].train == len(load_dataset("digits").y)
    assert not rows["cifar10"].prepared
    assert rows["sklearn-text"].train == len(load_dataset("sklearn-text").y)
    assert len(rows) == 11


PREPARE_AND_PRINT_PEAK = """
import sys
from pathlib import Path
from fedflat.data.prepare import prepare_dataset
prepare_dataset("landmarks-user-160k", Path(sys.argv[1]), Path(sys.argv[1]), progress=False)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_memory(root, images):
    """Return the peak resident bytes of a process that prepares `images` photographs.

    getrusage would include the memory of the parent process.
    """
    (root / "images").mkdir(parents=True)
    Image.effect_noise((96, 64), 50).save(root / "photo.jpg")
    names = [f"{i:016x}" for i in range(images)]
    for name in names:
        (root / "images" / f"{name}.jpg").hardlink_to(root / "photo.jpg")
    rows = "".join(f"{i % 100},{name},{i % 2028}\n" for i, name in enumerate(names))
    (root / "federated_train.csv").write_text("user_id,image_id,class\n" + rows)
    (root / "test.csv").write_text(f"image_id,class\n{names[0]},0\n")
    run = subprocess.run(
        [sys.executable, "-c", PREPARE_AND_PRINT_PEAK, root], capture_output=True, text=True, check=True
    )
    return 1024 * int(run.stdout)


@linux
def test_memory_for_200_000_images_stays_under_2_gb(tmp_path):
    few, many = 1000, 9000
    base, grown = peak_memory(tmp_path / "few", few), peak_memory(tmp_path / "many", many)
    per_image = (grown - base) / (many - few)  # the pixels alone are 12,288 bytes
    assert base + 200_000 * per_image < 2e9


@pytest.mark.skipif(not CIFAR.exists(), reason=f"no CIFAR-10 parquet files in ../shared/data/cifar10 ({CIFAR})")
def test_the_real_cifar10(tmp_path):
    prepare_dataset("cifar10", CIFAR, tmp_path, progress=False)
    data = load_dataset("cifar10", tmp_path)
    assert data.x.shape == (50_000, 3, 32, 32)
    assert data.y.bincount().tolist() == [5000] * 10
    assert data.y_test.bincount().tolist() == [1000] * 10
    means = [data.x[:, c].float().mean() / 255 for c in range(3)]
    assert torch.stack(means).sub(torch.tensor(data.mean)).abs().max() < 0.002
    assert next(row.source for row in list_datasets(tmp_path) if row.name == "cifar10") == "parquet, jpeg"
