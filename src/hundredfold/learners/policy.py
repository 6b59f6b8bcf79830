"""A network that acts: arrays in, allowed actions out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hundredfold.core.batch import Array, Arrays, BoolArray
from hundredfold.experience.rollout import Choice
from hundredfold.learners.networks import ActorCritic, Options, tensors

if TYPE_CHECKING:
    from hundredfold.learners.quick_policy import QuickPolicy

# With more rows the arithmetic itself takes the time, and torch is as good at that as a kernel.
FEW_ROWS: Final = 32


class NetworkPolicy:
    """Draws actions from a network while collecting, and takes its best ones when judged."""

    # How few rows are drawn, and for which network that was found out.
    quick: QuickPolicy | None = None
    quick_for: ActorCritic | None = None

    def __init__(self, network: ActorCritic, device: torch.device) -> None:
        self.network = network
        self.device = device

    def choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> Choice:
        """Draw one action per row."""
        if len(uniforms) <= FEW_ROWS:
            quick = self._quick()
            if quick is not None:
                return quick.choose(observation, mask, uniforms)
        return self._choose(observation, mask, uniforms)

    @torch.inference_mode()
    def _choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> Choice:
        options = self._options(observation, mask)
        drawn = options.sample(torch.from_numpy(uniforms))
        log_probs = options.log_prob(drawn).numpy()
        if self.network.bounds is None:
            return Choice(self._shaped(drawn), log_probs)
        return Choice(self._in_bounds(drawn), log_probs, drawn=self._shaped(drawn))

    def __getstate__(self) -> dict[str, Any]:
        """Copies look at weights of their own."""
        return {"network": self.network, "device": self.device}

    @torch.inference_mode()
    def best(self, observation: Arrays, mask: BoolArray | None) -> Array:
        """The most likely action of each row."""
        found = self._options(observation, mask).most_likely()
        return self._shaped(found) if self.network.bounds is None else self._in_bounds(found)

    def _quick(self) -> QuickPolicy | None:
        if self.quick_for is not self.network:
            # Only now: it is compiled, and whoever reads settings has no use for a compiler.
            from hundredfold.learners.quick_policy import QuickPolicy

            self.quick_for = self.network
            self.quick = QuickPolicy(self.network) if QuickPolicy.follows(self.network) else None
        return self.quick

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
