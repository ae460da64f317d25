"""Architectures. Each has `features(x)` and a submodule `head`, and forward(x) = head(features(x)).

Models whose class says `takes_batch = True` are called with the batch as well: forward(x, batch), features(x, batch).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedflat.errors import UserError, near_miss, only_in_python
from fedflat.models import cnn, resnet, vit
from fedflat.models.layers import Shape

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "digits-cnn": cnn.digits_cnn,
    "mlp": cnn.mlp,
    "fedavg-cnn": cnn.fedavg_cnn,
    "lenet-cnn": cnn.lenet_cnn,
    "vgg11": cnn.vgg11,
    "resnet10": resnet.resnet10,
    "resnet18": resnet.resnet18,
    "resnet18-gn": resnet.resnet18_gn,
    "resnet18-nonorm": resnet.resnet18_nonorm,
    "sl-vit": vit.sl_vit,
    "mobilenetv2": cnn.mobilenetv2,
    "pfl-cnn": cnn.pfl_cnn,
}


def build_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """The model `name` for images of `shape` (channels, height, width), its parameters drawn from torch's generator."""
    only_in_python("--model", name)
    if name not in MODELS:
        raise UserError(f"--model {name}: unknown model{near_miss(name, MODELS)}; the models are {', '.join(MODELS)}")
    return MODELS[name](shape, classes)
