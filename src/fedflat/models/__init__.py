"""Architectures. Each has `features(x)` and a submodule `head`, and forward(x) = head(features(x)).

Models whose class says `takes_batch = True` are called with the batch as well: forward(x, batch), features(x, batch).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedflat.errors import UserError, near_miss, only_in_python
from fedflat.models import (
    digits_cnn,
    fedavg_cnn,
    lenet_cnn,
    mlp,
    mobilenetv2,
    pfl_cnn,
    resnet,
    sl_vit,
    vgg11,
)
from fedflat.models.layers import Shape

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "digits-cnn": digits_cnn.digits_cnn,
    "mlp": mlp.mlp,
    "fedavg-cnn": fedavg_cnn.fedavg_cnn,
    "lenet-cnn": lenet_cnn.lenet_cnn,
    "vgg11": vgg11.vgg11,
    "resnet10": resnet.resnet10,
    "resnet18": resnet.resnet18,
    "resnet18-gn": resnet.resnet18_gn,
    "resnet18-nonorm": resnet.resnet18_nonorm,
    "sl-vit": sl_vit.sl_vit,
    "mobilenetv2": mobilenetv2.mobilenetv2,
    "pfl-cnn": pfl_cnn.pfl_cnn,
}


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """The model `name` for images of `shape` (channels, height, width), its parameters drawn from torch's generator."""
    only_in_python("--model", name)
    if name not in MODELS:
        raise UserError(f"--model {name}: unknown model{near_miss(name, MODELS)}; the models are {', '.join(MODELS)}")
    return MODELS[name](shape, classes)
