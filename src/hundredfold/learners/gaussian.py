"""Continuous actions: a normal distribution for each number, and the bounds they are cut off at.

A policy draws on the scale of `core/boxes.py`, where -1 and 1 are the bounds. What it drew is what
it learns from, with the log-probability of the draw itself; the world gets it cut off at the
bounds. Squashing it with a tanh instead learned no better on Pendulum, and its entropy has no
formula.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from hundredfold.core.batch import ArraySpec
from hundredfold.core.boxes import box_scale

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
    """From the policy's own scale to the box of a world. It learns nothing, but travels along."""

    centre: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, box: ArraySpec) -> None:
        super().__init__()
        place = box_scale(box)
        for name in ("centre", "scale", "low", "high"):
            self.register_buffer(name, torch.from_numpy(getattr(place, name)))

    def forward(self, drawn: Tensor) -> Tensor:
        """(rows, numbers) as the world takes them."""
        return torch.clamp(self.centre + self.scale * drawn, self.low, self.high)
