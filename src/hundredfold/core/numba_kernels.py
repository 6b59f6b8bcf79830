"""Numba decorators of the package, and the random number functions of `core.rng` for kernels.

Separate from `core.rng` because importing Numba takes a moment, and a worker process that steps a
Gymnasium env does not need it.

Passing many arrays on costs more than most small functions do: array structs travel by value and
their references are counted. Three decorators avoid that: `inlined` removes the call, `outlined`
functions take addresses (see `pointer`) instead of arrays, and `noalloc_kernel` switches reference
counting off. In the step of `cage2` this took an env from 800 ns to 50 ns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from hundredfold.core import rng

Function = TypeVar("Function", bound=Callable[..., Any])

# For functions that only other kernels call: compiling the wrappers takes a third of the time.
NO_WRAPPERS: Final[dict[str, Any]] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Reference counting off, which is safe only in functions that allocate nothing.
NO_REFCOUNTS: Final[dict[str, Any]] = {"_nrt": False}


def kernel(function: Function) -> Function:
    """Compile for one thread: cached on disk, the GIL released while it runs."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


def noalloc_kernel(function: Function, **flags: Any) -> Function:
    """Compile a function that allocates nothing and is called by other kernels only.

    Without reference counting, which would take a third of the time of an inner loop.

    Args:
        function: must not create arrays or other objects that Numba counts references of.
        flags: further options of `numba.njit`.
    """
    options = {**NO_REFCOUNTS, **NO_WRAPPERS, **flags}
    return cast(Function, numba.njit(cache=True, nogil=True, **options)(function))


def fast_sum_kernel(function: Function, **flags: Any) -> Function:
    """A `noalloc_kernel` whose sums may be reordered by the compiler, so that they use SIMD.

    The order is fixed when it is compiled: the same machine gives the same sums every time.
    """
    return noalloc_kernel(function, fastmath={"reassoc", "nsz", "contract"}, **flags)


def inlined(function: Function) -> Function:
    """Compile a function that is inlined into every kernel that calls it."""
    return cast(Function, numba.njit(nogil=True, forceinline=True, **NO_WRAPPERS)(function))


def outlined(function: Function) -> Function:
    """Compile a function that stays a call of its own and is handed addresses instead of arrays.

    For rare branches: inlined, they slow a kernel down (by 4 % in `cage2`) without being taken.
    """
    return cast(Function, numba.njit(nogil=True, **NO_WRAPPERS)(function))


def entry_kernel(function: Function) -> Function:
    """Compile a kernel made of `inlined` functions, cached until one of their files changes."""
    compiled = cast(Any, kernel(function))
    # Numba checks only the file of the kernel itself; without this, an edited function or table in
    # another file of its folder would leave the old machine code in use.
    sources = {*Path(compiled.py_func.__code__.co_filename).parent.glob("*.py")}
    sources |= {Path(__file__), Path(rng.__file__)}
    stats = [source.stat() for source in sorted(sources)]
    stamp = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
    compiled._cache._cache_file._source_stamp = stamp
    return cast(Function, compiled)


random_bits = kernel(rng.random_bits)


@kernel
def uniform(key: Any, count: Any) -> Any:
    """A number in [0, 1): draw `count` of stream `key` (both uint64), as `rng.uniforms`."""
    return (random_bits(key, count) >> rng.UNIT_SHIFT) * rng.UNIT_SCALE


@kernel
def integer(key: Any, count: Any, below: Any) -> Any:
    """An integer in 0 .. below-1, as `rng.integers`."""
    return np.int64(uniform(key, count) * below)


@kernel
def spawn(key: Any, index: Any) -> Any:
    """The key of a child stream (uint64), as `rng.spawn`."""
    return random_bits(key ^ rng.SPAWN_SALT, np.uint64(index))


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An address (int64) as a pointer, for `numba.carray`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), generate
