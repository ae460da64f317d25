# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="import-not-found,import-untyped"
"""Triton kernels of the convolution over lanes, as matrix products whose unfolded images are never stored.

Images are [L, B, H, W, C] in memory. With the output pixel m = (s, i, j) and the filter entry k = (u, v, c), c fastest,
where (u, v) is the pixel of the filter (a *tap*) and c the input channel:

    A[l,m,k] = x[l, s, i+u−p, j+v−q, c] (0 outside the image)
    conv         y[l,m,o]  = b[l,o] + Σ_k A[l,m,k] w[l,o,k]
    weight_grad  gw[l,o,k] = Σ_m A[l,m,k] g[l,m,o]

input_grad is conv on g, with the filters rotated by 180° and their inputs and outputs exchanged. Where a block of
entries lies within one tap, the kernel reads the filters themselves in that order (ROTATED).

With POOL, y is also pooled: of the four pixels of each 2x2 window only the largest is kept, plus b and through ReLU,
and its corner 0 … 3 in reading order is stored. The weight gradient then takes g of the pooled image, which acts at
that corner only.

With POOL and few channels (a tap is no whole number of blocks) the filters are PAIRS, one column wider: one filter for
the left pixels of the windows and one, shifted by a column, for the right pixels. So A is loaded once for both.

Sums are computed in float32 in a fixed order, without atomic operations: the weight gradient divides m into spans, and
a second kernel adds their sums. Therefore results repeat bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inside(i, j, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Whether pixel (i, j) lies inside the image."""
    return (i >= 0) & (i < HEIGHT) & (j >= 0) & (j < WIDTH)


@triton.jit
def _larger(a, i, b, j):
    """The larger of two values, and its corner; the first corner of equal values. NaN counts as the largest."""
    second = (a == a) & ((b > a) | (b != b) | ((b == a) & (j < i)))
    return tl.where(second, b, a), tl.where(second, j, i)


