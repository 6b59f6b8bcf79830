"""Numba decorators of the package, and the random number functions of `core.rng` for kernels.

Separate from `core.rng` because importing Numba takes a moment, and a worker process that steps a
Gymnasium env does not need it.

Passing many arrays on costs more than most small functions do: array structs travel by value and
their references are counted. Three decorators avoid that: `inlined` removes the call, `outlined`
functions take addresses (see `pointer`) instead of arrays, and `noalloc_kernel` switches reference
counting off. In the step of `cage2` this took an env from 800 ns to 50 ns.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba.core import config as numba_config
from numba.core import cpu, types
from numba.extending import intrinsic

from hundredfold.core import rng

Function = TypeVar("Function", bound=Callable[..., Any])

# Undocumented options of `numba.njit`, which `tests/core/test_numba_kernels.py` checks. An option
# that Numba no longer has is left out: kernels get slower, not wrong.
NUMBA_FLAGS: Final = set(dir(getattr(cpu, "CPUTargetOptions", None)))
PRIVATE_FLAGS: Final = {"_nrt", "no_cpython_wrapper", "no_cfunc_wrapper", "forceinline"}
# For functions that only other kernels call: compiling the wrappers takes a third of the time.
NO_WRAPPERS: Final[dict[str, Any]] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Reference counting off, which is safe only in functions that allocate nothing.
NO_REFCOUNTS: Final[dict[str, Any]] = {"_nrt": False}

# An import of a module of this package, with the names it imports.
IMPORT: Final = re.compile(r"^\s*(?:from|import) (hundredfold[\w.]*)(?: import (\([^)]*\)|[^\n]*))?", re.MULTILINE)
KEPT_CACHES: Final = 3

_cache_dir_lock = Lock()


def kernel(function: Function) -> Function:
    """Compile for one thread: cached on disk, the GIL released while it runs."""
    return _njit(function, cache=True)


def noalloc_kernel(function: Function, **flags: Any) -> Function:
    """Compile a function that allocates nothing and is called by other kernels only.

    Without reference counting, which would take a third of the time of an inner loop.

    Args:
        function: must not create arrays or other objects that Numba counts references of.
        flags: further options of `numba.njit`.
    """
    return _njit(function, cache=True, **NO_REFCOUNTS, **NO_WRAPPERS, **flags)


def fast_sum_kernel(function: Function, **flags: Any) -> Function:
    """A `noalloc_kernel` whose sums may be reordered by the compiler, so that they use SIMD.

    The order is fixed when it is compiled: the same machine gives the same sums every time.
    """
    return noalloc_kernel(function, fastmath={"reassoc", "nsz", "contract"}, **flags)


# Options of functions that are inlined into every kernel that calls them.
INLINED: Final[Any] = {
    name: value for name, value in {"forceinline": True, **NO_WRAPPERS}.items() if name in NUMBA_FLAGS
}


def inlined(function: Function) -> Function:
    """Compile a function that is inlined into every kernel that calls it."""
    return _njit(function, **INLINED)


def outlined(function: Function) -> Function:
    """Compile a function that stays a call of its own and is handed addresses instead of arrays.

    For rare branches: inlined, they slow a kernel down (by 4 % in `cage2`) without being taken.
    """
    return _njit(function, **NO_WRAPPERS)


def _njit(function: Function, **flags: Any) -> Function:
    """`numba.njit` with the package's own cache directory; other kernels are not affected."""
    refused = PRIVATE_FLAGS - NUMBA_FLAGS
    options = {name: value for name, value in flags.items() if name not in refused}
    # Numba picks the cache directory of a function when it is decorated, from this global.
    settings: Any = numba_config
    with _cache_dir_lock:
        user_dir = settings.CACHE_DIR
        try:
            settings.CACHE_DIR = str(cache_dir(Path(inspect.getfile(function)), user_dir))
            return cast(Function, numba.njit(nogil=True, **options)(function))
        finally:
            settings.CACHE_DIR = user_dir


@cache
def cache_dir(source: Path, user_dir: str = "") -> Path:
    """The directory of the compiled kernels of one source file.

    Named after a hash of the file and of all files of the package that it imports, directly or not:
    Numba checks only the file of a kernel itself, so that a function or table changed in another
    file would leave old machine code in use. When a new directory is created, all but the newest
    ones of the same source are removed.

    Args:
        source: file in which the kernels are defined.
        user_dir: value of `NUMBA_CACHE_DIR`; default: `__pycache__` of the package, otherwise
            Numba's cache directory of the user, otherwise a temporary directory: the first that is
            writable.
    """
    base = _base_dir(user_dir)
    digest = hashlib.sha256()
    for used in sorted(_used_sources(source)):
        digest.update(used.name.encode() + b"\0" + used.read_bytes() + b"\0")
    name = f"hundredfold-{source.parent.name}.{source.stem}"
    path = base / f"{name}-{digest.hexdigest()[:16]}"
    if not path.exists() and _is_writable(path):
        with suppress(OSError):  # another process may be doing the same
            caches = sorted(base.glob(f"{name}-*"), key=lambda found: found.stat().st_mtime)
            for outdated in caches[:-KEPT_CACHES]:
                shutil.rmtree(outdated, ignore_errors=True)
    return path


def _used_sources(source: Path) -> set[Path]:
    """The file and all files of this package that it imports, directly or not."""
    found, pending = {source}, [source]
    while pending:
        new = _imported_sources(pending.pop()) - found
        found |= new
        pending += new
    return found


@cache
def _imported_sources(source: Path) -> frozenset[Path]:
    """Files of this package that a file imports, read from its text: importing may be expensive.

    A module's data may be in a file of the same name that ends in `.toml`.
    """
    package = Path(__file__).parents[1]
    modules: set[str] = set()
    for module, names in IMPORT.findall(source.read_text()):
        modules |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
    paths = [package.parent.joinpath(*module.split(".")) for module in modules]
    return frozenset(
        file for path in paths for suffix in (".py", ".toml") if (file := path.with_suffix(suffix)).is_file()
    )


@cache
def _base_dir(user_dir: str) -> Path:
    package = Path(__file__).parents[1]
    return _first_writable([Path(user_dir)] if user_dir else [package / "__pycache__", _numba_user_dir()])


def _numba_user_dir() -> Path:
    from numba.misc.appdirs import AppDirs

    directories: Any = AppDirs
    return Path(directories(appname="numba", appauthor=False).user_cache_dir)


def _first_writable(directories: list[Path]) -> Path:
    """The first of these directories that is writable, or a temporary one, with a warning."""
    for directory in directories:
        if _is_writable(directory):
            return directory
    temporary = _private_temporary_dir()
    if parent_process() is None:  # workers use the same directory
        warnings.warn(
            f"cannot write to {' or '.join(map(str, directories))}: compiled kernels are cached in {temporary}, and "
            "compiled again (about a minute) once it is deleted. Set NUMBA_CACHE_DIR to a writable directory that "
            "lasts.",
            stacklevel=2,
        )
    return temporary


def _private_temporary_dir() -> Path:
    """A directory below the temporary one that only this user can write to.

    Numba unpickles what it finds there, so a directory prepared by another user is not used.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = Path(tempfile.gettempdir()) / f"hundredfold-kernels-{user}"
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        is_private = found.st_uid == user and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if stat.S_ISDIR(found.st_mode) and (is_private or os.name == "nt"):
            return path
    return Path(tempfile.mkdtemp(prefix="hundredfold-kernels-"))


def _is_writable(path: Path) -> bool:
    """Whether files can be created in this directory, which is created if needed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return False
    return True


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
