"""Q-network with gradients and Adam on flat parameter vectors.

On networks of this size autograd's bookkeeping takes longer than the arithmetic. A stack of linear
layers does not need it: its gradients are two matrix products per layer, written into one flat
vector that optimiser, gradient norm and target network read as a single tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.adam import adam

from hundredfold.algorithms.actor_critic import Activation, InputLayer, NetworkSettings, multilayer_perceptron
from hundredfold.core.batch import Arrays, EnvSpec, State
from hundredfold.core.errors import CheckpointError

aten = torch.ops.aten

ACTIVATION_FUNCTIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "relu": torch.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
# Gradient with respect to an activation's input, from that of its output, its input and output.
ACTIVATION_BACKWARD: Final[dict[Activation, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "relu": lambda gradient, before, after: aten.threshold_backward(gradient, after, 0),
    "silu": lambda gradient, before, after: aten.silu_backward(gradient, before),
    "tanh": lambda gradient, before, after: aten.tanh_backward(gradient, after),
}


class QNetwork(nn.Module):
    """Action values Q(s, a): observations in, (rows, actions) out.

    Args:
        spec: Observation and action spec of the env.
        settings: Architecture.
        dueling: Predict a state value (first output) and advantages (Wang et al. 2016).
    """

    def __init__(self, spec: EnvSpec, settings: NetworkSettings, dueling: bool) -> None:
        super().__init__()
        self.dueling = dueling
        self.num_actions = spec.num_logits
        self.inputs = InputLayer(spec.observation, settings.normalise_observations)
        widths = (self.inputs.width, *settings.hidden_sizes)
        # A small gain of the head: all actions start nearly equal.
        self.layers = multilayer_perceptron(widths, self.num_actions + dueling, settings.activation, gain=0.01)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self.values(self.inputs(observation))

    def values(self, inputs: Tensor) -> Tensor:
        """(rows, actions) action values of flattened inputs."""
        return self.combine_streams(self.layers(inputs))

    def combine_streams(self, outputs: Tensor) -> Tensor:
        """Action values from the outputs of the last layer."""
        if not self.dueling:
            return outputs
        advantages = outputs[:, 1:]
        return outputs[:, :1] + advantages - advantages.mean(dim=1, keepdim=True)

    def outputs_gradient(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the last layer's outputs, from that of the action values."""
        if not self.dueling:
            return gradient
        state_value = gradient.sum(dim=1, keepdim=True)
        return torch.cat([state_value, gradient - state_value / gradient.shape[1]], dim=1)


class ManualGradients:
    """Forward and backward passes of a Q-network without autograd.

    Moves the network's parameters into one vector, `weights`; `backward` writes into `gradient`.
    Both are plain tensors of which the layers' own parameters and gradients are views.
    """

    def __init__(self, network: QNetwork, activation: Activation) -> None:
        assert not list(network.inputs.parameters()), "trainable inputs need autograd"
        self.network = network
        self.weights, self.gradient = flatten_parameters(network)
        self.activation = ACTIVATION_FUNCTIONS[activation]
        self.activation_backward = ACTIVATION_BACKWARD[activation]
        self.layers = [
            LinearViews(layer.weight.data, layer.bias.data, layer.weight.grad, layer.bias.grad)
            for layer in network.layers
            if isinstance(layer, nn.Linear) and layer.weight.grad is not None and layer.bias.grad is not None
        ]
        self.preactivations: list[Tensor] = []
        self.activations: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, actions) action values of (rows, width) inputs."""
        self.preactivations, self.activations = [], [inputs]
        for layer in self.layers[:-1]:
            before = F.linear(self.activations[-1], layer.weight, layer.bias)
            self.preactivations.append(before)
            self.activations.append(self.activation(before))
        last = self.layers[-1]
        outputs = F.linear(self.activations[-1], last.weight, last.bias)
        return self.network.combine_streams(outputs)

    def backward(self, gradient: Tensor) -> None:
        """Backpropagate the loss gradient of the action values of the last `forward`.

        Args:
            gradient: (rows, actions) gradient of the first rows of that pass; later rows are not
                learned from.
        """
        num_rows = len(gradient)
        gradient = self.network.outputs_gradient(gradient)
        for number in range(len(self.layers) - 1, -1, -1):
            layer, after = self.layers[number], self.activations[number][:num_rows]
            torch.mm(gradient.t(), after, out=layer.weight_gradient)
            torch.sum(gradient, dim=0, out=layer.bias_gradient)
            if number:
                before = self.preactivations[number - 1][:num_rows]
                gradient = self.activation_backward(gradient @ layer.weight, before, after)


class LinearViews(NamedTuple):
    """Views of a linear layer's parameters and of their gradients."""

    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor


def flatten_parameters(network: nn.Module) -> tuple[Tensor, Tensor]:
    """All parameters in one vector and their gradients in another; the network's own are views."""
    parameters = list(network.parameters())
    weights = torch.cat([parameter.data.reshape(-1) for parameter in parameters])
    gradient = torch.zeros_like(weights)
    first = 0
    for parameter in parameters:
        entries = slice(first, first + parameter.numel())
        parameter.data = weights[entries].view_as(parameter)
        parameter.grad = gradient[entries].view_as(parameter)
        first = entries.stop
    return weights, gradient


class FlatAdam:
    """Adam (Kingma and Ba 2015) for one flat parameter vector.

    The arithmetic is torch's own. What its optimiser class does around it, for groups, hooks and
    kinds of tensors, takes as long again when a small network is updated thousands of times a
    second.

    Args:
        weights: Parameter vector, updated in place.
        gradient: Its gradient, read at each step.
        learning_rate: Step size.
    """

    def __init__(self, weights: Tensor, gradient: Tensor, learning_rate: float) -> None:
        self.weights, self.gradient = weights, gradient
        self.learning_rate = learning_rate
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self.steps = torch.zeros((), device=weights.device)

    def step(self) -> None:
        """Update the weights along the present gradient."""
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
