"""Q-network with gradients and Adam on flat parameter vectors.

On networks of this size autograd's bookkeeping takes longer than the arithmetic. A stack of linear
layers, with or without layer normalisation, does not need it: its gradients are two matrix products
per layer, written into one flat vector that optimiser, gradient norm and target network read as a
single tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.adam import adam

from hundredfold.algorithms.actor_critic import (
    Activation,
    InputLayer,
    NetworkSettings,
    multilayer_perceptron,
    rescale_head,
)
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
        layer_norm: Layer normalisation (Ba et al. 2016) in every hidden layer.
        value_norm: The layers predict normalised values; `value_mean` and `value_std` convert them
            to the env's units (PopArt, van Hasselt et al. 2016).
    """

    value_mean: Tensor
    value_std: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        settings: NetworkSettings,
        dueling: bool,
        layer_norm: bool = False,
        value_norm: bool = False,
    ) -> None:
        super().__init__()
        self.value_norm = value_norm
        if value_norm:
            self.register_buffer("value_mean", torch.zeros(()))
            self.register_buffer("value_std", torch.ones(()))
        self.dueling = dueling
        self.num_actions = spec.num_logits
        self.inputs = InputLayer(spec.observation, settings.normalise_observations)
        widths = (self.inputs.width, *settings.hidden_sizes)
        # A small gain of the head: all actions start nearly equal.
        self.layers = multilayer_perceptron(
            widths, self.num_actions + dueling, settings.activation, gain=0.01, layer_norm=layer_norm
        )

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self.values(self.inputs(observation))

    def values(self, inputs: Tensor) -> Tensor:
        """(rows, actions) action values of flattened inputs, in the env's units."""
        outputs = inputs
        for layer in self.layers:
            # Without the hooks of a module's call, which take as long as the arithmetic on few rows.
            outputs = layer.forward(outputs)
        values = self.combine_streams(outputs)
        return values * self.value_std + self.value_mean if self.value_norm else values

    @torch.no_grad()
    def rescale_values(self, mean: float, std: float, keep_values: bool = True) -> None:
        """Change the normalisation of value targets without changing values.

        Args:
            mean: New mean of value targets.
            std: New standard deviation of value targets.
            keep_values: Adapt the head so that values in the env's units stay the same; False for a
                network that has learned nothing yet.
        """
        head = self.layers[-1]
        assert isinstance(head, nn.Linear)
        assert not self.dueling
        if keep_values:
            rescale_head(head, float(self.value_mean), float(self.value_std), mean, std)
        self.value_mean.fill_(mean)
        self.value_std.fill_(std)

    def combine_streams(self, outputs: Tensor) -> Tensor:
        """Action values, normalised with `value_norm`, from the outputs of the last layer."""
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
        self.layers = [_linear_views(layer) for layer in network.layers if isinstance(layer, nn.Linear)]
        # Of every hidden layer, or of none.
        self.norms = [_norm_views(layer) for layer in network.layers if isinstance(layer, nn.LayerNorm)]
        self.normalised: list[NormedRows] = []
        self.preactivations: list[Tensor] = []
        self.activations: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, actions) action values, normalised with `value_norm`, of (rows, width) inputs."""
        self.normalised, self.preactivations, self.activations = [], [], [inputs]
        for number, layer in enumerate(self.layers[:-1]):
            before = F.linear(self.activations[-1], layer.weight, layer.bias)
            if self.norms:
                norm, rows = self.norms[number], before
                before, mean, rstd = torch.native_layer_norm(rows, norm.shape, norm.weight, norm.bias, norm.epsilon)
                self.normalised.append(NormedRows(rows, mean, rstd))
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
                if self.norms:
                    gradient = self._norm_backward(gradient, number - 1)

    def _norm_backward(self, gradient: Tensor, number: int) -> Tensor:
        """Gradient with respect to the input of a layer normalisation; fills in that of its parameters."""
        norm, count = self.norms[number], len(gradient)
        rows, mean, rstd = (part[:count] for part in self.normalised[number])
        gradient, weight_gradient, bias_gradient = aten.native_layer_norm_backward(
            gradient, rows, norm.shape, mean, rstd, norm.weight, norm.bias, (True, True, True)
        )
        norm.weight_gradient.copy_(weight_gradient)
        norm.bias_gradient.copy_(bias_gradient)
        return gradient


class LinearViews(NamedTuple):
    """Views of a linear layer's parameters and of their gradients."""

    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor


class NormViews(NamedTuple):
    """Views of a layer normalisation's parameters and of their gradients."""

    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor
    shape: tuple[int, ...]
    epsilon: float


class NormedRows(NamedTuple):
    """Inputs of a layer normalisation and their statistics."""

    rows: Tensor  # (rows, width)
    mean: Tensor  # (rows, 1)
    rstd: Tensor  # (rows, 1) reciprocal of the standard deviation


def _linear_views(layer: nn.Linear) -> LinearViews:
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return LinearViews(layer.weight.data, layer.bias.data, layer.weight.grad, layer.bias.grad)


def _norm_views(layer: nn.LayerNorm) -> NormViews:
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return NormViews(
        layer.weight.data, layer.bias.data, layer.weight.grad, layer.bias.grad, layer.normalized_shape, layer.eps
    )


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

    def clipped_step(self, max_norm: float) -> bool:
        """A step with the gradient's norm clipped; False, without a step, if the gradient is not finite."""
        norm = float(torch.linalg.vector_norm(self.gradient))
        if not math.isfinite(norm):
            return False
        if norm > max_norm:
            self.gradient *= max_norm / norm
        self.step()
        return True

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
