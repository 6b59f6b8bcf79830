"""Action distributions: masked categorical and diagonal Gaussian.

Both sample by inverting their cumulative distribution at uniform random numbers that are passed in,
so a sample depends on nothing else. Continuous actions are sampled on the scale of
`core/action_scaling.py`, where -1 and 1 are the bounds of the env's Box; log-probabilities are
those of the sample before it is clipped to the bounds. Squashing with tanh instead learned no
better on Pendulum, and its entropy has no closed form.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from hundredfold.core.action_scaling import action_scale
from hundredfold.core.batch import ArraySpec

# Logit of a forbidden action: its probability is exactly 0 in single precision, and, unlike -inf,
# it keeps entropies and gradients finite.
FORBIDDEN_LOGIT: Final = -1e9
# Log-probabilities are clamped here before exp(): below -88, where single precision ends, torch
# takes ten times as long.
MIN_LOG_PROB: Final = -80.0
# Keeps a sampled threshold strictly below the total probability, whatever the rounding.
BELOW_ONE: Final = 1.0 - 1e-6

HALF_LOG_TAU: Final = 0.5 * math.log(2 * math.pi)
# Distance to 0 and 1 of probabilities that are turned into a normal quantile, which is infinite there;
# anything smaller is lost when it is subtracted from 1.
MIN_QUANTILE: Final = 2.0**-53


class MaskedCategorical:
    """Independent categorical distributions, one per action dimension, under a mask.

    Args:
        logits: (rows, sum of action_nvec) logits of all dimensions side by side.
        mask: The same shape, True = allowed; None allows everything.
        action_nvec: Number of actions in each dimension.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None, action_nvec: tuple[int, ...]) -> None:
        self.masks: list[Tensor | None] = [None] * len(action_nvec)
        if mask is not None:
            logits = torch.where(mask, logits, FORBIDDEN_LOGIT)
            self.masks = [*_split(mask, action_nvec)]
        self.log_probs = [part.log_softmax(dim=-1) for part in _split(logits, action_nvec)]

    def sample(self, uniforms: Tensor) -> Tensor:
        """(rows, dims) actions from (rows, dims) uniform random numbers, by inversion."""
        uniforms = uniforms.float()
        actions = []
        for dim in range(len(self.log_probs)):
            cdf = self._probs(dim).cumsum(dim=-1)
            # The first entry above the threshold rose at its own action, which is thus allowed.
            threshold = uniforms[:, dim : dim + 1] * (cdf[:, -1:] * BELOW_ONE)
            actions.append((cdf <= threshold).sum(dim=-1))
        return torch.stack(actions, dim=-1)

    def mode(self) -> Tensor:
        """(rows, dims) most likely action of each dimension; the lowest index wins a tie."""
        return torch.stack([log_probs.argmax(dim=-1) for log_probs in self.log_probs], dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """(rows,) log-probability of (rows, dims) actions."""
        total = self.log_probs[0].gather(-1, actions[:, :1]).squeeze(-1)
        for dim in range(1, len(self.log_probs)):
            total = total + self.log_probs[dim].gather(-1, actions[:, dim : dim + 1]).squeeze(-1)
        return total

    def entropy(self) -> Tensor:
        """(rows,) entropy in nats, summed over dimensions."""
        total = -(self._probs(0) * self.log_probs[0]).sum(dim=-1)
        for dim in range(1, len(self.log_probs)):
            total = total - (self._probs(dim) * self.log_probs[dim]).sum(dim=-1)
        return total

    def _probs(self, dim: int) -> Tensor:
        """(rows, actions of this dimension) probabilities, exactly 0 where forbidden."""
        mask, probs = self.masks[dim], self.log_probs[dim].clamp_min(MIN_LOG_PROB).exp()
        return probs if mask is None else torch.where(mask, probs, 0.0)


class DiagonalGaussian:
    """Independent normal distributions, one per action dimension.

    Args:
        means: (rows, dims) means.
        log_std: (dims,) log standard deviations, the same in every row.
    """

    def __init__(self, means: Tensor, log_std: Tensor) -> None:
        self.means = means
        self.log_std = log_std

    def sample(self, uniforms: Tensor) -> Tensor:
        """(rows, dims) actions from (rows, dims) uniform random numbers, by inversion."""
        quantiles = uniforms.double().clamp(MIN_QUANTILE, 1.0 - MIN_QUANTILE)
        normals: Tensor = torch.special.ndtri(quantiles).to(self.means.dtype)
        return self.means + self.log_std.exp() * normals

    def mode(self) -> Tensor:
        """(rows, dims) means."""
        return self.means

    def log_prob(self, actions: Tensor) -> Tensor:
        """(rows,) log-density of unclipped actions."""
        deviations = (actions - self.means) * (-self.log_std).exp()
        return (-0.5 * deviations.square() - self.log_std - HALF_LOG_TAU).sum(dim=-1)

    def entropy(self) -> Tensor:
        """(rows,) entropy in nats, summed over dimensions; the same in every row."""
        total = (self.log_std + 0.5 + HALF_LOG_TAU).sum()
        return total.expand(len(self.means))


ActionDistribution = MaskedCategorical | DiagonalGaussian


class ActionBounds(nn.Module):
    """Maps sampled continuous actions to the env's Box; its buffers are saved with the weights."""

    centre: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, box: ArraySpec) -> None:
        super().__init__()
        scaling = action_scale(box)
        for name in ("centre", "scale", "low", "high"):
            self.register_buffer(name, torch.from_numpy(getattr(scaling, name)))

    def forward(self, actions: Tensor) -> Tensor:
        """(rows, dims) actions in the env's units, clipped to its bounds."""
        return torch.clamp(self.centre + self.scale * actions, self.low, self.high)


def _split(whole: Tensor, action_nvec: tuple[int, ...]) -> tuple[Tensor, ...]:
    return (whole,) if len(action_nvec) == 1 else torch.split(whole, list(action_nvec), dim=-1)
