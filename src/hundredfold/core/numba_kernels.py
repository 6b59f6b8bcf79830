"""How the house compiles: three decorators for Numba kernels, and the streams inside kernels.

Kept apart from `streams` because importing Numba takes a moment, and a worker process that steps
somebody's Gymnasium env has no use for it.

How this env compiles: rules that melt into one kernel, and arrays passed by address.

Two facts, measured, shape this folder. Rules are many small functions over many arrays; called as
such they cost twenty times the work they do, because arrays travel by value and count references.
So a `rule` is always inlined, and a kernel meets its arrays through a board of addresses
(`board.py`), which owns nothing and counts nothing: 50 ns per env and step instead of 800, and a
call takes four arguments instead of forty.
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


random_bits = kernel(rng.random_bits)


@kernel
def uniform(key: Any, count: Any) -> Any:
    """A number in [0, 1): draw `count` of stream `key` (both uint64), as `rng.uniforms`."""
    return (random_bits(key, count) >> rng.UNIT_SHIFT) * rng.UNIT_SCALE


@kernel
def integer(key: Any, count: Any, below: Any) -> Any:
    """A whole number in 0 .. below-1, as `rng.integers`."""
    return np.int64(uniform(key, count) * below)


@kernel
def spawned(key: Any, index: Any) -> Any:
    """The key of a child stream (uint64), as `rng.spawn`."""
    return random_bits(key ^ rng.SPAWN_SALT, np.uint64(index))


# Without the wrappers for Python and C, which nobody calls, compiling takes two thirds of the time.
ASIDE_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
RULE_OPTIONS: Final[dict[str, Any]] = {**ASIDE_OPTIONS, "forceinline": True}


def rule(function: Function) -> Function:
    """Compile a part of a kernel; it melts into the kernels that call it. Python cannot call it."""
    return cast(Function, numba.njit(**RULE_OPTIONS)(function))


def aside(function: Function) -> Function:
    """Compile a part of a kernel that stays apart and is handed a board instead of arrays.

    For what many envs do without: melted in, it slowed them by 4 % without ever being called.
    """
    return cast(Function, numba.njit(**ASIDE_OPTIONS)(function))


def entry(function: Function) -> Function:
    """Compile a kernel made of rules, cached until one of their files changes."""
    return _renewed_with_sources(kernel(function))


def _renewed_with_sources(function: Function) -> Function:
    # Numba watches only the file of the kernel itself; without this, an edited rule or table in a
    # file next to it would leave the old machine code in use.
    dispatcher = cast(Any, function)
    here, core = Path(__file__).parent, Path(__file__).parent
    sources = {*here.glob("*.py"), core / "py", core / "streams.py"}
    sources.add(Path(dispatcher.py_func.__code__.co_filename))
    stats = [source.stat() for source in sorted(sources)]
    stamp = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
    dispatcher._cache._cache_file._source_stamp = stamp
    return function


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An address (int64) as a pointer, for `numba.carray`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), generate
