"""How the house compiles: three decorators for Numba kernels, and the streams inside kernels.

Kept apart from `streams` because importing Numba takes a moment, and a worker process that steps
somebody's Gymnasium env has no use for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from hundredfold.core import streams

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile for one thread: cached on disk, the interpreter lock released while it runs."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


def parallel_kernel(function: Function) -> Function:
    """Compile with `numba.prange` over envs; rows must not share sums, so threads cannot matter."""
    return cast(Function, numba.njit(cache=True, nogil=True, parallel=True)(function))


def sum_kernel(function: Function, **more: Any) -> Function:
    """Compile a part of a kernel whose sums may be added up in any order, the same every time.

    It makes no arrays, and only other kernels call it.
    """
    free = {"reassoc", "nsz", "contract"}
    options: Any = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **more}
    return cast(Function, numba.njit(cache=True, nogil=True, fastmath=free, **options)(function))


word = kernel(streams.word)


@kernel
def uniform(key: Any, count: Any) -> Any:
    """A number in [0, 1): draw `count` of stream `key` (both uint64), as `streams.uniforms`."""
    return (word(key, count) >> streams.UNIT_SHIFT) * streams.UNIT_SCALE


@kernel
def integer(key: Any, count: Any, below: Any) -> Any:
    """A whole number in 0 .. below-1, as `streams.integers`."""
    return np.int64(uniform(key, count) * below)


@kernel
def spawned(key: Any, index: Any) -> Any:
    """The key of a child stream (uint64), as `streams.spawn`."""
    return word(key ^ streams.SPAWN_SALT, np.uint64(index))
