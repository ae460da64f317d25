"""Preparing every published file format, on small files of the true format that the tests write."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedflat.data.catalogue import IMAGENET100_CLASSES
from fedflat.data.dataset import Augment
from fedflat.data.load import load_dataset
from fedflat.data.prepare import prepare_dataset
from fedflat.errors import UserError

RNG = np.random.default_rng(0)


def random_images(n, side=32, channels=3):
    return RNG.integers(0, 256, (n, side, side, channels), dtype=np.uint8)


def channels_first(x):
    """Return images [n, h, w, c] as [n, c, h, w]."""
    return x.transpose(0, 3, 1, 2)


def encoded(image, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(image.squeeze()).save(file, form)
    return file.getvalue()


def pack(folder, archive):
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


def write_mnist(root, compress):
    x, y = random_images(9, 28, 1), np.arange(9) % 10
    for split, rows in (("train", slice(6)), ("t10k", slice(6, 9))):
        for kind, array in (("images-idx3", x[rows, ..., 0]), ("labels-idx1", y[rows].astype(np.uint8))):
            data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()
            name = root / f"{split}-{kind}-ubyte"
            Path(f"{name}.gz").write_bytes(gzip.compress(data)) if compress else name.write_bytes(data)
    return x[:6], y[:6], x[6:], y[6:]


class Python2Pickler(pickle._Pickler):
    """Writes str and bytes as Python 2 wrote its str; the published CIFAR batches are such pickles."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, text):
        data = text.encode("latin-1") if isinstance(text, str) else text
        self.write(b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<i", len(data)) + data)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_string


def write_batch(path, x, labels, key):
    file = io.BytesIO()
    rows = np.ascontiguousarray(channels_first(x)).reshape(len(x), -1)
    Python2Pickler(file, 2).dump({"data": rows, key: [int(y) for y in labels], "batch_label": "a batch"})
    path.write_bytes(file.getvalue().replace(b"numpy._core", b"numpy.core"))


def write_cifar10(root):
    x, y = random_images(14), np.arange(14) % 10
    for i in range(5):
        write_batch(root / f"data_batch_{i + 1}", x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2], "labels")
    write_batch(root / "test_batch", x[10:], y[10:], "labels")
    return x[:10], y[:10], x[10:], y[10:]


def write_cifar100(root):
    x, y = random_images(8), np.arange(8) + 92
    write_batch(root / "train", x[:5], y[:5], "fine_labels")
    write_batch(root / "test", x[5:], y[5:], "fine_labels")
    return x[:5], y[:5], x[5:], y[5:]


def write_svhn(root):
    from scipy.io import savemat

    x, y = random_images(9), np.array([1, 2, 10, 9, 10, 3, 4, 10, 5], np.uint8)
    for split, rows in (("train", slice(5)), ("test", slice(5, 9))):
        savemat(
            root / f"{split}_32x32.mat", {"X": x[rows].transpose(1, 2, 3, 0), "y": y[rows, None]}, do_compression=True
        )
    return x[:5], y[:5] % 10, x[5:], y[5:] % 10


def write_folder(root, splits, classes, side=32, suffix=".png"):
    """Write two images per class in each split; return images and labels of each, in the order of the sorted names."""
    written = []
    for split in splits:
        x, y = random_images(2 * len(classes), side), np.repeat(np.arange(len(classes)), 2)
        for i, image in enumerate(x):
            path = root / split / sorted(classes)[y[i]] / f"{i % 2}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(image, "JPEG" if suffix == ".jpg" else "PNG"))
        written.append((x, y))
    return written


def write_cinic10(root):
    names = ["truck", "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship"]
    train, _, test = write_folder(root, ("train", "valid", "test"), names)
    return *train, *test


