"""Compiled policy inference for few rows: a small network in one Numba kernel.

For six rows torch's dispatch takes twenty times as long as the arithmetic. Where envs arrive a few
at a time that is most of the time between two steps, so simple networks are evaluated here, on
views of the very same weights.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.distributions import BELOW_ONE
from hundredfold.core.batch import Arrays, BoolArray, Float32Array, flatten_rows
from hundredfold.core.numba_kernels import fast_sum_kernel, kernel
from hundredfold.rollout.rollout_buffer import ActionSample

SUPPORTED_ACTIVATIONS: Final = ("relu", "tanh")
EVERYTHING_ALLOWED: Final = np.ones((0, 0), bool)


class NumbaPolicy:
    """Samples actions of an actor-critic network on the CPU, following its weights as they change.

    Args:
        network: A network for which `supports` is True.
    """

    def __init__(self, network: ActorCritic) -> None:
        layers = [*network.policy_layers, network.policy_head]
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        # Views: what an optimiser writes is visible here.
        self.weights = tuple(_view(layer.weight) for layer in linear)
        self.biases = tuple(_view(layer.bias) for layer in linear)
        self.tanh = network.settings.activation == "tanh"
        self.inputs = tuple(network.inputs.specs)

    @staticmethod
    def supports(network: ActorCritic) -> bool:
        """Whether a network is simple enough: plain inputs, one discrete action, on the CPU."""
        inputs = network.inputs
        return (
            not network.settings.network_function
            and network.settings.activation in SUPPORTED_ACTIVATIONS
            and network.per_action is None
            and not network.memory_size
            and len(network.action_nvec) == 1
            and network.log_std is None
            and network.logit_bias is None
            and not network.images
            and not inputs.normalise
            and all(spec.categories is None for spec in inputs.specs.values())
            and next(network.parameters()).device.type == "cpu"
        )

    def sample(self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]) -> ActionSample:
        """Sample one action per row by inversion, as `MaskedCategorical.sample` does."""
        num_rows = len(uniforms)
        actions, log_probs = np.empty(num_rows, np.int64), np.empty(num_rows, np.float32)
        allowed = EVERYTHING_ALLOWED if mask is None else mask
        # In C order always, so that the kernel is compiled once.
        inputs = flatten_rows([observation[name] for name in self.inputs], np.float32, copy=False)
        _sample(self.weights, self.biases, self.tanh, inputs, allowed, uniforms, actions, log_probs)
        return ActionSample(actions, log_probs)


def _view(weights: Tensor) -> Float32Array:
    view: Float32Array = weights.detach().numpy()
    return view


@kernel
def _sample(
    weights: Any, biases: Any, tanh: bool, inputs: Any, allowed: Any, uniforms: Any, actions: Any, log_probs: Any
) -> None:
    """Fill in actions and log-probabilities; `allowed` has no rows where all are allowed."""
    max_width = 0
    for bias in biases:
        max_width = max(max_width, len(bias))
    scratch, other = np.empty(max_width, np.float32), np.empty(max_width, np.float32)
    for row in range(len(inputs)):
        outputs = scratch[: len(biases[0])]
        _linear(inputs[row], weights[0], biases[0], outputs)
        for layer in range(1, len(biases)):
            _activate(outputs, tanh)
            hidden, scratch, other = outputs, other, scratch
            outputs = scratch[: len(biases[layer])]
            _linear(hidden, weights[layer], biases[layer], outputs)
        if len(allowed):
            for action in range(len(outputs)):
                if not allowed[row, action]:
                    outputs[action] = -np.inf
        actions[row], log_probs[row] = _sample_categorical(outputs, other, uniforms[row, 0])


@fast_sum_kernel
def _linear(inputs: Any, weights: Any, bias: Any, outputs: Any) -> None:
    """One linear layer; `weights` is (outputs, inputs)."""
    for output in range(len(outputs)):
        total = np.float32(0.0)
        for i in range(len(inputs)):
            total += weights[output, i] * inputs[i]
        outputs[output] = total + bias[output]


@kernel
def _activate(values: Any, tanh: bool) -> None:
    for i in range(len(values)):
        if tanh:
            values[i] = math.tanh(values[i])
        else:
            values[i] = max(values[i], np.float32(0.0))


@kernel
def _sample_categorical(logits: Any, cdf: Any, uniform: float) -> tuple[int, float]:
    """Action and log-probability by inversion; `cdf` is scratch space."""
    largest = np.max(logits)
    total = np.float32(0.0)
    for action in range(len(logits)):
        total += np.exp(logits[action] - largest)
        cdf[action] = total
    threshold = np.float32(uniform) * (total * np.float32(BELOW_ONE))
    sampled = 0
    for action in range(len(logits)):
        sampled += cdf[action] <= threshold
    return sampled, logits[sampled] - largest - np.log(total)
