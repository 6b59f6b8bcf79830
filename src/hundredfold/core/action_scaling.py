"""Scaling of continuous actions, and actions from uniform random numbers.

Policies work on a normalised scale on which -1 and 1 are the bounds of the action space. Where a
dimension lacks a bound it is not scaled: 1 is a step of 1 in the env.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, ArraySpec, BoolArray, EnvSpec, Float32Array, FloatArray, IntArray

# Some envs declare the largest float where they mean that there is no bound.
UNBOUNDED: Final = 1e18


@dataclass(frozen=True, slots=True)
class ActionScale:
    """Affine map from normalised to env actions: `clip(centre + scale * x, low, high)`."""

    centre: Float32Array  # (size,)
    scale: Float32Array  # (size,)
    low: Float32Array  # (size,) -inf where there is no bound
    high: Float32Array  # (size,)


def action_scale(box: ArraySpec) -> ActionScale:
    """The scale of a continuous action space, its bounds rounded inwards to float32."""
    low = np.where(flat_bound(box.low, box) < -UNBOUNDED, -np.inf, flat_bound(box.low, box))
    high = np.where(flat_bound(box.high, box) > UNBOUNDED, np.inf, flat_bound(box.high, box))
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    # With one bound only, the centre lies 1 away from it, so that both directions can be tried.
    centre = np.where(has_low, np.where(has_low, low, 0.0) + 1.0, 0.0)
    centre = np.where(has_high, np.where(has_high, high, 0.0) - 1.0, centre)
    scale = np.ones(box.size)
    both = has_low & has_high
    centre[both] = (low[both] + high[both]) / 2
    scale[both] = (high[both] - low[both]) / 2
    return ActionScale(
        centre.astype(np.float32),
        scale.astype(np.float32),
        _rounded(low, towards=np.inf),
        _rounded(high, towards=-np.inf),
    )


def uniform_actions(box: ArraySpec, uniforms: FloatArray) -> Array:
    """Continuous actions, uniform within their bounds.

    Args:
        box: the action space; where a dimension lacks a bound, within 1 of its centre.
        uniforms: (rows, size) numbers in [0, 1).
    Returns:
        (rows, *box.shape) float32 actions.
    """
    scale = action_scale(box)
    actions = scale.centre + scale.scale * (2.0 * uniforms - 1.0)
    clipped = np.clip(actions.astype(np.float32), scale.low, scale.high)
    return clipped.reshape(len(uniforms), *box.shape)


def random_actions(spec: EnvSpec, uniforms: FloatArray, mask: BoolArray | None = None) -> Array:
    """Random actions, every allowed one equally likely.

    Args:
        spec: the env's spec.
        uniforms: (rows, num_logits) numbers in [0, 1).
        mask: (rows, num_logits) True where an action is allowed; discrete actions only.
    Returns:
        (rows, *action_shape) actions.
    """
    if spec.continuous_action is not None:
        return uniform_actions(spec.continuous_action, uniforms)
    return argmax_actions(spec, uniforms if mask is None else np.where(mask, uniforms, -1.0))


def argmax_actions(spec: EnvSpec, scores: Array) -> IntArray:
    """(rows, *action_shape) the discrete actions of the highest of (rows, num_logits) scores."""
    by_dim = np.split(scores, np.cumsum(spec.action_nvec)[:-1], axis=1)
    actions = np.stack([dim_scores.argmax(axis=1) for dim_scores in by_dim], axis=1)
    return actions.reshape(len(scores), *spec.action_shape)


def flat_bound(bound: float | tuple[float, ...], box: ArraySpec) -> FloatArray:
    """(size,) the bound of each flat entry."""
    return np.broadcast_to(np.asarray(bound, np.float64), (box.size,))


def _rounded(bound: FloatArray, towards: float) -> Float32Array:
    """As float32, rounded inwards where float32 cannot represent the bound."""
    near = bound.astype(np.float32)
    outside = near < bound if towards > 0 else near > bound
    return np.where(outside, np.nextafter(near, np.float32(towards)), near)
