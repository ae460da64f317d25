# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="import-not-found,import-untyped"
"""Triton kernels of the convolution over lanes: implicit matrix products, never an unfolded image in memory.

Images are [L, B, H, W, C] in memory. With the output pixel m = (s, i, j) and the filter entry k = (u, v, c), c fastest,

    A[l,m,k] = x[l, s, i+u−p, j+v−q, c] (0 outside the image)
    conv         y[l,m,o]  = b[l,o] + Σ_k A[l,m,k] w[l,o,k]
    weight_grad  gw[l,o,k] = Σ_m A[l,m,k] g[l,m,o]

and input_grad is conv on g with steps −u, −v, offsets +p, +q and the filters' in- and outputs exchanged. Sums are in
float32 in a fixed order, without atomics: the weight gradient cuts m into spans whose sums a second kernel adds, so
results repeat bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inside(i, j, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    return (i >= 0) & (i < HEIGHT) & (j >= 0) & (j < WIDTH)


@triton.jit
def conv_kernel(
    x,
    w,
    b,
    y,
    pixels,
    x_lane,
    b_lane,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    STEP: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y of BLOCK_M pixels and BLOCK_N outputs of one lane; the image has HEIGHT x WIDTH pixels, y ROWS x COLUMNS."""
    SIZE: tl.constexpr = KH * KW * CHANNELS
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    i = m // COLUMNS % ROWS + TOP
    j = m % COLUMNS + LEFT
    pixel = (m // (ROWS * COLUMNS)).to(tl.int64) * (HEIGHT * WIDTH) + i * WIDTH + j
    image = x + lane * x_lane + pixel * CHANNELS
    filters = w + lane * (OUTPUTS * SIZE) + n * SIZE
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range((SIZE + BLOCK_K - 1) // BLOCK_K):
        k = block * BLOCK_K + tl.arange(0, BLOCK_K)
        if CHANNELS % BLOCK_K == 0:  # the whole block is one tap: its bounds are per pixel, not per entry
            tap = block // (CHANNELS // BLOCK_K)
            u = tap // KW * STEP
            v = tap % KW * STEP
            here = block % (CHANNELS // BLOCK_K) * BLOCK_K + tl.arange(0, BLOCK_K) + (u * WIDTH + v) * CHANNELS
            known = ((m < pixels) & _inside(i + u, j + v, HEIGHT, WIDTH))[:, None]
        else:
            u = k // CHANNELS // KW * STEP
            v = k // CHANNELS % KW * STEP
            here = k % CHANNELS + (u * WIDTH + v) * CHANNELS
            known = (m < pixels)[:, None] & (k < SIZE)[None, :]
            known = known & _inside(i[:, None] + u[None, :], j[:, None] + v[None, :], HEIGHT, WIDTH)
        left = tl.load(image[:, None] + here[None, :], mask=known, other=0.0)
        right = tl.load(filters[None, :] + k[:, None], mask=(n < OUTPUTS)[None, :] & (k < SIZE)[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(b + lane * b_lane + n, mask=n < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    place = y + (lane * pixels + m)[:, None] * OUTPUTS + n[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=(m < pixels)[:, None] & (n < OUTPUTS)[None, :])


@triton.jit
def weight_grad_kernel(
    g,
    x,
    parts,
    pixels,
    g_lane,
    x_lane,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STRIDE: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """parts[lane, span, n, k]: the sum over one span of pixels for BLOCK_K filter entries and BLOCK_N outputs."""
    SIZE: tl.constexpr = KH * KW * CHANNELS
    BLOCKS_K: tl.constexpr = (SIZE + BLOCK_K - 1) // BLOCK_K
    lane = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) % BLOCKS_K * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.program_id(0) // BLOCKS_K * BLOCK_N + tl.arange(0, BLOCK_N)
    u = k // CHANNELS // KW + TOP
    v = k // CHANNELS % KW + LEFT
    image = x + lane * x_lane + (k % CHANNELS + (u * WIDTH + v) * CHANNELS)[None, :]
    grads = g + lane * g_lane + n[None, :]
    total = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    first = tl.program_id(1) * (STEPS * BLOCK_M)
    for step in range(STEPS):
        m = first + step * BLOCK_M + tl.arange(0, BLOCK_M)
        i = m // COLUMNS % ROWS
        j = m % COLUMNS
        pixel = (m // (ROWS * COLUMNS)).to(tl.int64) * (HEIGHT * WIDTH) + i * WIDTH + j
        known = (m < pixels)[:, None] & (k < SIZE)[None, :]
        if TOP != 0 or LEFT != 0:
            known = known & _inside(i[:, None] + u[None, :], j[:, None] + v[None, :], HEIGHT, WIDTH)
        left = tl.load(image + (pixel * CHANNELS)[:, None], mask=known, other=0.0)
        place = grads + (m.to(tl.int64) * STRIDE)[:, None]
        right = tl.load(place, mask=(m < pixels)[:, None] & (n < OUTPUTS)[None, :], other=0.0)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    part = parts + (lane * tl.num_programs(1) + tl.program_id(1)) * (OUTPUTS * SIZE)
    tl.store(part + n[None, :] * SIZE + k[:, None], total, mask=(k < SIZE)[:, None] & (n < OUTPUTS)[None, :])


@triton.jit
def add_parts_kernel(
    parts,
    gw,
    SPANS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """gw[lane, o, c, tap] = Σ_span parts[lane, span, o, tap, c], without the channels c ≥ DEPTH added for alignment."""
    SIZE: tl.constexpr = OUTPUTS * TAPS * CHANNELS
    lane = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(SPANS):
        total += tl.load(parts + (lane * SPANS + part) * SIZE + e, mask=e < SIZE, other=0.0)
    c = e % CHANNELS
    entry = (e // (TAPS * CHANNELS) * DEPTH + c) * TAPS + e // CHANNELS % TAPS
    tl.store(gw + lane * (OUTPUTS * DEPTH * TAPS) + entry, total, mask=(e < SIZE) & (c < DEPTH))
