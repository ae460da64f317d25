"""Parameter counts; those of models from papers equal the counts of the authors' own."""

from __future__ import annotations

import pytest

from fedflat.models import MODELS, build_model

COUNTS = [
    ("digits-cnn", (1, 8, 8), 10, 13_706),
    ("mlp", (1, 8, 8), 10, 4_810),
    ("fedavg-cnn", (3, 32, 32), 10, 2_156_490),
    ("fedavg-cnn", (1, 28, 28), 10, 1_664_970),
    ("fedavg-cnn", (1, 28, 28), 9, 1_664_457),
    ("lenet-cnn", (3, 32, 32), 10, 797_962),
    ("lenet-cnn", (3, 32, 32), 100, 815_332),
    ("vgg11", (3, 32, 32), 10, 9_750_922),
    ("vgg11", (1, 28, 28), 10, 9_750_922),
    ("resnet10", (3, 32, 32), 10, 4_903_242),
    ("resnet18", (3, 32, 32), 10, 11_173_962),
    ("resnet18-gn", (3, 32, 32), 10, 11_173_962),
    ("resnet18-nonorm", (3, 32, 32), 100, 11_210_532),
    ("sl-vit", (3, 32, 32), 10, 6_176_275),
    ("mobilenetv2", (3, 224, 224), 1000, 3_504_872),
    ("mobilenetv2", (3, 224, 224), 2028, 4_821_740),
    ("pfl-cnn", (3, 32, 32), 10, 1_626_442),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_parameter_count(name, shape, classes, count):
    assert sum(p.numel() for p in build_model(name, shape, classes).parameters()) == count


def test_every_model_is_counted():
    assert {case[0] for case in COUNTS} == set(MODELS)
