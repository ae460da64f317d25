"""The built-in models, by name.

A model consists of `features`, which maps images [B, channels, height, width] to vectors [B, F], and `head`, which maps
these to class scores [B, classes]: forward(x) = head(features(x)). Methods that treat the head apart (FedSOL, MOON,
FedBABU) need both parts; a model of your own may do without them for the others.

A model whose class has `takes_batch = True` is called with the batch as well, forward(x, batch) and features(x, batch),
because its normalisation needs the mask of the padding or its dropout the keys of the samples.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedflat.errors import UserError, near_miss
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
    """Return a new model, with parameters drawn from torch's global random generator.

    Args:
        name: a name of MODELS, such as "resnet18".
        shape: channels, height and width of an image.
        classes: the number of classes.

    Raises:
        UserError: there is no model of this name, or it cannot take images of this shape.
    """
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise UserError("model", name, f"unknown model{near_miss(name, MODELS)}; the models are {known}")
    return MODELS[name](shape, classes)
