"""Models as users have them: torch's BatchNorm and dropout replaced by ours, which know the padding and the samples.

torch's BatchNorm would count padding as samples and change its running averages in place; its dropout draws from the
global random state, so that results would depend on the engine.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.parameter import is_lazy

from fedflat.errors import NOT_SHOWN, UserError
from fedflat.models.layers import BatchNorm, Dropout

_WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def adapt_layers(model: nn.Module, track: bool = False) -> tuple[nn.Module, str]:
    """Return a copy of a model with our layers, and in words which were replaced, "" if none was.

    Parameters keep their names and values. nn.BatchNorm* normalises by the moments of the batch, in training and,
    unless running averages are kept, at evaluation; nn.Dropout* is drawn from the keys of the samples. Subclasses of
    these layers stay as they are.

    Args:
        model: any model; it is not changed. Anything else is returned as it is.
        track: whether batch normalisation keeps running averages. They start from those of torch's layers; layers with
            track_running_stats=False have none.
    """
    if not isinstance(model, nn.Module):
        return model, ""
    model = getattr(model, "_orig_mod", model)  # that of torch.compile, which engines cannot trace
    if any(map(is_lazy, model.parameters())):
        raise UserError("model", NOT_SHOWN, "has layers without sizes (nn.Lazy…); call it once with a sample before")
    found = dict.fromkeys(module for _, _, module in _replaceable(model))
    model = copy.deepcopy(model)
    for layer in model.modules():
        if track and isinstance(layer, BatchNorm):
            layer.track()
    ours: dict[nn.Module, nn.Module] = {}  # a layer may be used in several places
    for parent, name, module in list(_replaceable(model)):
        ours[module] = ours.get(module) or _our_layer(module, len(ours) + 1, track)
        setattr(parent, name, ours[module])
    counts = Counter(type(module).__name__ for module in found)
    return model, ", ".join(f"{count} nn.{name}" for name, count in counts.items())


def _replaceable(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield (parent, name, layer) for each place of a layer that we have one of our own for."""
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child and type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Dropout, *_WHOLE_CHANNELS):
                yield parent, name, child


def _our_layer(module: nn.Module, number: int, track: bool) -> nn.Module:
    """Return our layer for one of torch's, with the same parameters and, if wanted, the same running averages."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        norm = BatchNorm(module.num_features, module.affine, module.eps, module.momentum or 0.0)
        norm.weight, norm.bias = module.weight, module.bias
        if track and module.running_mean is not None:
            if module.momentum is None:
                problem = "BatchNorm with momentum=None averages over all batches, which is not offered; give a number"
                raise UserError("model", NOT_SHOWN, problem)
            norm.running_mean, norm.running_var = module.running_mean, module.running_var
            norm.num_batches_tracked = module.get_buffer("num_batches_tracked")
        return norm
    assert isinstance(module, nn.modules.dropout._DropoutNd)
    return Dropout(module.p, number, isinstance(module, _WHOLE_CHANNELS))


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy weights into a model; raise UserError if they are not those of this model.

    Args:
        model: the model, whose parameters and buffers are overwritten.
        path: a .safetensors file with tensors by name. No other format is read, because others can run code.
    """
    if not path.is_file():
        raise UserError("init", path, "there is no such file")
    try:
        tensors = load_file(path)
    except Exception as error:
        raise UserError("init", path, f"cannot be read as a safetensors file ({error})") from None
    known = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    if missing := [name for name, _ in model.named_parameters() if name not in tensors]:
        raise UserError("init", path, f"has no '{missing[0]}', which the model has ({len(missing)} missing)")
    if unknown := [
        name for name in tensors if name not in known and "running_" not in name and "num_batches" not in name
    ]:
        raise UserError("init", path, f"has '{unknown[0]}', which the model does not have ({len(unknown)} in all)")
    with torch.no_grad():
        for name, value in tensors.items():
            if name in known:
                if known[name].shape != value.shape:
                    shapes = f"{list(value.shape)}, the model's is {list(known[name].shape)}"
                    raise UserError("init", path, f"'{name}' has shape {shapes}")
                known[name].copy_(value)
