"""MobileNetV2 (Sandler et al., 2018) at width 1 with GroupNorm, for landmarks (Hsu et al., 2020; FedGloSS).

GroupNorm has 8 groups, the number in TensorFlow Federated's landmark task; the papers do not print one, and every
width of the network is a multiple of 8. The classifier's dropout is left out: neither paper mentions it.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedflat.models.layers import Classifier, Colour, GlobalPool, GroupNorm, Shape, image_sides

GROUPS = 8
# Table 2 of the paper: expansion, output channels, repeats, stride of the first repeat.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def mobilenetv2(shape: Shape, classes: int) -> Classifier:
    """Stem, 17 inverted residual blocks, 1280 features, linear head."""
    image_sides("mobilenetv2", shape, least=32)
    ends = (*_conv_norm(STAGES[-1][1], 1280, 1), nn.ReLU6(), GlobalPool())
    features = nn.Sequential(Colour(), *_conv_norm(3, 32, 3, stride=2), nn.ReLU6(), *_blocks(), *ends)
    return Classifier(features, nn.Linear(1280, classes))


def _blocks() -> list[nn.Module]:
    blocks: list[nn.Module] = []
    inputs = 32
    for expansion, outputs, repeats, stride in STAGES:
        for repeat in range(repeats):
            blocks.append(_inverted_residual(inputs, outputs, expansion, stride if repeat == 0 else 1))
            inputs = outputs
    return blocks


def _inverted_residual(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
    """Widen by `expansion`, filter each channel, project back linearly; with a shortcut where the shape is kept."""
    wide = inputs * expansion
    widen = (*_conv_norm(inputs, wide, 1), nn.ReLU6()) if expansion > 1 else ()
    filtered = (*_conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU6())
    block = nn.Sequential(*widen, *filtered, *_conv_norm(wide, outputs, 1))
    return Residual(block) if inputs == outputs and stride == 1 else block


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Conv2d, GroupNorm]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, GroupNorm(GROUPS, outputs)
