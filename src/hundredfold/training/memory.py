"""Memory that learning frees and asks for again thousands of times."""

from __future__ import annotations

import ctypes
from typing import Final

# Options of glibc's `mallopt`.
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
# Larger pieces come from the system one by one and go back to it at once. Before its version 2.35
# glibc takes no more than the second.
LARGE_BYTES: Final = (64 * 2**20, 32 * 2**20)
# So much may lie free before it goes back.
KEPT_BYTES: Final = 512 * 2**20


def keep_freed_memory() -> bool:
    """Let this process keep what it frees; False where the C library knows no such thing.

    Every gradient step frees some megabytes, which the C library would give back to the system and
    get again for the next, page by page: an eighth of the time of a small network's update.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    large = any(library.mallopt(MMAP_THRESHOLD, size) for size in LARGE_BYTES)
    return bool(library.mallopt(TRIM_THRESHOLD, KEPT_BYTES)) and large
