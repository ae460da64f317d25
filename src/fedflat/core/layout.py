"""The order of images in memory: [B, C, H, W] as usual, or channels-last, as if they were [B, H, W, C].

Convolutions over many clients, and pooling on a CPU, are fastest channels-last. Shapes are the same in both orders, so
a model need not know, unless it uses one of the operations that AnyLayout replaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

HEAVY_FILTERS = 4  # times as many numbers as the images of a batch


def put_channels_last(x: Tensor) -> Tensor:
    """Return images [B, C, H, W] with the channels last in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def depends_on_layout(model: nn.Module) -> bool:
    """Return whether a model may use operations that AnyLayout replaces: own layers may, of torch's only one does."""
    return any(
        isinstance(layer, nn.AdaptiveAvgPool2d) or not type(layer).__module__.startswith(("torch.nn.", "fedflat."))
        for layer in model.modules()
    )


class AnyLayout(TorchFunctionMode):
    """While it is active, operations that want the usual order, and are common, take images of any order.

    x.view(len(x), -1), by which many models flatten images, fails if the channels are last. It becomes x.reshape(…),
    which copies x where there is no such view. The mean over all pixels that nn.AdaptiveAvgPool2d(1) takes has no rule
    for many clients there, and becomes x.mean((2, 3)). Filters that outweigh the images are faster in the usual order:
    a channels-last convolution would turn them around as well.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if kwargs:
            return func(*args, **kwargs)
        if func is F.conv2d and args[1].numel() > HEAVY_FILTERS * args[0].numel():
            return func(args[0].contiguous(), *args[1:])
        if func is F.adaptive_avg_pool2d and args[1] in (1, (1, 1)):
            return args[0].mean((-2, -1), keepdim=True)
        if func is Tensor.view and not isinstance(args[-1], torch.dtype):
            func = Tensor.reshape
        elif func is Tensor.view_as:
            func = Tensor.reshape_as
        return func(*args)