@triton.jit
def _largest(total, corner, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The largest pixel of each window, and its corner; the BLOCK_M pixels are in the order of `_pixel_order`."""
    total = tl.reshape(total, (2, BLOCK_M // 32, 2, 8, BLOCK_N))
    corner = tl.reshape(corner, (2, BLOCK_M // 32, 2, 8, BLOCK_N))
    total, corner = tl.reduce((total, corner), 2, _larger)
    total, corner = tl.reduce((total, corner), 0, _larger)
    return tl.reshape(total, (BLOCK_M // 4, BLOCK_N)), tl.reshape(corner, (BLOCK_M // 4, BLOCK_N))


@triton.jit
def _largest_of_pairs(total, corner, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The same for pairs, where the left and the right pixels of windows are halves of the outputs."""
    total = tl.reshape(total, (BLOCK_M // 16, 2, 8, 2, BLOCK_N))
    corner = tl.reshape(corner, (BLOCK_M // 16, 2, 8, 2, BLOCK_N))
    total, corner = tl.reduce((total, corner), 3, _larger)
    total, corner = tl.reduce((total, corner), 1, _larger)
    return tl.reshape(total, (BLOCK_M // 2, BLOCK_N)), tl.reshape(corner, (BLOCK_M // 2, BLOCK_N))


@triton.jit
def _pixel_order(BLOCK_M: tl.constexpr, PAIRS: tl.constexpr):
    """Window and corner of each of the BLOCK_M pixels of a tile; for pairs the corner of the left pixel.

    The pixels of a window are 8 and BLOCK_M / 2 apart, so that one thread has all of them after a matrix product.
    """
    r = tl.arange(0, BLOCK_M)
    if PAIRS:
        return r // 16 * 8 + r % 8, r // 8 % 2 * 2
    else:
        return r % (BLOCK_M // 2) // 16 * 8 + r % 8, r // (BLOCK_M // 2) * 2 + r // 8 % 2


@triton.jit(do_not_specialize=["b_lane"])  # training and evaluation then share what is compiled
def conv_kernel(
    x,
    w,
    b,
    y,
    corners,
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
    BIAS: tl.constexpr,
    POOL: tl.constexpr,
    ROTATED: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute y for BLOCK_M pixels (before pooling) and BLOCK_N outputs of one lane; y has ROWS x COLUMNS pixels.

    ROTATED filters are [CHANNELS, KH, KW, DEPTH] in memory: inputs and outputs exchanged, the last tap first.

    A block of filter entries lies within one tap if BLOCK_K divides the channels. Otherwise it lies in one row of taps,
    whose entries are neighbours in the image; the image must then contain its padding (TOP = LEFT = 0).
    """
    TAPS: tl.constexpr = CHANNELS % BLOCK_K == 0
    WIDE: tl.constexpr = CHANNELS if TAPS else KW * CHANNELS  # entries of a tap, or of a row of taps
    BLOCKS: tl.constexpr = (WIDE + BLOCK_K - 1) // BLOCK_K
    SIZE: tl.constexpr = KH * KW * CHANNELS
    SCALE: tl.constexpr = 2 if POOL else 1
    PAIRS: tl.constexpr = POOL and not TAPS
    SIDES: tl.constexpr = 2 if PAIRS else 1
    STORED: tl.constexpr = BLOCK_M * SIDES // (SCALE * SCALE)
    lane = tl.program_id(2).to(tl.int64)
    first = tl.program_id(0) * STORED
    n = tl.arange(0, SIDES * BLOCK_N)
    o = tl.program_id(1) * BLOCK_N + n % BLOCK_N
    if POOL:
        window, pixel_corner = _pixel_order(BLOCK_M, PAIRS)
        m = first + window
    else:
        m = first + tl.arange(0, BLOCK_M)
        pixel_corner = tl.zeros((BLOCK_M,), dtype=tl.int32)
    i = m // COLUMNS % ROWS * SCALE + pixel_corner // 2 + TOP
    j = m % COLUMNS * SCALE + pixel_corner % 2 + LEFT
    pixel = (m // (ROWS * COLUMNS)).to(tl.int64) * (HEIGHT * WIDTH) + i * WIDTH + j
    image = x + lane * x_lane + pixel * CHANNELS
    if ROTATED:
        filters = w + lane * (SIZE * DEPTH) + o
    else:
        filters = w + lane * (SIDES * OUTPUTS * SIZE) + (n // BLOCK_N * OUTPUTS + o) * SIZE
    total = tl.zeros((BLOCK_M, SIDES * BLOCK_N), dtype=tl.float32)
    for block in range(SIZE // WIDE * BLOCKS):
        part = block // BLOCKS
        k = block % BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
        if TAPS:
            u = part // KW
            v = part % KW
            tap_offset = (u * WIDTH + v) * CHANNELS + k
            valid = ((m < pixels) & _inside(i + u, j + v, HEIGHT, WIDTH))[:, None]
        else:
            tap_offset = part * (WIDTH * CHANNELS) + k
            valid = (m < pixels)[:, None] & (k < WIDE)[None, :]
        left = tl.load(image[:, None] + tap_offset[None, :], mask=valid, other=0.0)
        if ROTATED:
            offset = filters[None, :] + ((k * KH * KW + KH * KW - 1 - part) * DEPTH)[:, None]
        else:
            offset = filters[None, :] + (part * WIDE + k)[:, None]
        right = tl.load(offset, mask=(o < OUTPUTS)[None, :] & (k < WIDE)[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    corner = pixel_corner[:, None] + (n // BLOCK_N)[None, :]
    if PAIRS:
        total, corner = _largest_of_pairs(total, corner, BLOCK_M, BLOCK_N)
    elif POOL:
        total, corner = _largest(total, corner, BLOCK_M, BLOCK_N)
    m = first + tl.arange(0, STORED)
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offset = (lane * pixels + m)[:, None] * OUTPUTS + o[None, :]
    valid = (m < pixels)[:, None] & (o < OUTPUTS)[None, :]
    if BIAS:
        total += tl.load(b + lane * b_lane + o, mask=o < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    if POOL:
        total = tl.where(total < 0, 0.0, total)
        tl.store(corners + offset, corner.to(tl.uint8), mask=valid)
    tl.store(y + offset, total.to(y.dtype.element_ty), mask=valid)


@triton.jit
def weight_grad_kernel(
    g,
    corners,
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
    POOL: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute parts[lane, span, n, k]: the sum over one span of pixels, for BLOCK_K filter entries and BLOCK_N outputs.

    g has ROWS x COLUMNS pixels (after pooling), with STRIDE channels in memory. With POOL the filters are pairs.
    """
    SIZE: tl.constexpr = KH * KW * CHANNELS
    SCALE: tl.constexpr = 2 if POOL else 1
    BLOCKS_K: tl.constexpr = (SIZE + BLOCK_K - 1) // BLOCK_K
    lane = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) % BLOCKS_K * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.arange(0, SCALE * BLOCK_N)
    o = tl.program_id(0) // BLOCKS_K * BLOCK_N + n % BLOCK_N
    u = k // CHANNELS // KW + TOP
    v = k // CHANNELS % KW + LEFT
    image = x + lane * x_lane + (k % CHANNELS + (u * WIDTH + v) * CHANNELS)[None, :]
    grads = g + lane * g_lane
    corner_grid = corners + lane * g_lane
    total = tl.zeros((BLOCK_K, SCALE * BLOCK_N), dtype=tl.float32)
    first = tl.program_id(1) * (STEPS * BLOCK_M)
    for step in range(STEPS):
        m = first + step * BLOCK_M + tl.arange(0, BLOCK_M)
        offset = (m.to(tl.int64) * STRIDE)[:, None] + o[None, :]
        valid_g = (m < pixels)[:, None] & (o < OUTPUTS)[None, :]
        grad = tl.load(grads + offset, mask=valid_g, other=0.0)
        if POOL:
            corner = tl.load(corner_grid + offset, mask=valid_g, other=0)
        for row in tl.static_range(SCALE):
            i = m // COLUMNS % ROWS * SCALE + row
            j = m % COLUMNS * SCALE
            pixel = (m // (ROWS * COLUMNS)).to(tl.int64) * (HEIGHT * WIDTH) + i * WIDTH + j
            valid = (m < pixels)[:, None] & (k < SIZE)[None, :]
            if TOP != 0 or LEFT != 0:
                valid = valid & _inside(i[:, None] + u[None, :], j[:, None] + v[None, :], HEIGHT, WIDTH)
            left = tl.load(image + (pixel * CHANNELS)[:, None], mask=valid, other=0.0)
            right = tl.where(corner == 2 * row + (n // BLOCK_N)[None, :], grad, 0.0) if POOL else grad
            total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    part = parts + (lane * tl.num_programs(1) + tl.program_id(1)) * (SCALE * OUTPUTS * SIZE)
    offset = (n // BLOCK_N * OUTPUTS + o)[None, :] * SIZE + k[:, None]
    tl.store(part + offset, total, mask=(k < SIZE)[:, None] & (o < OUTPUTS)[None, :])


@triton.jit
def add_parts_kernel(
    parts,
    gw,
    SPANS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Compute gw[lane, o, c, tap] = Σ_span parts[lane, span, o, tap, c] for c < DEPTH; the others are for alignment.

    A program handles one output, BLOCK_C channels and all taps. Channels are neighbours in what it reads, taps in what
    it writes.
    """
    lane = tl.program_id(2).to(tl.int64)
    o = tl.program_id(0)
    c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[:, None]
    tap = tl.arange(0, BLOCK_T)[None, :]
    read = parts + (lane * SPANS * OUTPUTS + o) * (TAPS * CHANNELS) + tap * CHANNELS + c
    total = tl.zeros((BLOCK_C, BLOCK_T), dtype=tl.float32)
    for part in range(SPANS):
        total += tl.load(read + part * (OUTPUTS * TAPS * CHANNELS), mask=(c < CHANNELS) & (tap < TAPS), other=0.0)
    written = gw + (lane * OUTPUTS + o) * (DEPTH * TAPS) + c * TAPS + tap
    tl.store(written, total, mask=(c < DEPTH) & (tap < TAPS))


@triton.jit
def spread_kernel(
    g,
    corners,
    y,
    windows,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write g [·, ROWS, COLUMNS, CHANNELS] to its corner of each window of y [·, HEIGHT, WIDTH, CHANNELS], else 0.

    A program handles BLOCK_M windows and BLOCK_N channels.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = (m < windows)[:, None] & (n < CHANNELS)[None, :]
    m = m.to(tl.int64)
    offset = (m * CHANNELS)[:, None] + n[None, :]
    value = tl.load(g + offset, mask=valid, other=0.0)
    corner = tl.load(corners + offset, mask=valid, other=0)
    row = m // (ROWS * COLUMNS) * HEIGHT + m // COLUMNS % ROWS * 2
    for pixel_corner in tl.static_range(4):
        pixel = (row + pixel_corner // 2) * WIDTH + m % COLUMNS * 2 + pixel_corner % 2
        there = y + (pixel * CHANNELS)[:, None] + n[None, :]
        tl.store(there, tl.where(corner == pixel_corner, value, 0.0), mask=valid)
