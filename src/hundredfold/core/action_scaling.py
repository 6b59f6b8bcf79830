"""Continuous actions: the scale on which a box is played, whatever its bounds.

Policies and random players think in numbers around 0, of which -1 and 1 stand for the bounds. Where
a side has no bound, a step of 1 is a step of 1 in the env.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hundredfold.core.batch import Array, ArraySpec, FloatArray

Floats = NDArray[np.float32]

# Some envs write the largest number there is where they mean that there is no bound.
AS_GOOD_AS_NONE: Final = 1e18


@dataclass(frozen=True, slots=True)
class BoxScale:
    """Where each flat entry of a box lies: an action is `centre + scale * number`, cut off."""

    centre: Floats  # (size,)
    scale: Floats  # (size,)
    low: Floats  # (size,) -inf where there is no bound
    high: Floats  # (size,)


def box_scale(box: ArraySpec) -> BoxScale:
    """The scale of a box; its bounds rounded inwards to what float32 can say."""
    low = np.where(flat_bound(box.low, box) < -AS_GOOD_AS_NONE, -np.inf, flat_bound(box.low, box))
    high = np.where(flat_bound(box.high, box) > AS_GOOD_AS_NONE, np.inf, flat_bound(box.high, box))
    is_low, is_high = np.isfinite(low), np.isfinite(high)
    # One bound alone: begin a step away from it, where both sides can be tried.
    centre = np.where(is_low, np.where(is_low, low, 0.0) + 1.0, 0.0)
    centre = np.where(is_high, np.where(is_high, high, 0.0) - 1.0, centre)
    scale = np.ones(box.size)
    both = is_low & is_high
    centre[both] = (low[both] + high[both]) / 2
    scale[both] = (high[both] - low[both]) / 2
    return BoxScale(
        centre.astype(np.float32),
        scale.astype(np.float32),
        _rounded(low, towards=np.inf),
        _rounded(high, towards=-np.inf),
    )


def spread_over(box: ArraySpec, uniforms: FloatArray) -> Array:
    """(rows, *shape) actions from (rows, size) numbers in [0, 1): anywhere within the bounds."""
    place = box_scale(box)
    actions = place.centre + place.scale * (2.0 * uniforms - 1.0)
    kept = np.clip(actions.astype(np.float32), place.low, place.high)
    return kept.reshape(len(uniforms), *box.shape)


def flat_bound(bound: float | tuple[float, ...], box: ArraySpec) -> FloatArray:
    """(size,) the bound of each flat entry."""
    return np.broadcast_to(np.asarray(bound, np.float64), (box.size,))


def _rounded(bound: FloatArray, towards: float) -> Floats:
    """As float32, on the inner side of a bound that float32 cannot say."""
    near = bound.astype(np.float32)
    outside = near < bound if towards > 0 else near > bound
    return np.where(outside, np.nextafter(near, np.float32(towards)), near)
