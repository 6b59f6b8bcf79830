"""Choosing among allowed actions: a categorical distribution that never picks a forbidden one.

Continuous actions: a normal distribution for each number, and the bounds they are cut off at.

A policy draws on the scale of `core/boxes.py`, where -1 and 1 are the bounds. What it drew is what
it learns from, with the log-probability of the draw itself; the env gets it cut off at the
bounds. Squashing it with a tanh instead learned no better on Pendulum, and its entropy has no
formula.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from hundredfold.core.action_scaling import action_scale
from hundredfold.core.batch import ArraySpec

# Far below any logit a network produces: its probability is exactly 0 in single precision, and,
# unlike -inf, it keeps entropies and gradients finite.
FORBIDDEN: Final = -1e9

# A log-probability that is as good as none. Torch takes ten times as long for one below -88, where
# single precision ends.
FAINT: Final = -80.0

# Keeps a draw strictly below the total probability, whatever the rounding.
BELOW_ONE: Final = 1.0 - 1e-6


class MaskedChoice:
    """Distribution over actions of one or several parts, under a mask."""

    def __init__(self, logits: Tensor, mask: Tensor | None, choices: tuple[int, ...]) -> None:
        self.masks: list[Tensor | None] = [None] * len(choices)
        if mask is not None:
            logits = torch.where(mask, logits, FORBIDDEN)
            self.masks = [*_parts(mask, choices)]
        self.log_probs = [part.log_softmax(dim=-1) for part in _parts(logits, choices)]

    def sample(self, uniforms: Tensor) -> Tensor:
        """Draw by inversion: (rows, parts) numbers in [0, 1) become (rows, parts) actions."""
        uniforms = uniforms.float()
        drawn = []
        for part in range(len(self.log_probs)):
            ladder = self._probs(part).cumsum(dim=-1)
            # The rung above the draw was stepped up to, so its action has some probability.
            mark = uniforms[:, part : part + 1] * (ladder[:, -1:] * BELOW_ONE)
            drawn.append((ladder <= mark).sum(dim=-1))
        return torch.stack(drawn, dim=-1)

    def most_likely(self) -> Tensor:
        """(rows, parts) the best action of each part; the lowest number wins a tie."""
        return torch.stack([log_probs.argmax(dim=-1) for log_probs in self.log_probs], dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """(rows,) log-probability of (rows, parts) actions."""
        total = self.log_probs[0].gather(-1, actions[:, :1]).squeeze(-1)
        for part in range(1, len(self.log_probs)):
            total = total + self.log_probs[part].gather(-1, actions[:, part : part + 1]).squeeze(-1)
        return total

    def entropy(self) -> Tensor:
        """(rows,) summed over parts."""
        total = -(self._probs(0) * self.log_probs[0]).sum(dim=-1)
        for part in range(1, len(self.log_probs)):
            total = total - (self._probs(part) * self.log_probs[part]).sum(dim=-1)
        return total

    def _probs(self, part: int) -> Tensor:
        """(rows, choices of a part) what is forbidden has none at all."""
        mask, probs = self.masks[part], self.log_probs[part].clamp_min(FAINT).exp()
        return probs if mask is None else torch.where(mask, probs, 0.0)


def _parts(whole: Tensor, choices: tuple[int, ...]) -> tuple[Tensor, ...]:
    return (whole,) if len(choices) == 1 else torch.split(whole, list(choices), dim=-1)


HALF_LOG_TAU: Final = 0.5 * math.log(2 * math.pi)
# The smallest and largest chance that is turned into a normal number: the ends are infinite.
LEAST_CHANCE: Final = 2.0**-54


class GaussianChoice:
    """Independent normal distributions, one per number of an action."""

    def __init__(self, means: Tensor, log_spreads: Tensor) -> None:
        self.means = means  # (rows, numbers)
        self.log_spreads = log_spreads  # (numbers,) the same wherever the policy stands

    def sample(self, uniforms: Tensor) -> Tensor:
        """Draw by inversion: (rows, numbers) in [0, 1) become (rows, numbers) of an action."""
        chances = uniforms.double().clamp(LEAST_CHANCE, 1.0 - LEAST_CHANCE)
        normals: Tensor = torch.special.ndtri(chances).to(self.means.dtype)
        return self.means + self.log_spreads.exp() * normals

    def most_likely(self) -> Tensor:
        """(rows, numbers)."""
        return self.means

    def log_prob(self, drawn: Tensor) -> Tensor:
        """(rows,) log-density of what was drawn, before any bound."""
        away = (drawn - self.means) * (-self.log_spreads).exp()
        return (-0.5 * away.square() - self.log_spreads - HALF_LOG_TAU).sum(dim=-1)

    def entropy(self) -> Tensor:
        """(rows,) in nats, summed over numbers; the same in every row."""
        total = (self.log_spreads + 0.5 + HALF_LOG_TAU).sum()
        return total.expand(len(self.means))


class Bounds(nn.Module):
    """From the policy's own scale to the box of an env. It learns nothing, but travels along."""

    centre: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, box: ArraySpec) -> None:
        super().__init__()
        place = action_scale(box)
        for name in ("centre", "scale", "low", "high"):
            self.register_buffer(name, torch.from_numpy(getattr(place, name)))

    def forward(self, drawn: Tensor) -> Tensor:
        """(rows, numbers) as the env takes them."""
        return torch.clamp(self.centre + self.scale * drawn, self.low, self.high)