def write_medmnist(root, name, channels):
    x = {split: random_images(n, 28, channels) for split, n in (("train", 4), ("val", 3), ("test", 2))}
    y = {split: np.arange(len(images))[:, None] for split, images in x.items()}
    arrays = {f"{h}_images": x[h][..., 0] if channels == 1 else x[h] for h in x} | {f"{h}_labels": y[h] for h in y}
    np.savez_compressed(root / f"{name}.npz", **arrays)
    train = np.concatenate([x["train"], x["val"]]), np.array([0, 1, 2, 3, 0, 1, 2])
    return *train, x["test"], y["test"][:, 0]


def write_parquet(root, column="img", label="label", form="PNG", wrap=True):
    written = []
    for split, n in (("train", 7), ("test", 4)):
        x, y = random_images(n), np.arange(n)
        rows = [{"bytes": encoded(image, form), "path": None} if wrap else encoded(image, form) for image in x]
        for part in (slice(3), slice(3, None)):
            name = f"{split}-0000{part.start or 0}-of-00002.parquet"
            pq.write_table(pa.table({column: rows[part], label: y[part]}), root / name)
        written += [x, y]
    return written


def check(name, root, arrays, cache):
    """Prepare `name` from `root`, load it, and compare it with the arrays that were written there."""
    prepare_dataset(name, root, cache, progress=False)
    data = load_dataset(name, cache)
    x, y, x_test, y_test = arrays
    assert np.array_equal(data.x.numpy(), channels_first(x))
    assert np.array_equal(data.x_test.numpy(), channels_first(x_test))
    assert data.y.tolist() == list(y)
    assert data.y_test.tolist() == list(y_test)
    assert len(data.mean) == len(data.std) == data.x.shape[1]
    return data


