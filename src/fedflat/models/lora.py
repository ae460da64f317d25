"""LoRA (Hu et al., 2022): low-rank updates of linear layers, beside weights that stay as they are."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.errors import UserError


class LoRALinear(nn.Module):
    """y = W x + b + (α / r) B A x with frozen W and b. B is 0 at first, so that y starts as it was.

    Args:
        base: the linear layer, whose parameters are frozen.
        rank: r, the rows of A and columns of B.
        alpha: α.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


def lora(
    model: nn.Module,
    rank: int = 8,
    target: Sequence[str] = ("q_proj", "v_proj"),
    alpha: float | None = None,
    train: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """Return a copy of a model of which only LoRA's matrices, and what `train` names, are trained.

    Args:
        model: any model with nn.Linear layers; it is not changed.
        rank: the rank r of the updates.
        target: the last parts of the names of the linear layers that get updates.
        alpha: the updates are multiplied by α / r; 2 r unless given.
        train: names, or beginnings of names, of parameters that are trained as well, such as "classifier".
        seed: seed of the initial values.

    Raises:
        UserError: no linear layer is named so.
    """
    if rank < 1:
        raise UserError("rank", rank, "must be at least 1")
    model = copy.deepcopy(model).requires_grad_(False)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    chosen = [name for name in linear if name.rsplit(".", 1)[-1] in target or name in target]
    if not chosen:
        raise UserError("target", list(target), f"no linear layer has this name; the model has {_endings(linear)}")
    for name in train:
        matching = [p for full, p in model.named_parameters() if full.startswith(name)]
        if not matching:
            raise UserError("train", name, "no parameter's name begins so")
        for parameter in matching:
            parameter.requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name in chosen:
            layer = LoRALinear(linear[name], rank, 2.0 * rank if alpha is None else alpha)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer)
    return model


def _endings(names: Iterable[str]) -> str:
    """Return the last parts of names, each once."""
    endings = list(dict.fromkeys(name.rsplit(".", 1)[-1] for name in names))
    return ", ".join(endings[:12]) or "none"
