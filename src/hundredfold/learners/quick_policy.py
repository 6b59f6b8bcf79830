"""Drawing actions for a few rows in plain numpy.

What torch does for six rows takes five times as long as the arithmetic: every operation is looked
up, dispatched and wrapped. Where envs come a few at a time that is most of the time between two
steps, so networks that are simple enough are followed here, on the very same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hundredfold.core.batch import Arrays, BoolArray
from hundredfold.experience.rollout import Choice
from hundredfold.learners.masking import BELOW_ONE, FORBIDDEN
from hundredfold.learners.networks import Activation, ActorCritic

Floats = NDArray[np.float32]

# With more rows the arithmetic itself takes the time, and torch is as good at that.
FEW_ROWS: Final = 32


def _rectified(row: Floats) -> Floats:
    return np.maximum(row, 0.0, out=row)


def _squashed(row: Floats) -> Floats:
    return np.tanh(row, out=row)


FOLLOWED: Final[dict[Activation, Callable[[Floats], Floats]]] = {
    "relu": _rectified,
    "tanh": _squashed,
}


class QuickPolicy:
    """The policy of a network whose weights lie in this process' memory, changed or not."""

    def __init__(self, network: ActorCritic) -> None:
        layers = [*network.policy_layers, network.policy_head]
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        # Views: whatever an optimiser writes is seen here.
        self.weights = [_seen(layer.weight).T for layer in linear]
        self.biases = [_seen(layer.bias) for layer in linear]
        self.activate = FOLLOWED[network.settings.activation]
        self.widths = {name: spec.size for name, spec in network.inputs.specs.items()}

    @staticmethod
    def follows(network: ActorCritic) -> bool:
        """Whether this network is simple enough: numbers in, one choice out, on a CPU."""
        inputs = network.inputs
        return (
            network.settings.activation in FOLLOWED
            and len(network.choices) == 1
            and network.log_spreads is None
            and network.logit_bias is None
            and not network.pictures
            and not inputs.normalise
            and all(spec.categories is None for spec in inputs.specs.values())
            and next(network.parameters()).device.type == "cpu"
        )

    def choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> Choice:
        """Draw one action per row, by inversion, as `MaskedChoice.sample` does."""
        logits = self._logits(observation, len(uniforms))
        if mask is not None:
            logits[~mask] = FORBIDDEN
        logits -= np.maximum.reduce(logits, axis=1, keepdims=True)
        ladder = np.add.accumulate(np.exp(logits), axis=1)
        total = ladder[:, -1:]
        mark = uniforms.astype(np.float32) * (total * np.float32(BELOW_ONE))
        actions = np.add.reduce(ladder <= mark, axis=1, dtype=np.int64)
        chosen = logits[np.arange(len(actions)), actions]
        return Choice(actions, chosen - np.log(total[:, 0]))

    def _logits(self, observation: Arrays, rows: int) -> Floats:
        pieces = [
            observation[name].reshape(rows, width).astype(np.float32, copy=False)
            for name, width in self.widths.items()
        ]
        row = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        *hidden, head = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            row = row @ weight
            row += bias
            row = self.activate(row)
        weight, bias = head
        row = row @ weight
        row += bias
        return row


def _seen(weights: Tensor) -> Floats:
    view: Floats = weights.detach().numpy()
    return view
