"""Random streams that depend on nothing but their key and a count.

Every draw is a pure function `random_bits(key, count)`, so there is no generator state: an env that
knows its key gets the same draws in one process, eight workers or a cluster, and a snapshot of a
stream is two numbers. Keys come from `stream_keys(seed, env_ids, episodes)`; a part that needs
several independent streams spawns them with `spawn`.

The functions here work on numpy arrays. `core/compiled.py` holds the same functions for Numba
kernels, made from the same arithmetic, with the same values to the last bit.
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

# Spawned keys live apart from the draws of their parent.
SPAWN_SALT: Final = np.uint64(0xD1B54A32D192ED03)
SEED_SALT: Final = np.uint64(0x8CB92BA72F3D8DD7)

# The same as plain numbers.
_GOLDEN, _MIX_A, _MIX_B, _SPAWN_SALT = map(int, (GOLDEN, MIX_A, MIX_B, SPAWN_SALT))
_ALL_BITS: Final = 2**64 - 1

# A double has 53 bits of mantissa: the top 53 bits of a random_bits, scaled into [0, 1).
UNIT_SHIFT: Final = np.uint64(11)
UNIT_SCALE: Final = 2.0**-53


def random_bits(key: Any, count: Any) -> Any:
    """Draw number `count` of stream `key`: 64 random bits.

    Plain arithmetic on uint64, so that Numba compiles this very function. The count is mixed
    before it meets the key: two streams never run along one orbit at different offsets.
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
    # At least one dimension: numpy warns when a scalar uint64 wraps around, and here it must wrap.
    drawn = random_bits(np.atleast_1d(as_uint64(keys)), np.atleast_1d(as_uint64(counts)))
    shape = np.broadcast_shapes(np.shape(keys), np.shape(counts))
    return np.asarray(drawn, np.uint64).reshape(shape)


def uniforms(keys: ArrayLike, counts: ArrayLike) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for every pair of key and count."""
    return np.asarray((random_bits_array(keys, counts) >> UNIT_SHIFT) * UNIT_SCALE, np.float64)


def integers(keys: ArrayLike, counts: ArrayLike, below: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers in 0 .. below-1, one for every pair of key and count."""
    # Scaling a uniform: its bias is below 2**-53 x `below`, far under anything measurable here.
    return np.asarray(uniforms(keys, counts) * np.asarray(below), np.int64)


def normals(keys: ArrayLike, counts: ArrayLike) -> NDArray[np.float64]:
    """Standard normal numbers (Box-Muller); draw n uses counts 2n and 2n+1 of the stream."""
    first = as_uint64(counts) * np.uint64(2)
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(keys, first)))
    angle = 2.0 * np.pi * uniforms(keys, first + np.uint64(1))
    return np.asarray(radius * np.cos(angle), np.float64)


def spawn(keys: ArrayLike, index: ArrayLike) -> Keys:
    """Keys of child streams: independent of the parents' draws and of each other."""
    return random_bits_array(as_uint64(keys) ^ SPAWN_SALT, index)


def spawn_one(key: int, index: int) -> int:
    """`spawn` for one key and plain numbers: numpy takes tens of microseconds for a single one."""
    bits = (index + 1) * _GOLDEN & _ALL_BITS
    bits = (bits ^ bits >> 30) * _MIX_A & _ALL_BITS
    bits = (bits ^ bits >> 27) * _MIX_B & _ALL_BITS
    bits = bits ^ bits >> 31 ^ key ^ _SPAWN_SALT
    bits = (bits ^ bits >> 30) * _MIX_A & _ALL_BITS
    bits = (bits ^ bits >> 27) * _MIX_B & _ALL_BITS
    return bits ^ bits >> 31


def stream_keys(seed: int, env_ids: ArrayLike, episodes: ArrayLike) -> Keys:
    """One key per env and episode: everything random in that episode is drawn from it."""
    return spawn(spawn(seed_key(seed), env_ids), episodes)


def seed_key(seed: int) -> Keys:
    """The root key of a run seed: any whole number, taken modulo 2**64."""
    return random_bits_array(SEED_SALT, np.uint64(int(seed) % 2**64))


def as_uint64(values: ArrayLike) -> Keys:
    """Whole numbers as uint64; negative ones wrap around."""
    return np.asarray(values).astype(np.uint64)
