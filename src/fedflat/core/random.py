"""Random numbers without a generator: integer hashes of (seed, purpose, round, client, epoch, sample).

Nothing here keeps a state. Therefore cohorts, shuffles, augmentation and dropout do not depend on the order in which
clients are trained, on the engine or on a restart. Hashes are int64 tensor arithmetic that wraps modulo 2⁶⁴, which
gives the same bits on CPU and GPU.

    key = hash_words(seed, purpose_key("crop"), round, client)      one 64-bit hash, or a tensor of them
    integer_below(key, 9), uniform_from(key), normal_from(key)      numbers made of it
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

Word = int | Tensor  # an integer, or an int64 tensor of them

_SORTED_BELOW = 65  # choices among fewer numbers than this are made by sorting
_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits as `value`."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


_GOLDEN, _MIX1, _MIX2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Return the logical right shift of x; torch's own shift repeats the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix_bits(x: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of x: a bijection of 64-bit words whose output bits depend on all input bits.

    Args:
        x: int64 tensor of any shape.
    """
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def purpose_key(name: str) -> int:
    """Return a number that stands for what random numbers are used for, so that two uses get independent ones.

    Args:
        name: the use, such as "cohort", "shuffle" or "crop". Another name gives other random numbers.
    """
    return zlib.crc32(name.encode())


def hash_words(key: Word, *words: Word) -> Tensor:
    """Hash `words` into `key`, one after the other: h ← mix((h + golden) ^ mix(word)), from h = key.

    Args:
        key: a seed or another hash.
        words: what the hash depends on: a purpose, a round, a client, ...

    Returns:
        An int64 tensor whose shape is that of `key` and `words` broadcast. Python integers are mixed in Python, so that
        they cost no transfer to a GPU; integers alone give a scalar tensor on the CPU.
    """
    h = key
    for word in words:
        mixed = mix_bits(word ^ _MIX2) if isinstance(word, Tensor) else _signed(_mix(word ^ _MIX2))
        moved = h + _GOLDEN if isinstance(h, Tensor) else _signed(h + _GOLDEN)
        joined = moved ^ mixed
        h = mix_bits(joined) if isinstance(joined, Tensor) else _mix(joined)
    return h if isinstance(h, Tensor) else torch.tensor(_signed(h))


def uniform_from(key: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a uniform number in [0, 1) for every hash: its top 24 bits divided by 2²⁴, which float32 holds exactly.

    Args:
        key: hashes, int64 of any shape.
        dtype: the floating-point type of the result.
    """
    return _shift(key, 40).to(dtype) * 2.0**-24


def normal_from(key: Tensor) -> Tensor:
    """Return a standard normal number in float64 for every hash: √(−2 ln u) cos(2π v) (Box and Muller).

    Args:
        key: hashes, int64 of any shape; the uniform numbers u and v of 53 bits each are hashed from them.
    """
    u, v = ((_shift(hash_words(key, i), 11).double() + 0.5) * 2.0**-53 for i in range(2))
    return torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * torch.pi * v)


def integer_below(key: Tensor, n: Word) -> Tensor:
    """Return an integer in [0, n) for every hash, from its top 32 bits.

    Args:
        key: hashes, int64 of any shape.
        n: the upper limit, which is less than 2³¹ and does not belong to the range.
    """
    return _shift(_shift(key, 32) * n, 32)


def choose_without_replacement(key: int, n: int, k: int) -> list[int]:
    """Return k distinct numbers in [0, n) in random order.

    They are the first k outputs of a permutation chosen by `key`. For n > 64 it is a Feistel network, which takes time
    O(k) for any n. For smaller n all numbers are sorted by a hash, because a Feistel network on so few bits does not
    reach all permutations equally often.

    Args:
        key: the hash that decides.
        n: how many numbers there are.
        k: how many of them to choose, at most n.
    """
    if n < _SORTED_BELOW:
        return sorted(range(n), key=lambda i: _mix(key + i * 0x9E3779B97F4A7C15))[:k]
    return [_permute(key, i, n) for i in range(k)]


def _permute(key: int, i: int, n: int) -> int:
    """Return the i-th output of a permutation of [0, n): four Feistel rounds, repeated until the result is below n.

    The rounds permute numbers of 2 · half bits, the smallest even number of bits that holds n − 1.
    """
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    while True:
        left, right = i >> half, i & ((1 << half) - 1)
        for feistel_round in range(4):
            left, right = right, left ^ (_mix(key + feistel_round * 0x9E3779B97F4A7C15 + right) & ((1 << half) - 1))
        i = left << half | right
        if i < n:
            return i


def _mix(x: int) -> int:
    """Return `mix_bits` of a Python integer."""
    x &= _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31
