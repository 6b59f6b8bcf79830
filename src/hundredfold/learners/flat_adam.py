"""Adam (Kingma and Ba 2015) for weights that lie in one vector.

The arithmetic is torch's own. What its optimiser class does around it, for groups, hooks and kinds
of tensors, takes as long again when a small network learns thousands of times a second.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from hundredfold.core.batch import Arrays, State
from hundredfold.core.errors import CheckpointError


class FlatAdam:
    """Moves `weights` along `gradient`; both are plain vectors that it is given once."""

    def __init__(self, weights: Tensor, gradient: Tensor, learning_rate: float) -> None:
        self.weights, self.gradient = weights, gradient
        self.learning_rate = learning_rate
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self.steps = torch.zeros((), device=weights.device)

    def step(self) -> None:
        adam(
            [self.weights],
            [self.gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
            fused=True,
        )

    def state(self) -> Arrays:
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._moments().items()}

    def restore(self, state: State) -> None:
        if np.shape(state["mean"]) != tuple(self.mean.shape):
            raise CheckpointError(
                f"the saved optimiser is for {np.size(state['mean'])} weights, this network has "
                f"{self.mean.numel()}; use the settings of the run that made it."
            )
        for name, tensor in self._moments().items():
            tensor.copy_(torch.from_numpy(np.array(state[name])))

    def _moments(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "square": self.square, "steps": self.steps}
