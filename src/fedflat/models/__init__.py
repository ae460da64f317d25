"""The built-in models, by name: MODELS take images, TEXT_MODELS take tokens.

A model consists of `features`, which maps images [B, channels, height, width] to vectors [B, F], and `head`, which maps
these to class scores [B, classes]: forward(x) = head(features(x)). Methods that treat the head apart (FedSOL, MOON,
FedBABU) need both parts; a model of your own may do without them for the others.

A model whose class has `takes_batch = True` is called with the batch as well, forward(x, batch) and features(x, batch),
because its normalisation needs the mask of the padding or its dropout the keys of the samples.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fedflat.errors import UserError, near_miss
from fedflat.models import cnn, resnet, text, vit
from fedflat.models.layers import Shape
from fedflat.own_code import explain_own_errors, is_own_code, load_own_code, required_arguments, split_own_code

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
TEXT_MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "char-transformer": text.char_transformer,
    "char-lstm": text.char_lstm,
}


def build_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """Return a new model, with parameters drawn from torch's global random generator.

    Args:
        name: a name of MODELS or TEXT_MODELS, such as "resnet18", or PATH.py:NAME: a module, or a class or function
            that makes one. It is called with `shape` and `classes` if it has arguments of these names.
        shape: channels, height and width of an image; for text the number of tokens in a sample, 1, 1.
        classes: the number of classes or tokens.

    Raises:
        UserError: there is no model of this name, or it cannot take samples of this shape.
    """
    if is_own_code(name):
        return _build_own_model(name, shape, classes)
    known = MODELS | TEXT_MODELS
    if name not in known:
        hint = f" (did you mean {name}:CLASS?)" if name.endswith(".py") else near_miss(name, known)
        listed = ", ".join(known)
        raise UserError(
            "model", name, f"unknown model{hint}; the models are {listed}, or one of yours, FILE.py:CLASS or hf:FOLDER"
        )
    return known[name](shape, classes)


def _build_own_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """Return the module of PATH.py:NAME, a new one for every call."""
    made = load_own_code("model", name)
    if isinstance(made, nn.Module):
        return copy.deepcopy(made)
    given: dict[str, Any] = {"shape": shape, "classes": classes}
    known = inspect.signature(made).parameters if callable(made) else {}
    if missing := [word for word in required_arguments(made) if word not in given]:
        problem = f"its argument {missing[0]} needs a default; it is called with shape and classes where it has them"
        raise UserError("model", name, problem)
    with explain_own_errors("model", name, [split_own_code(name)[0]]):
        made = made(**{word: value for word, value in given.items() if word in known}) if callable(made) else made
    if not isinstance(made, nn.Module):
        raise UserError("model", name, f"must be a torch.nn.Module or make one, not {type(made).__name__}")
    return made
