"""Stateless randomness: integer hashes of (seed, purpose, round, client, epoch, sample).

Nothing here keeps a state, so cohorts, shuffles and augmentation do not depend on the order in which clients are
trained, on the engine or on a restart. All operations are int64 tensor arithmetic that wraps modulo 2^64, which gives
the same bits on CPU and GPU.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

FEW = 64


Word = int | Tensor


_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as `value`."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


_GOLDEN, _MIX1, _MIX2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's own keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix_bits(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of 64-bit words whose output bits all depend on all input bits."""
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def purpose_key(name: str) -> int:
    """A stable number for the use a random word is put to ('cohort', 'shuffle', 'crop', ...)."""
    return zlib.crc32(name.encode())


def hash_words(key: Word, *words: Word) -> Tensor:
    """Hash `words` into `key`, broadcasting: h <- mix((h + golden) ^ mix(word)). Python words never touch a device."""
    h = key if isinstance(key, Tensor) else torch.tensor(_signed(key))
    for word in words:
        mixed = mix_bits(word ^ _MIX2) if isinstance(word, Tensor) else _signed(_mix(word ^ _MIX2))
        h = mix_bits((h + _GOLDEN) ^ mixed)
    return h


def uniform_from(key: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A number in [0, 1) from the top 24 bits of `key`, exact in float32."""
    return _shift(key, 40).to(dtype) * 2.0**-24


def normal_from(key: Tensor) -> Tensor:
    """A standard normal number in float64, by Box and Muller's √(−2 ln u) cos(2π v) with u and v of 53 bits."""
    u, v = ((_shift(hash_words(key, i), 11).double() + 0.5) * 2.0**-53 for i in range(2))
    return torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * torch.pi * v)


def integer_below(key: Tensor, n: Word) -> Tensor:
    """An integer in [0, n) for n < 2^31, from the top 32 bits of `key`."""
    return _shift(_shift(key, 32) * n, 32)


def choose_without_replacement(key: int, n: int, k: int) -> list[int]:
    """k distinct numbers below n in random order, of many in O(k): the first k outputs of a keyed permutation.

    Of few by sorting, since a Feistel network on halves of few bits is no uniform permutation.
    """
    if n <= FEW:
        return sorted(range(n), key=lambda i: _mix(key + i * 0x9E3779B97F4A7C15))[:k]
    return [_permute(key, i, n) for i in range(k)]


def _permute(key: int, i: int, n: int) -> int:
    """Four Feistel rounds on the smallest even-width square that covers n, walked until the result is below n."""
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    while True:
        left, right = i >> half, i & ((1 << half) - 1)
        for turn in range(4):
            left, right = right, left ^ (_mix(key + turn * 0x9E3779B97F4A7C15 + right) & ((1 << half) - 1))
        i = left << half | right
        if i < n:
            return i


def _mix(x: int) -> int:
    """`mix` on Python integers."""
    x &= _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31
