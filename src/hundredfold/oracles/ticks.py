"""Minutes as whole ticks of a microsecond, so that sums are exact and comparisons final.

Durations are rounded up and deadlines down: a plan that keeps its promises in ticks keeps them in
minutes. Tables of whole seconds or milliseconds lose nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray

TICKS_PER_MINUTE: Final = 60_000_000
TICKS_PER_MILLISECOND: Final = TICKS_PER_MINUTE // 60_000
# Stands for "no limit": beyond any day, and sums of a few of them still fit into 64 bits.
FOREVER: Final = 2**60
# Minutes that are whole ticks in decimals are rarely so in binary: forgive a thousandth of a tick.
_FORGIVEN: Final = 1e-3


def ticks_up(minutes: Any) -> IntArray:
    """Whole ticks, rounded up; infinite becomes FOREVER."""
    scaled = np.asarray(minutes, np.float64) * TICKS_PER_MINUTE
    return np.ceil(np.minimum(scaled, FOREVER) - _FORGIVEN).astype(np.int64)


def ticks_down(minutes: Any) -> IntArray:
    """Whole ticks, rounded down; infinite becomes FOREVER."""
    scaled = np.asarray(minutes, np.float64) * TICKS_PER_MINUTE
    return np.floor(np.minimum(scaled, FOREVER) + _FORGIVEN).astype(np.int64)


def to_minutes(ticks: IntArray) -> FloatArray:
    """Minutes of whole ticks."""
    return np.asarray(ticks / TICKS_PER_MINUTE, np.float64)


def milliseconds_up(ticks: Any) -> Any:
    """Whole milliseconds, rounded up: what other people's solvers count in."""
    return -(-ticks // TICKS_PER_MILLISECOND)


def milliseconds_down(ticks: Any) -> Any:
    """Whole milliseconds, rounded down."""
    return ticks // TICKS_PER_MILLISECOND
