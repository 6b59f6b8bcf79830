"""Drawing actions for a few rows in one kernel.

What torch does for six rows takes twenty times as long as the arithmetic: every operation is looked
up, dispatched and wrapped. Where envs come a few at a time that is most of the time between two
steps, so networks that are simple enough are followed here, on the very same weights.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.distributions import BELOW_ONE
from hundredfold.core.batch import Arrays, BoolArray
from hundredfold.core.numba_kernels import fast_sum_kernel, kernel
from hundredfold.rollout.rollout_buffer import ActionSample

Floats = NDArray[np.float32]

FOLLOWED: Final = ("relu", "tanh")
EVERYTHING_ALLOWED: Final = np.ones((0, 0), bool)


class QuickPolicy:
    """The policy of a network whose weights lie in this process' memory, changed or not."""

    def __init__(self, network: ActorCritic) -> None:
        layers = [*network.policy_layers, network.policy_head]
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        # Views: whatever an optimiser writes is seen here.
        self.weights = tuple(_seen(layer.weight) for layer in linear)
        self.biases = tuple(_seen(layer.bias) for layer in linear)
        self.squashes = network.settings.activation == "tanh"
        self.widths = {name: spec.size for name, spec in network.inputs.specs.items()}

    @staticmethod
    def follows(network: ActorCritic) -> bool:
        """Whether this network is simple enough: numbers in, one choice out, on a CPU."""
        inputs = network.inputs
        return (
            network.settings.activation in FOLLOWED
            and len(network.action_nvec) == 1
            and network.log_spreads is None
            and network.logit_bias is None
            and not network.pictures
            and not inputs.normalise
            and all(spec.categories is None for spec in inputs.specs.values())
            and next(network.parameters()).device.type == "cpu"
        )

    def sample(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> ActionSample:
        """Draw one action per row, by inversion, as `MaskedChoice.sample` does."""
        rows = len(uniforms)
        actions, log_probs = np.empty(rows, np.int64), np.empty(rows, np.float32)
        allowed = EVERYTHING_ALLOWED if mask is None else mask
        inputs = self._inputs(observation, rows)
        _draw(
            self.weights, self.biases, self.squashes, inputs, allowed, uniforms, actions, log_probs
        )
        return ActionSample(actions, log_probs)

    def _inputs(self, observation: Arrays, rows: int) -> Floats:
        """(rows, inputs) what the first layer is shown."""
        pieces = [
            observation[name].reshape(rows, width).astype(np.float32, copy=False)
            for name, width in self.widths.items()
        ]
        # One layout, so that the kernel is compiled once.
        row = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        return np.ascontiguousarray(row)


def _seen(weights: Tensor) -> Floats:
    view: Floats = weights.detach().numpy()
    return view


@kernel
def _draw(
    weights: Any,
    biases: Any,
    squashes: bool,
    inputs: Any,
    allowed: Any,
    uniforms: Any,
    actions: Any,
    log_probs: Any,
) -> None:
    """Actions and their log-probabilities for all rows; `allowed` has no rows where all are."""
    widest = 0
    for bias in biases:
        widest = max(widest, len(bias))
    here, there = np.empty(widest, np.float32), np.empty(widest, np.float32)
    for row in range(len(inputs)):
        above = here[: len(biases[0])]
        _pass_on(inputs[row], weights[0], biases[0], above)
        for layer in range(1, len(biases)):
            _activate(above, squashes)
            below, here, there = above, there, here
            above = here[: len(biases[layer])]
            _pass_on(below, weights[layer], biases[layer], above)
        if len(allowed):
            for action in range(len(above)):
                if not allowed[row, action]:
                    above[action] = -np.inf
        actions[row], log_probs[row] = _choose(above, there, uniforms[row, 0])


@fast_sum_kernel
def _pass_on(below: Any, weights: Any, bias: Any, above: Any) -> None:
    """One layer: `weights` is (outputs, inputs)."""
    for to in range(len(above)):
        total = np.float32(0.0)
        for of in range(len(below)):
            total += weights[to, of] * below[of]
        above[to] = total + bias[to]


@kernel
def _activate(values: Any, squashes: bool) -> None:
    for place in range(len(values)):
        if squashes:
            values[place] = math.tanh(values[place])
        else:
            values[place] = max(values[place], np.float32(0.0))


@kernel
def _choose(logits: Any, ladder: Any, uniform: float) -> tuple[int, float]:
    """The action that a number in [0, 1) stands for, and its log-probability."""
    most = np.max(logits)
    total = np.float32(0.0)
    for action in range(len(logits)):
        total += np.exp(logits[action] - most)
        ladder[action] = total
    mark = np.float32(uniform) * (total * np.float32(BELOW_ONE))
    chosen = 0
    for action in range(len(logits)):
        chosen += ladder[action] <= mark
    return chosen, logits[chosen] - most - np.log(total)
