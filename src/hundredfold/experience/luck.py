"""The luck of a policy: numbers in [0, 1) for the choices it makes for every env.

Each is a matter of the seed, the env and how many choices were made for it so far, whoever asks and
in whatever company. They are drawn ahead in blocks, because a handful of draws takes as long as a
hundred.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hundredfold.core import streams
from hundredfold.core.batch import IntArray

# The policy's own streams stand apart from the envs': they hang under another branch of the seed.
POLICY_BRANCH: Final = 0x706F6C696379
# Choices of an env that are drawn for at once.
BLOCK: Final = 32


class PolicyLuck:
    """Numbers for the choices of the envs `first..first + num_envs - 1`, counted from 0 here."""

    def __init__(self, seed: int, num_envs: int, num_parts: int, first: int = 0) -> None:
        branch = streams.spawn(streams.seed_key(seed), POLICY_BRANCH)
        self.keys = streams.spawn(branch, first + np.arange(num_envs))
        self.drawn = np.zeros((num_envs, BLOCK, num_parts))
        self.block = np.full(num_envs, -1, np.int64)  # which one is drawn for each env

    def take(self, env_ids: IntArray, choices_made: IntArray) -> NDArray[np.float64]:
        """(rows, parts) numbers for these envs, of each of which so many choices were made."""
        block, turn = choices_made // BLOCK, choices_made % BLOCK
        stale = self.block[env_ids] != block
        if np.count_nonzero(stale):
            self._draw(env_ids[stale], block[stale])
        taken: NDArray[np.float64] = self.drawn[env_ids, turn]
        return taken

    def _draw(self, env_ids: IntArray, block: IntArray) -> None:
        _, choices, parts = self.drawn.shape
        counts = block[:, None] * (choices * parts) + np.arange(choices * parts)
        numbers = streams.uniforms(self.keys[env_ids][:, None], counts)
        self.drawn[env_ids] = numbers.reshape(-1, choices, parts)
        self.block[env_ids] = block