@pytest.fixture
def root(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.mark.parametrize("compress", [False, True])
def test_mnist(root, tmp_path, compress):
    data = check("mnist", root, write_mnist(root, compress), tmp_path)
    assert (data.mean, data.std, data.classes) == ((0.1307,), (0.3081,), 10)
    assert data.augment == Augment(crop=4, flip=True, cutout=16)


def test_mnist_in_the_folders_torchvision_makes(root, tmp_path):
    deep = root / "MNIST" / "raw"
    deep.mkdir(parents=True)
    check("mnist", root, write_mnist(deep, True), tmp_path)


def test_cifar10_folder_and_archive(root, tmp_path):
    batches = root / "cifar-10-batches-py"
    batches.mkdir()
    arrays = write_cifar10(batches)
    check("cifar10", batches, arrays, tmp_path)
    check("cifar10", root, arrays, tmp_path)
    archive = pack(batches, tmp_path / "cifar-10-python.tar.gz")
    data = check("cifar10", archive, arrays, tmp_path)
    check("cifar10", tmp_path, arrays, tmp_path / "cache")
    assert data.augment == Augment(crop=4, flip=True, cutout=16)
    assert not list(tmp_path.glob(".unpack*"))


def test_cifar100(root, tmp_path):
    batches = root / "cifar-100-python"
    batches.mkdir()
    arrays = write_cifar100(batches)
    check("cifar100", root, arrays, tmp_path)
    check("cifar100", pack(batches, tmp_path / "cifar-100-python.tar.gz"), arrays, tmp_path)


def test_svhn_label_10_becomes_0(root, tmp_path):
    data = check("svhn", root, write_svhn(root), tmp_path)
    assert data.y.tolist() == [1, 2, 0, 9, 0]


def test_cinic10_leaves_the_validation_images_out(root, tmp_path):
    deep = root / "CINIC-10"
    arrays = write_cinic10(deep)
    data = check("cinic10", root, arrays, tmp_path)
    assert data.augment == Augment(crop=4, flip=True, reflect=True)
    check("cinic10", pack(deep, tmp_path / "CINIC-10.tar.gz"), arrays, tmp_path)


@pytest.mark.parametrize(("name", "channels", "classes"), [("pathmnist", 3, 9), ("tissuemnist", 1, 8)])
def test_medmnist_merges_training_and_validation(root, tmp_path, name, channels, classes):
    arrays = write_medmnist(root, name, channels)
    data = check(name, root, arrays, tmp_path)
    assert data.classes == classes
    check(name, root / f"{name}.npz", arrays, tmp_path)


def test_imagenet100_takes_its_classes_and_scales_images_to_one_size(root, tmp_path):
    for split in ("train", "val"):
        for i, name in enumerate([*sorted(IMAGENET100_CLASSES), "n99999999"]):
            (root / split / name).mkdir(parents=True)
            picture = np.zeros((90, 130 + i, 3), np.uint8)
            picture[:, 20:-20] = 2 * i
            Image.fromarray(picture).save(root / split / name / "a.JPEG", quality=95)
    prepare_dataset("imagenet100", root, tmp_path, progress=False)
    data = load_dataset("imagenet100", tmp_path)
    assert data.x.shape == data.x_test.shape == (100, 3, 64, 64)
    assert data.y.tolist() == list(range(100))
    assert (data.x[:, :, 8:-8, 8:-8].float().mean((1, 2, 3)) - 2 * data.y).abs().max() < 3


def test_imagenet100_needs_all_its_classes(root, tmp_path):
    write_folder(root, ("train", "val"), sorted(IMAGENET100_CLASSES)[1:], side=8)
    missing = rf"train: no folder for class {sorted(IMAGENET100_CLASSES)[0]} \(1 of 100 are missing\)"
    with pytest.raises(UserError, match=missing):
        prepare_dataset("imagenet100", root, tmp_path, progress=False)


def test_the_list_of_imagenet100_has_100_classes():
    assert len(set(IMAGENET100_CLASSES)) == 100
    assert all(len(name) == 9 and name[0] == "n" for name in IMAGENET100_CLASSES)


def write_landmarks(root, deep=False, place="images"):
    """Write photographs of three users, of different sizes and brightness, the first one grey; return their ids."""
    ids = [f"{i:016x}" for i in range(6)]
    for i, name in enumerate(ids):
        path = root / (f"train/{name[0]}/{name[1]}/{name[2]}" if deep else place) / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (70 + 9 * i, 200 - 20 * i), (40 * i,) * 3).convert("RGB" if i else "L").save(path)
    users, classes = ["31", "7", "31", "102"], [5, 2027, 0, 5]
    rows = [f"{u},{n},{c}" for u, n, c in zip(users, ids, classes, strict=False)]
    (root / "federated_train.csv").write_text("\n".join(["user_id,image_id,class", *rows]) + "\n")
    (root / "test.csv").write_text(f"image_id,class\n{ids[4]},3\n{ids[5]},4\n")
    return ids


@pytest.mark.parametrize("layout", [{}, {"place": "."}, {"deep": True}])
def test_landmarks_keep_their_clients(root, tmp_path, layout):
    write_landmarks(root, **layout)
    prepare_dataset("landmarks-user-160k", root, tmp_path, progress=False)
    data = load_dataset("landmarks-user-160k", tmp_path)
    assert data.owner.tolist() == [1, 2, 1, 0]
    assert data.y.tolist() == [5, 2027, 0, 5]
    assert data.y_test.tolist() == [3, 4]
    assert data.x.shape == (4, 3, 64, 64)
    assert (data.x.float().mean((1, 2, 3)) - 40 * torch.arange(4)).abs().max() < 2


def test_the_error_for_a_table_without_rows_names_it(root, tmp_path):
    write_landmarks(root)
    (root / "federated_train.csv").write_text("user_id,image_id,class\n")
    with pytest.raises(UserError, match=r"federated_train.csv: the file has no rows"):
        prepare_dataset("landmarks-user-160k", root, tmp_path, progress=False)


def test_the_error_for_a_missing_photograph_names_it(root, tmp_path):
    name = write_landmarks(root)[3]
    (root / "images" / f"{name}.jpg").unlink()
    with pytest.raises(UserError, match=rf"{name}.jpg: image not found \(1 of the images"):
        prepare_dataset("landmarks-user-160k", root, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("name", "options"),
    [("cifar10", {}), ("cifar100", {"label": "fine_label"}), ("svhn", {"column": "image", "wrap": False})],
)
def test_hugging_face_parquet(root, tmp_path, name, options):
    check(name, root, write_parquet(root, **options), tmp_path)


