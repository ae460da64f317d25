"""The user's own data: folder:PATH, npz:PATH and parquet:PATH."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedflat import progress
from fedflat.data.load import list_datasets, load_dataset
from fedflat.data.prepare import prepare_dataset
from fedflat.errors import UserError

RNG = np.random.default_rng(1)


def write_folder(root, mode="RGB"):
    """Write two classes with two training images and one test image each; return the images by name."""
    shape = (6, 5) if mode == "L" else (6, 5, 3)
    images = {}
    for name in (
        "train/cat/1.png",
        "train/cat/2.png",
        "train/dog/1.bmp",
        "train/dog/3.png",
        "test/cat/9.png",
        "test/dog/9.png",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        images[name] = RNG.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(images[name]).save(root / name)
    return images


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_folder(tmp_path, mode):
    images = write_folder(tmp_path / "own", mode)
    data = load_dataset(f"folder:{tmp_path / 'own'}", tmp_path)
    train = np.stack([image for name, image in images.items() if name.startswith("train")])
    pixels = train[:, None] if mode == "L" else train.transpose(0, 3, 1, 2)
    assert np.array_equal(data.x.numpy(), pixels)
    assert (data.y.tolist(), data.y_test.tolist(), data.classes) == ([0, 0, 1, 1], [0, 1], 2)
    assert np.allclose(data.mean, (pixels / 255).mean((0, 2, 3)))
    assert np.allclose(data.std, (pixels / 255).std((0, 2, 3)))
    assert data.owner is None
    assert data.augment == type(data.augment)()


def test_a_folder_is_decoded_once_and_again_when_it_changes(tmp_path):
    images = write_folder(tmp_path / "own")
    name = f"folder:{tmp_path / 'own'}"
    load_dataset(name, tmp_path)
    (prepared,) = tmp_path.glob("folder-*.safetensors")
    before = prepared.stat().st_mtime_ns
    load_dataset(name, tmp_path)
    assert prepared.stat().st_mtime_ns == before
    changed = tmp_path / "own" / "train" / "cat" / "1.png"
    Image.fromarray(255 - images["train/cat/1.png"]).save(changed)
    os.utime(changed, ns=(before + 10**9, before + 10**9))
    assert np.array_equal(load_dataset(name, tmp_path).x[0].numpy(), 255 - images["train/cat/1.png"].transpose(2, 0, 1))
    assert len(list(tmp_path.glob("folder-*.safetensors"))) == 1
    assert [row.name for row in list_datasets(tmp_path)][-1] == name


def move_images(root):
    (root / "train" / "cat" / "2.png").rename(root / "train" / "dog" / "2.png")


def swap_clients(root):
    path = root / "clients.json"
    before = path.stat()
    path.write_text(path.read_text().replace("zoe", "ada"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "y", "owner"), [(move_images, [0, 1, 1, 1], None), (swap_clients, None, [0, 0, 0, 1])]
)
def test_a_folder_is_decoded_again_when_labels_or_clients_change(tmp_path, change, y, owner):
    write_folder(tmp_path / "own")
    name = f"folder:{tmp_path / 'own'}"
    if owner:
        clients = {"cat/1.png": "zoe", "cat/2.png": "zoe", "dog/1.bmp": "zoe", "dog/3.png": "mia"}
        (tmp_path / "own" / "clients.json").write_text(json.dumps(clients))
    before = load_dataset(name, tmp_path)
    change(tmp_path / "own")
    after = load_dataset(name, tmp_path)
    if y:
        assert (before.y.tolist(), after.y.tolist()) == ([0, 0, 1, 1], y)
    else:
        assert (before.owner.tolist(), after.owner.tolist()) == ([1, 1, 1, 0], owner)


def test_changes_behind_a_link_are_noticed(tmp_path):
    write_folder(tmp_path / "own")
    (tmp_path / "own" / "train" / "cat").rename(tmp_path / "cats")
    (tmp_path / "own" / "train" / "cat").symlink_to(tmp_path / "cats")
    load_dataset(f"folder:{tmp_path / 'own'}", tmp_path)
    (tmp_path / "cats" / "1.png").unlink()
    assert len(load_dataset(f"folder:{tmp_path / 'own'}", tmp_path).y) == 3


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_the_error_for_a_broken_link_names_it(tmp_path, kind):
    (tmp_path / "train").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=rf'dataset="{kind}:.*": .*train cannot be read \(No such file'):
        load_dataset(f"{kind}:{tmp_path}", tmp_path / "cache")


def test_progress_without_a_terminal_is_lines(tmp_path, capsys, monkeypatch):
    write_folder(tmp_path / "own")
    load_dataset(f"folder:{tmp_path / 'own'}", tmp_path / "one")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    load_dataset(f"folder:{tmp_path / 'own'}", tmp_path / "two")
    assert capsys.readouterr().err.splitlines() == [
        f"preparing folder:{tmp_path / 'own'}: {percent} done" for percent in ("67%", "100%")
    ]


def test_a_folder_with_clients(tmp_path):
    write_folder(tmp_path)
    clients = {"cat/1.png": "zoe", "cat/2.png": "adam", "dog/1.bmp": "zoe", "dog/3.png": "mia"}
    (tmp_path / "clients.json").write_text(json.dumps(clients))
    assert load_dataset(f"folder:{tmp_path}", tmp_path).owner.tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cat/2.png": None}, r"clients.json: names no client for cat/2.png"),
        ({"cat/7.png": "mia"}, r"clients.json: has no file cat/7.png"),
    ],
)
def test_clients_json_must_name_exactly_the_training_files(tmp_path, change, message):
    write_folder(tmp_path)
    clients = {"cat/1.png": "zoe", "cat/2.png": "adam", "dog/1.bmp": "zoe", "dog/3.png": "mia"} | change
    (tmp_path / "clients.json").write_text(json.dumps({key: value for key, value in clients.items() if value}))
    with pytest.raises(UserError, match=message):
        load_dataset(f"folder:{tmp_path}", tmp_path)


def write_image(path, mode, size=(5, 6)):
    Image.new(mode, size).save(path)


def empty_splits(root):
    for split in ("train", "test"):
        shutil.rmtree(root / split)
        (root / split).mkdir()


@pytest.mark.parametrize(
    ("mode", "damage", "message"),
    [
        (
            "RGB",
            lambda root: write_image(root / "test/dog/9.png", "RGB", (5, 7)),
            r"dog/9.png: image is 5x7 pixels, but .* is 5x6",
        ),
        (
            "L",
            lambda root: write_image(root / "train/dog/3.png", "RGB"),
            r"dog/3.png: image is in colour, but .*cat/1.png is grey",
        ),
        (
            "L",
            lambda root: write_image(root / "train/dog/3.png", "I;16"),
            r"dog/3.png: image has more than 8 bits per channel",
        ),
        ("L", lambda root: (root / "test/dog/9.png").unlink(), r"test/dog: no images"),
        ("L", lambda root: (root / "test/dog").rename(root / "x"), r"test: no folder for class dog"),
        ("L", empty_splits, r"train: empty; it must hold one folder of images per class"),
        ("L", lambda root: (root / "test").rename(root / "x"), r"test: cannot be read as a folder"),
        ("L", lambda root: (root / "clients.json").write_text("[1"), r"clients.json: cannot be read as a JSON object"),
    ],
)
def test_errors_in_a_folder(tmp_path, mode, damage, message):
    write_folder(tmp_path, mode)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        load_dataset(f"folder:{tmp_path}", tmp_path / "cache")


def random_arrays(shape, dtype=np.uint8):
    x = RNG.integers(0, 256, (7, *shape)).astype(dtype)
    return {"x": x[:4], "y": np.array([0, 1, 2, 1]), "x_test": x[4:], "y_test": np.array([0, 3, 1])}


@pytest.mark.parametrize("shape", [(3, 6, 5), (6, 5, 3), (6, 5)])
def test_npz_images(tmp_path, shape):
    contents = random_arrays(shape)
    np.savez(tmp_path / "a.npz", **contents)
    data = load_dataset(f"npz:{tmp_path / 'a.npz'}")
    x = contents["x"]
    expected = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) if shape[-1] == 3 else x
    assert np.array_equal(data.x.numpy(), expected)
    assert (data.y.tolist(), data.y_test.tolist(), data.classes) == ([0, 1, 2, 1], [0, 3, 1], 4)
    assert np.allclose(data.mean, (expected / 255).mean((0, 2, 3)))


def test_npz_floats_are_used_as_they_are(tmp_path):
    np.savez(tmp_path / "a.npz", **random_arrays((9,), np.float64), client=np.array(["b", "a", "b", "c"]))
    data = load_dataset(f"npz:{tmp_path / 'a.npz'}")
    assert data.x.dtype == torch.float32
    assert (data.mean, data.std) == ((0.0,), (1.0,))
    assert data.owner.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, r"a.npz: no array y; needed are"),
        ({"y": np.array([0, 1, 2])}, "a.npz: 4 training samples with 3 labels"),
        ({"client": np.array([0, 1])}, "a.npz: client has 2 entries for 4 training samples"),
        ({"x_test": np.zeros((3, 3, 9, 9), np.uint8)}, r"uint8 \[3, 6, 5\] and test samples uint8 \[3, 9, 9\]"),
        ({"y": np.array([0, 1, 2, -1])}, "a.npz: training labels must be a list of whole numbers from 0"),
        ({"y_test": np.array([0, 1, 0.5])}, "a.npz: training labels are int64 .* and test labels float32"),
        (
            {"y": np.array([0, 1, 2, 2_000_000_000])},
            "a.npz: training labels: the largest is 2000000000; number the classes",
        ),
        (
            {"y": np.array([0, 1, 2, 2**64 - 1], np.uint64)},
            "a.npz: training labels: the largest is 18446744073709551615",
        ),
        ({"x": np.array(["a"] * 4)}, "samples are <U1; allowed are"),
        (
            {"x": np.zeros((4, 3, 6, 5), np.int32)},
            "training samples are int64 .* and test samples uint8",
        ),
        ({"x_test": np.full((3, 3, 6, 5), np.inf)}, "test samples hold 270 of 270 numbers that are not finite"),
        ({"x": np.zeros((4, 2), np.uint8)}, r"uint8 images .*shape \(4, 2\)"),
        ({"x": np.array([{}] * 4, object)}, r"a.npz: cannot be read as an npz file"),
    ],
)
def test_errors_in_npz(tmp_path, change, message):
    contents = {key: value for key, value in (random_arrays((3, 6, 5)) | change).items() if value is not None}
    np.savez(tmp_path / "a.npz", **contents)
    with pytest.raises(UserError, match=message):
        load_dataset(f"npz:{tmp_path / 'a.npz'}")


def write_parquet(root, **train):
    Image.new("RGB", (4, 4), (9, 0, 0)).save(root / "a.png")
    columns = {"image": [(root / "a.png").read_bytes()] * 3, "label": [0, 1, 1]}
    pq.write_table(pa.table(columns), root / "test.parquet")
    pq.write_table(pa.table({k: v for k, v in (columns | train).items() if v is not None}), root / "train.parquet")
    return f"parquet:{root}"


def test_parquet_with_clients(tmp_path):
    data = load_dataset(write_parquet(tmp_path, client=["x", "y", "x"]), tmp_path)
    assert data.owner.tolist() == [0, 1, 0]
    assert data.x[0, :, 0, 0].tolist() == [9, 0, 0]
    assert data.std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": pa.array([], pa.int64()), "image": pa.array([], pa.binary())},
            r"train.parquet: the file has no rows",
        ),
        ({"label": None}, "train.parquet: no column label or fine_label"),
        ({"image": None}, "train.parquet: no column image or img"),
        ({"label": [0, None, 1]}, "column label must be a list of whole numbers from 0"),
        ({"label": ["a", "b", "c"]}, "column label must be a list of whole numbers from 0"),
        ({"label": [0, -1, 1]}, "column label must be a list of whole numbers from 0"),
        ({"label": [0, 2**40, 1]}, "column label: the largest is 1099511627776"),
        ({"image": [1, 2, 3]}, "train.parquet row 0: an image must be bytes"),
    ],
)
def test_errors_in_parquet(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        load_dataset(write_parquet(tmp_path, **change), tmp_path)


@pytest.mark.parametrize("name", ["folder:", "folder:/no/such", "npz:/no/such.npz", "parquet:/no/such"])
def test_the_error_for_a_missing_path_names_it(name, tmp_path):
    with pytest.raises(UserError, match=rf'dataset="{name}": there is no (file|folder) \S+$'):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("name", ["folder:some/images", "npz:a.npz"])
def test_the_error_for_a_missing_relative_path_names_the_current_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"there is no \w+ \S+ in {tmp_path}; a relative path is meant from where"):
        load_dataset(name, tmp_path)


def test_npz_needs_no_preparation(tmp_path):
    np.savez(tmp_path / "a.npz", **random_arrays((3, 6, 5)))
    with pytest.raises(UserError, match="an npz file needs no preparation"):
        prepare_dataset(f"npz:{tmp_path / 'a.npz'}", None, tmp_path)
