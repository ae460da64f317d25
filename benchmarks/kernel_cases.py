"""The layers whose convolutions benchmarks/kernels.py measures, their operands, and the tile sizes to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from fedflat.engine.kernels import tiles
from fedflat.engine.kernels.lanes import lane_spread
from fedflat.engine.kernels.tiles import Tiles, power_of_two

OPERATORS = ("conv", "input_grad", "weight_grad", "conv_pool", "pool_weight_grad")
DTYPES = {"bf16": torch.bfloat16, "tf32": torch.float32}
DEVICE = "cuda"
Run = Callable[[], Tensor]
BUILT_IN = tiles.PROGRAMS


class Layer(NamedTuple):
    """One convolution of a model, with square images and filters."""

    name: str
    lanes: int
    batch: int
    channels: int
    size: int
    outputs: int
    kernel: int
    padding: int

    @property
    def out(self) -> int:
        return self.size + 2 * self.padding - self.kernel + 1

    @property
    def flop(self) -> float:
        return 2.0 * self.lanes * self.batch * self.out**2 * self.outputs * self.channels * self.kernel**2


LAYERS = (
    Layer("fedavg 32→64", 10, 50, 32, 16, 64, 5, 2),
    Layer("fedavg 3→32", 10, 50, 3, 32, 32, 5, 2),
    Layer("lenet 64→64", 5, 64, 64, 14, 64, 5, 0),
    Layer("lenet 3→64", 5, 64, 3, 32, 64, 5, 0),
    Layer("pfl 32→64", 50, 10, 32, 30, 64, 3, 0),
    Layer("pfl 3→32", 50, 10, 3, 32, 32, 3, 0),
    Layer("resnet 64→64", 10, 50, 64, 32, 64, 3, 1),
    Layer("resnet 128→128", 10, 50, 128, 16, 128, 3, 1),
    Layer("resnet 256→256", 10, 50, 256, 8, 256, 3, 1),
    Layer("resnet 512→512", 10, 50, 512, 4, 512, 3, 1),
    Layer("resnet 64→128 (stride 2)", 10, 50, 256, 17, 128, 2, 0),  # folded: four times the channels
    Layer("resnet 256→512 (stride 2)", 10, 50, 1024, 5, 512, 2, 0),
)


class Operands(NamedTuple):
    x: Tensor
    w: Tensor
    b: Tensor
    g: Tensor
    pooled: Tensor
    corner: Tensor


def operands(layer: Layer, dtype: str) -> Operands:
    """Random tensors laid out as in training: channels-last but for the first layer; filters in rows of [L, P]."""
    kind = {"device": DEVICE, "dtype": DTYPES[dtype]}
    count = layer.outputs * layer.channels * layer.kernel**2
    first = layer.channels <= 4
    shape = (layer.channels, layer.size, layer.size) if first else (layer.size, layer.size, layer.channels)
    x = torch.randn(layer.lanes, layer.batch, *shape, **kind)
    flat = torch.randn(layer.lanes, count + layer.outputs, **kind)
    w = flat[:, :count].unflatten(1, (layer.outputs, layer.channels, layer.kernel, layer.kernel))
    g = torch.randn(layer.lanes, layer.batch, layer.out, layer.out, layer.outputs, **kind).permute(0, 1, 4, 2, 3)
    half = (layer.lanes, layer.batch, layer.out // 2, layer.out // 2, layer.outputs)
    pooled = torch.randn(half, **kind).permute(0, 1, 4, 2, 3)
    corner = torch.randint(0, 4, half, device=DEVICE, dtype=torch.uint8).permute(0, 1, 4, 2, 3)
    return Operands(x if first else x.permute(0, 1, 4, 2, 3), w, flat[:, count:], g, pooled, corner)


def library(operator: str, t: Operands, *how: int) -> Run:
    """The operator through PyTorch's convolutions, on images [B, C, H, W]."""
    x, w, b, g = t[:4]
    return {
        "conv_pool": lambda: F.max_pool2d(F.conv2d(x, w, b, *how).relu(), 2),
        "pool_weight_grad": lambda: conv2d_weight(x, w.shape, lane_spread(t.pooled, t.corner, [*g.shape[2:]]), *how),
        "conv": lambda: F.conv2d(x, w, b, *how),
        "input_grad": lambda: conv2d_input(x.shape, w, g, *how),
        "weight_grad": lambda: conv2d_weight(x, w.shape, g, *how),
    }[operator]


def candidates(layer: Layer, operator: str, dtype: str) -> Iterator[tuple[int, Tiles | None]]:
    """(programs of the weight gradient, tiles): the built-in choice first."""
    yield BUILT_IN, None
    scale = 2 if dtype == "tf32" else 1
    if operator == "pool_weight_grad":
        n, k = (
            power_of_two(layer.outputs, 16, 64),
            power_of_two(layer.kernel * (layer.kernel + 1) * 4, 16, 128),
        )
        yield from ((BUILT_IN, Tiles(m // scale, n, k, w, s)) for m, w, s in [(32, 4, 1), (64, 8, 1), (32, 8, 2)])
        return
    if operator == "weight_grad":
        n, k = (
            power_of_two(layer.outputs, 16, 64),
            power_of_two(layer.kernel**2 * max(4, layer.channels), 16, 256),
        )
        shapes = [(64, 128, 4, 4), (64, 128, 8, 3), (64, 256, 8, 3), (128, 128, 8, 2), (32, 256, 4, 4)]
        yield from ((BUILT_IN, Tiles(m // scale, n, min(e, k), w, s)) for m, e, w, s in shapes)
        yield from ((p, Tiles(64 // scale, n, min(128, k), 4, 3)) for p in (256, 1024))
        if layer.outputs >= 128:
            wide = [(64, 128, 8, 3), (64, 256, 8, 3), (64, 64, 4, 4), (32, 128, 4, 4)]
            yield from ((BUILT_IN, Tiles(m // scale, 128, e, w, s)) for m, e, w, s in wide)
        return
    depth, n = (layer.outputs, layer.channels) if operator == "input_grad" else (layer.channels, layer.outputs)
    few = [(128, 128, 4, 1), (128, 64, 4, 2), (128, 32, 4, 3), (256, 32, 8, 3), (64, 128, 4, 1)]
    many = [(128, 32, 4, 4), (128, 64, 4, 3), (128, 64, 4, 4), (256, 64, 8, 3), (256, 32, 8, 4), (64, 64, 4, 4)]
    for m, k, w, s in few if depth <= 4 else many:
        yield BUILT_IN, Tiles(m, power_of_two(n, 16, 64), k // scale, w, s)
    if n >= 128 and operator != "conv_pool":
        wide = [(128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 32, 8, 4), (256, 128, 64, 8, 3)]
        wide += [(128, 256, 64, 8, 3), (64, 128, 64, 4, 4)]
        yield from ((BUILT_IN, Tiles(m, columns, k // scale, w, s)) for m, columns, k, w, s in wide)


def rows(model: str = "", dtypes: Sequence[str] = tuple(DTYPES)) -> Iterator[tuple[Layer, str, str]]:
    """Every operator to measure: of the first layer of a model no gradient of the input, but that of pooled images.

    A ResNet does not pool. `model` chooses the layers whose names begin with it.
    """
    for dtype in dtypes:
        for layer in (layer for layer in LAYERS if layer.name.startswith(model)):
            for operator in OPERATORS[:3] if layer.name.startswith("resnet") else OPERATORS:
                if operator != ("pool_weight_grad" if layer.channels > 4 else "input_grad"):
                    yield layer, operator, dtype