def test_the_prepared_file_records_jpeg(root, tmp_path):
    from safetensors import safe_open

    write_parquet(root, form="JPEG")
    with safe_open(prepare_dataset("cifar10", root, tmp_path, progress=False), framework="np") as file:
        assert file.metadata()["source"] == "parquet, jpeg"


class Evil:
    def __init__(self, call, *arguments):
        self.call = call, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("call", [os.mkdir, eval])
def test_a_malicious_pickle_is_refused_and_nothing_is_run(root, tmp_path, protocol, call):
    write_cifar10(root)
    mark = tmp_path / "ran"
    argument = str(mark) if call is os.mkdir else f"__import__('os').mkdir({str(mark)!r})"
    (root / "data_batch_3").write_bytes(pickle.dumps({"data": Evil(call, argument)}, protocol))
    with pytest.raises(UserError, match=r"data_batch_3: the pickle calls \w+\.(mkdir|eval); only plain arrays"):
        prepare_dataset("cifar10", root, tmp_path, progress=False)
    assert not mark.exists()
    pickle.loads((root / "data_batch_3").read_bytes())
    assert mark.exists(), "the pickle is harmless, so this test shows nothing"


def test_a_malicious_pickle_in_an_archive_is_refused(root, tmp_path):
    write_cifar100(root)
    (root / "train").write_bytes(pickle.dumps(Evil(os.mkdir, str(tmp_path / "ran"))))
    with pytest.raises(UserError, match="the pickle calls"):
        prepare_dataset("cifar100", pack(root, tmp_path / "x.tar.gz"), tmp_path, progress=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_an_archive_cannot_write_elsewhere(root, tmp_path, name):
    (root / "a").write_bytes(b"x")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tar.gettarinfo(root / "a")
        info.name = name
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(UserError, match="outside the archive"):
        prepare_dataset("cifar10", tmp_path / "x.tar", tmp_path / "cache", progress=False)
    assert not list(tmp_path.rglob("outside"))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "make", "file"),
    [
        ("mnist", lambda root: write_mnist(root, True), "train-images-idx3-ubyte.gz"),
        ("mnist", lambda root: write_mnist(root, False), "t10k-images-idx3-ubyte"),
        ("cifar10", write_cifar10, "data_batch_5"),
        ("svhn", write_svhn, "test_32x32.mat"),
        ("pathmnist", lambda root: write_medmnist(root, "pathmnist", 3), "pathmnist.npz"),
        ("cinic10", write_cinic10, "test/cat/1.png"),
        ("cifar10", write_parquet, "train-00003-of-00002.parquet"),
        ("landmarks-user-160k", write_landmarks, "images/0000000000000001.jpg"),
    ],
)
def test_a_truncated_file_is_named_and_nothing_is_left(root, tmp_path, name, make, file):
    make(root)
    truncate(root / file)
    with pytest.raises(UserError, match=r"may be damaged or incomplete") as error:
        prepare_dataset(name, root, tmp_path / "cache", progress=False)
    assert str(error.value).startswith(str(root / file))
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("*"))


def test_a_truncated_archive_is_named(root, tmp_path):
    write_cifar10(root)
    truncate(pack(root, tmp_path / "x.tar.gz"))
    with pytest.raises(UserError, match=r"x.tar.gz: cannot be read as a tar archive"):
        prepare_dataset("cifar10", tmp_path / "x.tar.gz", tmp_path, progress=False)


def test_images_of_mixed_sizes_name_a_file(root, tmp_path):
    write_cinic10(root)
    (root / "test" / "dog" / "1.png").write_bytes(encoded(random_images(1, 20)[0]))
    with pytest.raises(UserError, match=r"dog/1.png: image is 20x20 pixels, but .*airplane/0.png is 32x32: all images"):
        prepare_dataset("cinic10", root, tmp_path, progress=False)


