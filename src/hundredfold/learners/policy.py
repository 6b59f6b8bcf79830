"""A network that acts: arrays in, allowed actions out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hundredfold.core.batch import Arrays, BoolArray, IntArray
from hundredfold.experience.rollout import Choice
from hundredfold.learners.masking import MaskedChoice
from hundredfold.learners.networks import ActorCritic, tensors


class NetworkPolicy:
    """Draws actions from a network while collecting, and takes its best ones when judged."""

    def __init__(
        self, network: ActorCritic, choices: tuple[int, ...], device: torch.device
    ) -> None:
        self.network = network
        self.choices = choices
        self.device = device

    @torch.inference_mode()
    def choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> Choice:
        """Draw one action per row."""
        options = self._options(observation, mask)
        actions = options.sample(torch.from_numpy(uniforms).float())
        return Choice(self._shaped(actions), options.log_prob(actions).numpy())

    @torch.inference_mode()
    def best(self, observation: Arrays, mask: BoolArray | None) -> IntArray:
        """The most likely action of each row."""
        return self._shaped(self._options(observation, mask).most_likely())

    def _options(self, observation: Arrays, mask: BoolArray | None) -> MaskedChoice:
        # Logits are few: choosing on the CPU adds them up in order, on every device alike.
        allowed = None if mask is None else torch.from_numpy(mask)
        logits = self.network.logits(tensors(observation, self.device)).cpu()
        return MaskedChoice(logits, allowed, self.choices)

    def _shaped(self, actions: torch.Tensor) -> IntArray:
        """(rows, parts) as the world wants it: (rows,) when there is one part."""
        array: IntArray = actions.numpy()
        return array[:, 0] if len(self.choices) == 1 else array
