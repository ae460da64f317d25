"""The catalogue of data sets: where each is published, how it is read, and how it is normalised and augmented.

These are the data sets of the papers. Normalisation and augmentation are those of FedSOL's code (CIFAR-100: of FedGF's
code). No paper states them for imagenet100 and landmarks-user-160k; there they are ours. The table is in
docs/datasets.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from fedflat.data.dataset import Augment
from fedflat.data.image_files import read_image_folder, read_landmarks
from fedflat.data.prepared import RawDataset
from fedflat.data.published_formats import read_cifar10, read_cifar100, read_medmnist, read_mnist, read_svhn


class RemoteFile(NamedTuple):
    """A published file: its address, the hash published with it ("md5:...") and its SHA-256, "" where it is unknown."""

    url: str
    hash: str
    sha256: str = ""

    @property
    def name(self) -> str:
        """The file's name, which is the last part of the address."""
        return urlsplit(self.url).path.rsplit("/", 1)[-1]


# The 100 of ImageNet's 1,000 classes by WordNet id, as published with CMC (Tian et al., 2020) and most used since.
# FedSOL does not say which classes it took.
IMAGENET100_CLASSES = """
n02869837 n01749939 n02488291 n02107142 n13037406 n02091831 n04517823 n04589890 n03062245 n01773797
n01735189 n07831146 n07753275 n03085013 n04485082 n02105505 n01983481 n02788148 n03530642 n04435653
n02086910 n02859443 n13040303 n03594734 n02085620 n02099849 n01558993 n04493381 n02109047 n04111531
n02877765 n04429376 n02009229 n01978455 n02106550 n01820546 n01692333 n07714571 n02974003 n02114855
n03785016 n03764736 n03775546 n02087046 n07836838 n04099969 n04592741 n03891251 n02701002 n03379051
n02259212 n07715103 n03947888 n04026417 n02326432 n03637318 n01980166 n02113799 n02086240 n03903868
n02483362 n04127249 n02089973 n03017168 n02093428 n02804414 n02396427 n04418357 n02172182 n01729322
n02113978 n03787032 n02089867 n02119022 n03777754 n04238763 n02231487 n03032252 n02138441 n02104029
n03837869 n03494278 n04136333 n03794056 n03492542 n02018207 n04067472 n03930630 n03584829 n02123045
n04229816 n02100583 n03642806 n04336792 n03259280 n02116738 n02108089 n03424325 n01855672 n02090622
""".split()  # noqa: SIM905
PHOTOGRAPH_SIDE = 64  # pixels to which the photographs of imagenet100 and landmarks-user-160k are scaled
_CINIC10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
_MEDMNIST_URL = "https://zenodo.org/records/10519652/files"


@dataclass(frozen=True)
class DatasetSpec:
    """One data set of the catalogue.

    Args:
        read: reads the published files in a folder.
        classes: number of classes.
        mean: mean of each channel, of pixels scaled to [0, 1].
        std: standard deviation of each channel, of pixels scaled to [0, 1].
        augment: random changes of training images.
        files: the published files, if they can be downloaded.
        by_hand: what the user has to fetch, if they cannot.
    """

    read: Callable[[Path], RawDataset]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""


# MD5 protects against damage only: two files with the same MD5 can be made.
_SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}


def _published(base: str, md5: dict[str, str]) -> tuple[RemoteFile, ...]:
    """Return the files at the address `base`, given the MD5 hash of each."""
    return tuple(RemoteFile(f"{base}/{name}", f"md5:{digest}", _SHA256.get(name, "")) for name, digest in md5.items())


DATASETS: dict[str, DatasetSpec] = {
    "mnist": DatasetSpec(
        read=read_mnist,
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
    "cifar10": DatasetSpec(
        read=read_cifar10,
        classes=10,
        mean=(0.49139968, 0.48215827, 0.44653124),
        std=(0.24703233, 0.24348505, 0.26158768),
        augment=Augment(crop=4, flip=True, cutout=16),
        files=_published(_CIFAR_URL, {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}),
    ),
    "cifar100": DatasetSpec(
        read=read_cifar100,
        classes=100,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        augment=Augment(crop=4, flip=True),
        files=_published(_CIFAR_URL, {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}),
    ),
    "svhn": DatasetSpec(
        read=read_svhn,
        classes=10,
        mean=(0.4376821, 0.4437697, 0.47280442),
        std=(0.19803012, 0.20101562, 0.19703614),
        augment=Augment(crop=4, flip=True),
        files=_published(
            "https://ufldl.stanford.edu/housenumbers",
            {
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
        ),
    ),
    "cinic10": DatasetSpec(
        read=partial(read_image_folder, classes=_CINIC10_CLASSES),
        classes=10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        augment=Augment(crop=4, flip=True, reflect=True),
        files=_published(
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192",
            {"CINIC-10.tar.gz": "6ee4d0c996905fe93221de577967a372"},
        ),
    ),
    "pathmnist": DatasetSpec(
        read=partial(read_medmnist, name="pathmnist"),
        classes=9,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        augment=Augment(flip=True),
        files=_published(_MEDMNIST_URL, {"pathmnist.npz": "a8b06965200029087d5bd730944a56c1"}),
    ),
    "tissuemnist": DatasetSpec(
        read=partial(read_medmnist, name="tissuemnist"),
        classes=8,
        mean=(0.5,),
        std=(0.5,),
        augment=Augment(flip=True),
        files=_published(_MEDMNIST_URL, {"tissuemnist.npz": "ebe78ee8b05294063de985d821c1c34b"}),
    ),
    "imagenet100": DatasetSpec(
        read=partial(read_image_folder, size=PHOTOGRAPH_SIDE, classes=IMAGENET100_CLASSES, tests=("val", "test")),
        classes=100,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augment=Augment(crop=4, flip=True),
        by_hand="get ImageNet (ILSVRC2012) from image-net.org, with one folder per WordNet id in train/ and val/",
    ),
    "landmarks-user-160k": DatasetSpec(
        read=partial(read_landmarks, size=PHOTOGRAPH_SIDE),
        classes=2028,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        augment=Augment(crop=4, flip=True),
        by_hand="get landmarks-user-160k.zip (federated_train.csv, test.csv) of google-research's "
        "federated_vision_datasets and the images ID.jpg of Google Landmarks v2 into one folder",
    ),
}
