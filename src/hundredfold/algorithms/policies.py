"""A network that acts: arrays in, allowed actions out.

Acting on action values: mostly the best allowed action, now and then any allowed one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hundredfold.algorithms.actor_critic import ActorCritic, Options, tensors
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray
from hundredfold.rollout.rollout_buffer import ActionSample

if TYPE_CHECKING:
    from hundredfold.algorithms.numba_policy import QuickPolicy

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

    def sample(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> ActionSample:
        """Draw one action per row."""
        if len(uniforms) <= FEW_ROWS:
            quick = self._quick()
            if quick is not None:
                return quick.sample(observation, mask, uniforms)
        return self._choose(observation, mask, uniforms)

    @torch.inference_mode()
    def _choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> ActionSample:
        options = self._options(observation, mask)
        drawn = options.sample(torch.from_numpy(uniforms))
        log_probs = options.log_prob(drawn).numpy()
        if self.network.bounds is None:
            return ActionSample(self._shaped(drawn), log_probs)
        return ActionSample(self._in_bounds(drawn), log_probs, unclipped=self._shaped(drawn))

    def __getstate__(self) -> dict[str, Any]:
        """Copies look at weights of their own."""
        return {"network": self.network, "device": self.device}

    @torch.inference_mode()
    def act_deterministic(self, observation: Arrays, mask: BoolArray | None) -> Array:
        """The most likely action of each row."""
        found = self._options(observation, mask).most_likely()
        return self._shaped(found) if self.network.bounds is None else self._in_bounds(found)

    def _quick(self) -> QuickPolicy | None:
        if self.quick_for is not self.network:
            # Only now: it is compiled, and whoever reads settings has no use for a compiler.
            from hundredfold.algorithms.numba_policy import QuickPolicy

            self.quick_for = self.network
            self.quick = QuickPolicy(self.network) if QuickPolicy.follows(self.network) else None
        return self.quick

    def _options(self, observation: Arrays, mask: BoolArray | None) -> Options:
        # Logits are few: choosing on the CPU adds them up in order, on every device alike.
        allowed = None if mask is None else torch.from_numpy(mask)
        logits = self.network.logits(tensors(observation, self.device)).cpu()
        return self.network.options(logits, allowed)

    def _in_bounds(self, drawn: torch.Tensor) -> Array:
        """Continuous actions as the env takes them."""
        assert self.network.bounds is not None
        return self._shaped(self.network.bounds(drawn.to(self.device)).cpu())

    def _shaped(self, actions: torch.Tensor) -> Array:
        """(rows, parts) as the env wants it: (rows,) when there is one part."""
        return actions.numpy().reshape(len(actions), *self.network.action_shape)


class QPolicy:
    """Explores while collecting, as often as `epsilons` says, and takes the best when judged."""

    def __init__(self, network: QNetwork, device: torch.device, num_envs: int = 1) -> None:
        self.network = network
        self.device = device
        self.epsilons = np.zeros(num_envs)  # (envs,) how often each env explores
        self.rows_chosen = 0

    def sample(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> ActionSample:
        """One action per row; one number in [0, 1) decides whether and what it explores."""
        luck = uniforms[:, 0]
        epsilons = self._next_epsilons(len(luck))
        best = self.act_deterministic(observation, mask)
        actions = best.copy()
        num_actions = self.network.num_actions
        counts = np.full(len(luck), num_actions) if mask is None else mask.sum(axis=1)
        exploring = np.flatnonzero(luck < epsilons)
        if len(exploring):
            # Below epsilon the draw is even again: stretched, it says which action.
            share = luck[exploring] / epsilons[exploring]
            nth = np.minimum(share * counts[exploring], counts[exploring] - 1).astype(np.int64)
            actions[exploring] = nth if mask is None else nth_allowed(mask[exploring], nth)
        likely = epsilons / counts + (1.0 - epsilons) * (actions == best)
        return ActionSample(actions, np.log(likely, dtype=np.float32))

    @torch.inference_mode()
    def act_deterministic(self, observation: Arrays, mask: BoolArray | None) -> IntArray:
        """The allowed action of the highest value; the lowest number wins a tie."""
        values = self.network(tensors(observation, self.device)).cpu()
        if mask is not None:
            values = torch.where(torch.from_numpy(mask), values, -torch.inf)
        array: IntArray = values.argmax(dim=-1).numpy()
        return array

    def _next_epsilons(self, rows: int) -> FloatArray:
        """Everybody's in env order; where some envs come alone, one after another takes its turn.

        So the rates are used equally often whoever is fast, and no row needs to know its env.
        """
        turns = (self.rows_chosen + np.arange(rows)) % len(self.epsilons)
        self.rows_chosen = (self.rows_chosen + rows) % len(self.epsilons)
        return self.epsilons[turns]


def nth_allowed(mask: BoolArray, nth: IntArray) -> IntArray:
    """(rows,) the allowed action with this number, counted from 0 among the allowed ones."""
    found: IntArray = np.argmax(mask.cumsum(axis=1) > nth[:, None], axis=1)
    return found


def spread_epsilons(epsilon: float, spread: float, num_envs: int) -> FloatArray:
    """(envs,) from `epsilon` down to `epsilon ** (1 + spread)` (Horgan et al. 2018)."""
    ladder = np.arange(num_envs) / max(num_envs - 1, 1)
    return np.asarray(epsilon ** (1.0 + spread * ladder), np.float64)
