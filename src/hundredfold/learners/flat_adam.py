"""Adam (Kingma and Ba 2015) for weights that lie in one vector.

The same steps as torch.optim.Adam takes. Its own bookkeeping for groups, hooks and kinds of tensors
takes several times the arithmetic when a small network learns thousands of times a second.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.batch import Arrays, State
from hundredfold.core.errors import CheckpointError

MEAN_MEMORY: Final = 0.9
SQUARE_MEMORY: Final = 0.999
EPSILON: Final = 1e-8


class FlatAdam:
    """Moves `weights` along `gradient`; both are plain vectors that it is given once."""

    def __init__(self, weights: Tensor, gradient: Tensor, learning_rate: float) -> None:
        self.weights, self.gradient = weights, gradient
        self.learning_rate = learning_rate
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self.steps = 0

    def step(self) -> None:
        """One step; mean and square start at 0 and are corrected for it."""
        self.steps += 1
        self.mean.lerp_(self.gradient, 1 - MEAN_MEMORY)
        self.square.mul_(SQUARE_MEMORY)
        self.square.addcmul_(self.gradient, self.gradient, value=1 - SQUARE_MEMORY)
        size = self.square.sqrt().mul_((1 - SQUARE_MEMORY**self.steps) ** -0.5).add_(EPSILON)
        rate = self.learning_rate / (1 - MEAN_MEMORY**self.steps)
        self.weights.addcdiv_(self.mean, size, value=-rate)

    def state(self) -> Arrays:
        return {
            "steps": np.array(self.steps),
            "mean": self.mean.cpu().numpy().copy(),
            "square": self.square.cpu().numpy().copy(),
        }

    def restore(self, state: State) -> None:
        if np.shape(state["mean"]) != tuple(self.mean.shape):
            raise CheckpointError(
                f"the saved optimiser is for {np.size(state['mean'])} weights, this network has "
                f"{self.mean.numel()}; use the settings of the run that made it."
            )
        self.steps = int(state["steps"])
        self.mean.copy_(torch.from_numpy(np.array(state["mean"])))
        self.square.copy_(torch.from_numpy(np.array(state["square"])))
