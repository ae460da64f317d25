"""Check of models that users give: whether they can be trained as pure functions of their parameters and a batch."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from fedflat.errors import NOT_SHOWN, UserError

GLOBAL_RANDOMNESS = "draws from the global random state, which would make results depend on the engine"


def check_model(model: Any) -> None:
    """Raise UserError if a model cannot be trained as a pure function of its parameters and a batch.

    Refused are objects that are no nn.Module, models that have nothing to train, and torch's BatchNorm and dropout,
    which `fedflat.models.adapt_layers` replaces: running statistics are no parameters, padding would count as samples,
    and dropout would draw from the global random state.

    Args:
        model: what the user gave, or what their function returned.
    """
    if not isinstance(model, nn.Module):
        refuse_model(f"the function that builds it returned {model!r}, must return an nn.Module")
    if not list(model.parameters()):
        refuse_model(f"{type(model).__name__} has no parameters; there is nothing to train")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        refuse_model(f"all parameters of {type(model).__name__} have requires_grad=False; there is nothing to train")
    for name, module in model.named_modules():
        layer = f"layer '{name}' ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._NormBase) and _counts_padding(module):
            refuse_model(f"{layer} would take padding for samples; use fedflat.models.layers.BatchNorm")
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            refuse_model(f"{layer} {GLOBAL_RANDOMNESS}; use fedflat.models.layers.Dropout")


def _counts_padding(module: nn.modules.batchnorm._NormBase) -> bool:
    """Return whether a layer of torch normalises over samples, or with running statistics."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or module.running_mean is not None


def refuse_model(problem: str) -> NoReturn:
    """Raise UserError about the model."""
    raise UserError("model", NOT_SHOWN, problem)
