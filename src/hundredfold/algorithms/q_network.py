"""A network that values every action, and its gradients worked out by hand.

On networks of this size autograd's bookkeeping takes longer than the arithmetic. A stack of linear
layers needs none of it: its gradients are two products per layer, written into one long vector that
the optimiser, the norm and the target network see as a single tensor.

Adam (Kingma and Ba 2015) for weights that lie in one vector.

The arithmetic is torch's own. What its optimiser class does around it, for groups, hooks and kinds
of tensors, takes as long again when a small network learns thousands of times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.adam import adam

from hundredfold.algorithms.actor_critic import Activation, Inputs, NetworkSettings, stack_of
from hundredfold.core.batch import Arrays, EnvSpec, State
from hundredfold.core.errors import CheckpointError

aten = torch.ops.aten

BENDS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "relu": torch.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
# From the gradient of an activation's output to that of its input, given its input and output.
SLOPES: Final[dict[Activation, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "relu": lambda gradient, before, after: aten.threshold_backward(gradient, after, 0),
    "silu": lambda gradient, before, after: aten.silu_backward(gradient, before),
    "tanh": lambda gradient, before, after: aten.tanh_backward(gradient, after),
}


class QNetwork(nn.Module):
    """What each action is worth: observations in, (rows, actions) out.

    With `dueling` (Wang et al. 2016) the head says what the situation is worth and how much better
    each action is than their average; the first output is the situation's.
    """

    def __init__(self, spec: EnvSpec, settings: NetworkSettings, dueling: bool) -> None:
        super().__init__()
        self.dueling = dueling
        self.num_actions = spec.num_logits
        self.inputs = Inputs(spec.observation, settings.normalise_observations)
        widths = (self.inputs.width, *settings.hidden)
        # A small head: nothing looks good before anything was learned.
        self.stack = stack_of(widths, self.num_actions + dueling, settings.activation, gain=0.01)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self.values(self.inputs(observation))

    def values(self, rows: Tensor) -> Tensor:
        """The same for inputs that are laid side by side already."""
        return self.of_outputs(self.stack(rows))

    def of_outputs(self, outputs: Tensor) -> Tensor:
        """Action values from what the stack gives."""
        if not self.dueling:
            return outputs
        ahead = outputs[:, 1:]
        return outputs[:, :1] + ahead - ahead.mean(dim=1, keepdim=True)

    def to_outputs(self, gradient: Tensor) -> Tensor:
        """From the gradient of the action values to that of the stack's outputs."""
        if not self.dueling:
            return gradient
        whole = gradient.sum(dim=1, keepdim=True)
        return torch.cat([whole, gradient - whole / gradient.shape[1]], dim=1)


class HandGradients:
    """The gradients of a network's stack. Its weights move into one vector, `weights`.

    `forward` and `backward` by turns; `backward` writes into `gradient`. Both vectors are plain
    tensors, of which the layers' own parameters and gradients are views.
    """

    def __init__(self, network: QNetwork, activation: Activation) -> None:
        assert not list(network.inputs.parameters()), "inputs that learn need autograd"
        self.network = network
        self.weights, self.gradient = flattened(network)
        self.bend, self.slope = BENDS[activation], SLOPES[activation]
        self.layers = [
            Layer(part.weight.data, part.bias.data, part.weight.grad, part.bias.grad)
            for part in network.stack
            if isinstance(part, nn.Linear)
            and part.weight.grad is not None
            and part.bias.grad is not None
        ]
        self.befores: list[Tensor] = []
        self.afters: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        """Action values of (rows, width) inputs."""
        self.befores, self.afters = [], [rows]
        for layer in self.layers[:-1]:
            before = F.linear(self.afters[-1], layer.weight, layer.bias)
            self.befores.append(before)
            self.afters.append(self.bend(before))
        last = self.layers[-1]
        return self.network.of_outputs(F.linear(self.afters[-1], last.weight, last.bias))

    def backward(self, slopes: Tensor) -> None:
        """Given what the loss makes of the action values of the last `forward`, or its first rows.

        Rows behind them were asked for, but are not learned from.
        """
        rows = len(slopes)
        slopes = self.network.to_outputs(slopes)
        for number in range(len(self.layers) - 1, -1, -1):
            layer, after = self.layers[number], self.afters[number][:rows]
            torch.mm(slopes.t(), after, out=layer.weight_gradient)
            torch.sum(slopes, dim=0, out=layer.bias_gradient)
            if number:
                before = self.befores[number - 1][:rows]
                slopes = self.slope(slopes @ layer.weight, before, after)


class Layer(NamedTuple):
    """A linear layer and where its gradients go."""

    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor


def flattened(network: nn.Module) -> tuple[Tensor, Tensor]:
    """All parameters in one vector and their gradients in another; the network's own are views."""
    parameters = list(network.parameters())
    weights = torch.cat([parameter.data.reshape(-1) for parameter in parameters])
    gradient = torch.zeros_like(weights)
    first = 0
    for parameter in parameters:
        cut = slice(first, first + parameter.numel())
        parameter.data = weights[cut].view_as(parameter)
        parameter.grad = gradient[cut].view_as(parameter)
        first = cut.stop
    return weights, gradient


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
