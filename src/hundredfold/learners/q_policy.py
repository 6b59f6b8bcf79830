"""Acting on action values: mostly the best allowed action, now and then any allowed one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray
from hundredfold.experience.rollout import Choice
from hundredfold.learners.networks import tensors
from hundredfold.learners.q_network import QNetwork


class QPolicy:
    """Explores while collecting, as often as `epsilons` says, and takes the best when judged."""

    def __init__(self, network: QNetwork, device: torch.device, num_envs: int = 1) -> None:
        self.network = network
        self.device = device
        self.epsilons = np.zeros(num_envs)  # (envs,) how often each env explores
        self.rows_chosen = 0

    def choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> Choice:
        """One action per row; one number in [0, 1) decides whether and what it explores."""
        luck = uniforms[:, 0]
        epsilons = self._next_epsilons(len(luck))
        best = self.best(observation, mask)
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
        return Choice(actions, np.log(likely, dtype=np.float32))

    @torch.inference_mode()
    def best(self, observation: Arrays, mask: BoolArray | None) -> IntArray:
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
