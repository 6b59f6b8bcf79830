"""A network that acts: arrays in, allowed actions out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hundredfold.core.batch import Array, Arrays, BoolArray
from hundredfold.experience.rollout import Choice
from hundredfold.learners.networks import ActorCritic, Options, tensors


class NetworkPolicy:
    """Draws actions from a network while collecting, and takes its best ones when judged."""

    def __init__(self, network: ActorCritic, device: torch.device) -> None:
        self.network = network
        self.device = device

    @torch.inference_mode()
    def choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> Choice:
        """Draw one action per row."""
        options = self._options(observation, mask)
        drawn = options.sample(torch.from_numpy(uniforms))
        log_probs = options.log_prob(drawn).numpy()
        if self.network.bounds is None:
            return Choice(self._shaped(drawn), log_probs)
        return Choice(self._in_bounds(drawn), log_probs, drawn=self._shaped(drawn))

    @torch.inference_mode()
    def best(self, observation: Arrays, mask: BoolArray | None) -> Array:
        """The most likely action of each row."""
        found = self._options(observation, mask).most_likely()
        return self._shaped(found) if self.network.bounds is None else self._in_bounds(found)

    def _options(self, observation: Arrays, mask: BoolArray | None) -> Options:
        # Logits are few: choosing on the CPU adds them up in order, on every device alike.
        allowed = None if mask is None else torch.from_numpy(mask)
        logits = self.network.logits(tensors(observation, self.device)).cpu()
        return self.network.options(logits, allowed)

    def _in_bounds(self, drawn: torch.Tensor) -> Array:
        """Continuous actions as the world takes them."""
        assert self.network.bounds is not None
        return self._shaped(self.network.bounds(drawn.to(self.device)).cpu())

    def _shaped(self, actions: torch.Tensor) -> Array:
        """(rows, parts) as the world wants it: (rows,) when there is one part."""
        return actions.numpy().reshape(len(actions), *self.network.action_shape)
