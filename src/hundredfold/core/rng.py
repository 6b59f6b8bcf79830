"""Counter-based random number generator (SplitMix64 finalisers over key and counter).

Every draw is a pure function `random_bits(key, count)`, so there is no generator state: an env gets
the same draws in one process, eight workers or a cluster, and a snapshot of a stream is two
numbers. `stream_keys(seed, env_ids, episodes)` gives the keys; `spawn` derives independent streams
from a key.

The functions here work on numpy arrays; `core.numba_kernels` has the same functions for kernels,
with bit-identical results.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]

# SplitMix64 (Steele, Lea and Flood 2014): a Weyl increment and two rounds of xor-shift-multiply.
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
MIX_A: Final = np.uint64(0xBF58476D1CE4E5B9)
MIX_B: Final = np.uint64(0x94D049BB133111EB)
SHIFT_A: Final = np.uint64(30)
SHIFT_B: Final = np.uint64(27)
SHIFT_C: Final = np.uint64(31)

# Keep spawned keys apart from the draws of their parent.
SPAWN_SALT: Final = np.uint64(0xD1B54A32D192ED03)
SEED_SALT: Final = np.uint64(0x8CB92BA72F3D8DD7)

# The same as Python integers.
_GOLDEN, _MIX_A, _MIX_B, _SPAWN_SALT = map(int, (GOLDEN, MIX_A, MIX_B, SPAWN_SALT))
_ALL_BITS: Final = 2**64 - 1

# The top 53 of 64 bits, the size of a double's mantissa, scaled into [0, 1).
UNIT_SHIFT: Final = np.uint64(11)
UNIT_SCALE: Final = 2.0**-53


def random_bits(key: Any, count: Any) -> Any:
    """64 random bits: draw number `count` of stream `key` (both uint64).

    Plain uint64 arithmetic, so that Numba compiles this very function. The count is mixed before it
    meets the key: no two streams are shifted copies of each other.
    """
    bits = (count + np.uint64(1)) * GOLDEN
    bits = (bits ^ (bits >> SHIFT_A)) * MIX_A
    bits = (bits ^ (bits >> SHIFT_B)) * MIX_B
    bits = bits ^ (bits >> SHIFT_C) ^ key
    bits = (bits ^ (bits >> SHIFT_A)) * MIX_A
    bits = (bits ^ (bits >> SHIFT_B)) * MIX_B
    return bits ^ (bits >> SHIFT_C)


def random_bits_array(keys: ArrayLike, counts: ArrayLike) -> Keys:
    """64 random bits for every pair of key and count, broadcast against each other."""
    # At least one dimension: numpy warns when a scalar uint64 overflows, which is intended here.
    drawn = random_bits(np.atleast_1d(as_uint64(keys)), np.atleast_1d(as_uint64(counts)))
    shape = np.broadcast_shapes(np.shape(keys), np.shape(counts))
    return np.asarray(drawn, np.uint64).reshape(shape)


def uniforms(keys: ArrayLike, counts: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one for every pair of key and count."""
    return np.asarray((random_bits_array(keys, counts) >> UNIT_SHIFT) * UNIT_SCALE, np.float64)


def integers(keys: ArrayLike, counts: ArrayLike, below: ArrayLike) -> NDArray[np.int64]:
    """Integers in 0 .. below-1, one for every pair of key and count."""
    # A scaled uniform: its bias is less than 2**-53 x `below`.
    return np.asarray(uniforms(keys, counts) * np.asarray(below), np.int64)


def normals(keys: ArrayLike, counts: ArrayLike) -> NDArray[np.float64]:
    """Standard normal numbers (Box-Muller); draw n uses counts 2n and 2n+1 of its stream."""
    first = as_uint64(counts) * np.uint64(2)
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(keys, first)))
    angle = 2.0 * np.pi * uniforms(keys, first + np.uint64(1))
    return np.asarray(radius * np.cos(angle), np.float64)


def spawn(keys: ArrayLike, index: ArrayLike) -> Keys:
    """Keys of child streams: independent of the parents' draws and of each other."""
    return random_bits_array(as_uint64(keys) ^ SPAWN_SALT, index)


def spawn_one(key: int, index: int) -> int:
    """`spawn` for Python integers: numpy takes tens of microseconds for a single key."""
    bits = (index + 1) * _GOLDEN & _ALL_BITS
    bits = (bits ^ bits >> 30) * _MIX_A & _ALL_BITS
    bits = (bits ^ bits >> 27) * _MIX_B & _ALL_BITS
    bits = bits ^ bits >> 31 ^ key ^ _SPAWN_SALT
    bits = (bits ^ bits >> 30) * _MIX_A & _ALL_BITS
    bits = (bits ^ bits >> 27) * _MIX_B & _ALL_BITS
    return bits ^ bits >> 31


def stream_keys(seed: int, env_ids: ArrayLike, episodes: ArrayLike) -> Keys:
    """One key per env and episode: all randomness of the episode is drawn from it."""
    return spawn(spawn(seed_key(seed), env_ids), episodes)


def seed_key(seed: int) -> Keys:
    """The root key of a run's seed: any integer, taken modulo 2**64."""
    return random_bits_array(SEED_SALT, np.uint64(int(seed) % 2**64))


def as_uint64(values: ArrayLike) -> Keys:
    """Integers as uint64; negative ones wrap around."""
    return np.asarray(values).astype(np.uint64)
