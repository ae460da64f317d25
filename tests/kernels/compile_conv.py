"""Compile the Triton kernels for GPUs that need not be present; with the tiles of large layers they must fit."""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fedflat.engine.kernels.lanes import few_channels
from fedflat.engine.kernels.tiles import Tiles, conv_tiles, weight_grad_tiles
from fedflat.engine.kernels.triton_kernels import conv_kernel, weight_grad_kernel

SHARED_MEMORY = {89: 101_376, 90: 232_448}  # bytes for one program: RTX 4090 (A100 has more), H100
POINTERS = ("x", "w", "b", "y", "g")
NUMBERS = {"pixels": "i32", "x_lane": "i64", "g_lane": "i64", "b_lane": "i64", "corners": "*u8", "parts": "*fp32"}


def compiled(kernel: Any, dtype: str, constants: dict[str, Any], tiles: Tiles, capability: int) -> Any:
    """Compile the kernel with these constants, as a launch would."""
    blocks = {"BLOCK_M": tiles.pixels, "BLOCK_N": tiles.outputs, "BLOCK_K": tiles.entries}
    names, constants = kernel.arg_names, constants | blocks
    types = NUMBERS | dict.fromkeys(POINTERS, f"*{dtype}")
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants},
    )
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def conv(dtype: str, channels: int, outputs: int, pool: bool, capability: int, rotated: bool = False) -> Any:
    """Compile a 5x5 convolution of images of 16 x 16 pixels, which contain their padding if channels are few."""
    tiles, taps = conv_tiles(5, channels, outputs, dtype == "fp32", pool), not few_channels(channels)
    side, padding, size = (16, 2, 16) if taps else (20, 0, 16)
    shape = {"HEIGHT": side, "WIDTH": side, "CHANNELS": channels, "OUTPUTS": outputs, "TOP": -padding, "LEFT": -padding}
    rows = size // 2 if pool else size
    filters = {"KH": 5, "KW": 6 if pool and not taps else 5, "ROWS": rows, "COLUMNS": rows}
    how = {"BIAS": pool, "POOL": pool, "ROTATED": rotated, "DEPTH": outputs, "PRECISION": "tf32"}
    return compiled(conv_kernel, dtype, shape | filters | how, tiles, capability)


def input_grad(dtype: str, channels: int, outputs: int, pool: bool, capability: int) -> Any:
    """Compile the convolution with filters that the kernel rotates."""
    return conv(dtype, channels, outputs, pool, capability, rotated=dtype == "bf16")


def weight_grad(dtype: str, channels: int, outputs: int, pool: bool, capability: int) -> Any:
    """Compile the weight gradient of such a convolution."""
    width = 6 if pool else 5
    tiles = weight_grad_tiles(5 * width * channels, outputs, dtype == "fp32", pool)
    shape = {"HEIGHT": 20, "WIDTH": 20, "CHANNELS": channels, "OUTPUTS": outputs, "STRIDE": outputs}
    rows = 8 if pool else 16
    filters = {"KH": 5, "KW": width, "TOP": 0, "LEFT": 0, "ROWS": rows, "COLUMNS": rows}
    how = {"POOL": pool, "STEPS": 8, "PRECISION": "ieee" if dtype == "fp32" else "tf32"}
    return compiled(weight_grad_kernel, dtype, shape | filters | how, tiles, capability)


if __name__ == "__main__":
    capability = int(sys.argv[1])
    for dtype in ("bf16", "fp32"):
        for make, *layer in ((conv, 64, 32, False), (conv, 64, 64, True), (conv, 4, 64, True),
                             (conv, 128, 128, False), (conv, 512, 512, False), (input_grad, 128, 64, False),
                             (weight_grad, 64, 64, False), (weight_grad, 4, 64, True),
                             (weight_grad, 128, 128, False)):  # fmt: skip
            kernel = make(dtype, *layer, capability)
            assert kernel.metadata.shared <= SHARED_MEMORY[capability], (
                f"{make.__name__} {dtype} {layer}: {kernel.metadata.shared}"
            )
            exact = make is weight_grad and dtype == "fp32"  # tf32 takes bf16 factors
            assert exact or "mma" in kernel.asm["ptx"], f"{make.__name__} {dtype} {layer}: no matrix products"
