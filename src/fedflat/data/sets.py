"""The data sets of the papers: facts, where they are published, how they are read.

Normalisation and augmentation are those of FedSOL's code (CIFAR-100: FedGF's); where no paper states one
(imagenet100, landmarks-user-160k) they are ours. docs/datasets.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedflat.data.dataset import Augment
from fedflat.data.download import Remote
from fedflat.data.folders import image_folder, landmarks
from fedflat.data.imagenet100 import CLASSES
from fedflat.data.prepared import Source
from fedflat.data.readers import cifar10, cifar100, medmnist, mnist, svhn

SIDE = 64  # pixels to which the photographs of imagenet100 and landmarks-user-160k are brought


@dataclass(frozen=True)
class Spec:
    """One data set; `files` can be downloaded, `by_hand` says what to fetch where nothing can."""

    read: Callable[[Path], Source]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment
    files: tuple[Remote, ...] = ()
    by_hand: str = ""


def _published(base: str, md5: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{name}", f"md5:{digest}") for name, digest in md5.items())


_CINIC = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


_KRIZ = "https://www.cs.toronto.edu/~kriz"


_ZENODO = "https://zenodo.org/records/10519652/files"


SETS: dict[str, Spec] = {
    "mnist": Spec(
        read=mnist,
        classes=10,
        mean=(0.1307,),
        std=(0.3081,),
        augment=Augment(crop=4, flip=True, cutout=16),
        files=_published(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
    ),
    "cifar10": Spec(
        read=cifar10,
        classes=10,
        mean=(0.49139968, 0.48215827, 0.44653124),
        std=(0.24703233, 0.24348505, 0.26158768),
        augment=Augment(crop=4, flip=True, cutout=16),
        files=_published(_KRIZ, {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}),
    ),
    "cifar100": Spec(
        read=cifar100,
        classes=100,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        augment=Augment(crop=4, flip=True),
        files=_published(_KRIZ, {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}),
    ),
    "svhn": Spec(
        read=svhn,
        classes=10,
        mean=(0.4376821, 0.4437697, 0.47280442),
        std=(0.19803012, 0.20101562, 0.19703614),
        augment=Augment(crop=4, flip=True),
        files=_published(
            "http://ufldl.stanford.edu/housenumbers",
            {
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
        ),
    ),
    "cinic10": Spec(
        read=partial(image_folder, classes=_CINIC),
        classes=10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        augment=Augment(crop=4, flip=True, reflect=True),
        files=_published(
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192",
            {"CINIC-10.tar.gz": "6ee4d0c996905fe93221de577967a372"},
        ),
    ),
    "pathmnist": Spec(
        read=partial(medmnist, name="pathmnist"),
        classes=9,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        augment=Augment(flip=True),
        files=_published(_ZENODO, {"pathmnist.npz": "a8b06965200029087d5bd730944a56c1"}),
    ),
    "tissuemnist": Spec(
        read=partial(medmnist, name="tissuemnist"),
        classes=8,
        mean=(0.5,),
        std=(0.5,),
        augment=Augment(flip=True),
        files=_published(_ZENODO, {"tissuemnist.npz": "ebe78ee8b05294063de985d821c1c34b"}),
    ),
    "imagenet100": Spec(
        read=partial(image_folder, size=SIDE, classes=CLASSES, tests=("val", "test")),
        classes=100,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augment=Augment(crop=4, flip=True),
        by_hand="get ImageNet (ILSVRC2012) from image-net.org, with one folder per WordNet id in train/ and val/",
    ),
    "landmarks-user-160k": Spec(
        read=partial(landmarks, size=SIDE),
        classes=2028,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        augment=Augment(crop=4, flip=True),
        by_hand="get landmarks-user-160k.zip (federated_train.csv, test.csv) of google-research's "
        "federated_vision_datasets and the images ID.jpg of Google Landmarks v2 into one folder",
    ),
}