def test_parquet_images_of_mixed_sizes_name_a_row(root, tmp_path):
    write_parquet(root)
    rows = [{"bytes": encoded(image), "path": None} for image in [*random_images(2), *random_images(1, 8)]]
    pq.write_table(pa.table({"img": rows, "label": [1, 2, 3]}), root / "test-00000-of-00002.parquet")
    with pytest.raises(
        UserError, match=r"test-00000-of-00002.parquet row 2: image is 8x8 pixels, but .* row 0 is 32x32"
    ):
        prepare_dataset("cifar10", root, tmp_path, progress=False)


def test_a_failed_preparation_keeps_the_earlier_file(root, tmp_path):
    arrays = check("cinic10", root, write_cinic10(root), tmp_path)
    (root / "test" / "dog" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"dog/1\.png"):
        prepare_dataset("cinic10", root, tmp_path, progress=False)
    assert (load_dataset("cinic10", tmp_path).x == arrays.x).all()
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"cinic10.safetensors", "cinic10.verified"}


def test_labels_beyond_the_classes_are_refused(root, tmp_path):
    write_medmnist(root, "pathmnist", 3)
    arrays = dict(np.load(root / "pathmnist.npz"))
    np.savez(root / "pathmnist.npz", **arrays | {"val_labels": np.array([[0], [9], [1]])})
    with pytest.raises(UserError, match="pathmnist: training labels 0 to 9 found, but there are 9 classes"):
        prepare_dataset("pathmnist", root, tmp_path, progress=False)


def test_labels_that_do_not_fit_the_images_are_refused(root, tmp_path):
    write_medmnist(root, "pathmnist", 3)
    arrays = dict(np.load(root / "pathmnist.npz"))
    np.savez(root / "pathmnist.npz", **arrays | {"test_labels": np.array([[0]])})
    with pytest.raises(UserError, match="pathmnist: 2 images but 1 labels"):
        prepare_dataset("pathmnist", root, tmp_path, progress=False)


def test_labels_without_images_are_refused(root, tmp_path):
    write_mnist(root, False)
    (root / "train-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3i", 0, 28, 28))
    with pytest.raises(UserError, match="mnist: 0 images but 6 labels"):
        prepare_dataset("mnist", root, tmp_path, progress=False)


def test_pickled_objects_in_npz_are_refused(root, tmp_path):
    np.savez(root / "pathmnist.npz", train_labels=np.array([Evil(os.mkdir, str(tmp_path / "ran"))], object))
    with pytest.raises(UserError, match=r"pathmnist\.npz: cannot be read as a MedMNIST file"):
        prepare_dataset("pathmnist", root, tmp_path, progress=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("cifra10", ".", r"cifra10: unknown data set \(did you mean cifar10\?\); allowed: mnist, "),
        ("digits", ".", 'digits: comes with the library, .*; use dataset="digits"'),
        ("mnist", "nowhere", 'from=".*nowhere": no such file or folder'),
        ("mnist", ".", "no file train-labels-idx1-ubyte or "),
        ("cinic10", ".", "no folder train/"),
        ("imagenet100", None, "image-net.org.* then run: fedflat data prepare imagenet100 --from FOLDER"),
        ("landmarks-user-160k", None, "landmarks-user-160k.zip.* fedflat data prepare landmarks-user-160k --from"),
    ],
)
def test_errors_of_prepare(root, tmp_path, name, source, message):
    with pytest.raises(UserError, match=message):
        prepare_dataset(name, source and root / source, tmp_path, progress=False)


def test_the_error_for_a_cache_that_cannot_be_written_names_it(root, tmp_path):
    (tmp_path / "file").write_text("")
    write_medmnist(root, "pathmnist", 3)
    with pytest.raises(UserError, match=r"file: cannot create this folder \(File exists\)"):
        prepare_dataset("pathmnist", root, tmp_path / "file", progress=False)
