"""Memory of recurrent networks: a gated recurrent unit, and the sequences it is trained on.

A recurrent network keeps a state per env that starts at 0 with every episode. Collectors hold the
states and store them with every step, so a sequence of a rollout can be trained from the state that
its first action was chosen with (truncated back-propagation through time).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

# Length of training sequences if the settings name none: a divisor of the rollout's steps in this range.
MIN_SEQUENCE_STEPS: Final = 16
MAX_SEQUENCE_STEPS: Final = 64


@dataclass(slots=True)
class Sequences:
    """Rows as sequences of consecutive steps: row = sequence * steps + step."""

    policy_state: Tensor  # (sequences, size) state of the policy before the first step of each sequence
    value_state: Tensor  # (sequences, size) the same of the value function
    starts: Tensor  # (rows,) True where an episode begins: the state is 0 there

    def select(self, select: Callable[[Tensor], Tensor]) -> Sequences:
        """Some of these sequences.

        Args:
            select: Selects entries of the first axis.
        """
        starts = self.starts.reshape(len(self.policy_state), -1)
        return Sequences(select(self.policy_state), select(self.value_state), select(starts).flatten())


class GatedRecurrentUnit(nn.Module):
    """Gated recurrent unit (Cho et al. 2014) over sequences in which episodes may begin.

    Args:
        num_inputs: Inputs per step.
        size: Units of the state.
    """

    def __init__(self, num_inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        # Reset gate, update gate and candidate side by side.
        self.input_layer = nn.Linear(num_inputs, 3 * size)
        self.state_layer = nn.Linear(size, 3 * size)
        for layer in (self.input_layer, self.state_layer):
            for gate in torch.split(layer.weight.data, size):
                nn.init.orthogonal_(gate)
            nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor, state: Tensor, starts: Tensor | None = None) -> Tensor:
        """(rows, size) states after every step.

        Args:
            inputs: (rows, inputs); rows are sequences of equal length, one after the other.
            state: (sequences, size) states before the first step.
            starts: (rows,) True where an episode begins; None for none.
        """
        projected = self.input_layer(inputs)
        # Unbound at once: the gradient of single steps would be as large as that of all of them.
        sequences = state.shape[0]
        steps = projected.reshape(sequences, -1, projected.shape[-1]).unbind(1)
        begins = [None] * len(steps) if starts is None else (~starts).float().reshape(sequences, -1, 1).unbind(1)
        states = []
        for step, keeps in zip(steps, begins, strict=True):
            state = self._step(step, state if keeps is None else state * keeps)
            states.append(state)
        return torch.stack(states, dim=1).flatten(0, 1)

    def step(self, inputs: Tensor, state: Tensor) -> Tensor:
        """(rows, size) next states of one step from (rows, inputs) and (rows, size) states."""
        return self._step(self.input_layer(inputs), state)

    def _step(self, projected: Tensor, state: Tensor) -> Tensor:
        """(sequences, size) next states of one step."""
        size = self.size
        recurrent = self.state_layer(state)
        gates = torch.sigmoid(projected[:, : 2 * size] + recurrent[:, : 2 * size])
        reset, update = gates[:, :size], gates[:, size:]
        candidate = torch.tanh(projected[:, 2 * size :] + reset * recurrent[:, 2 * size :])
        return torch.lerp(candidate, state, update)


def sequence_steps(num_steps: int, wanted: int) -> int | None:
    """Length of the sequences that a rollout is divided into; None if `wanted` does not divide it.

    Args:
        num_steps: Steps of a rollout.
        wanted: Steps of a sequence; 0 chooses.
    """
    if wanted:
        return wanted if num_steps % wanted == 0 else None
    for steps in range(min(MAX_SEQUENCE_STEPS, num_steps), MIN_SEQUENCE_STEPS - 1, -1):
        if num_steps % steps == 0:
            return steps
    return num_steps
