"""The luck of a policy: numbers in [0, 1) for the choices it makes for every env.

Each is a matter of the seed, the env and how many choices were made for it so far, whoever asks and
in whatever company.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hundredfold.core import streams
from hundredfold.core.batch import IntArray

# The policy's own streams stand apart from the envs': they hang under another branch of the seed.
POLICY_BRANCH: Final = 0x706F6C696379


class PolicyLuck:
    """Numbers for the choices of the envs `first..first + num_envs - 1`, counted from 0 here."""

    def __init__(self, seed: int, num_envs: int, num_parts: int, first: int = 0) -> None:
        from hundredfold.experience import kernels

        self.kernels = kernels
        branch = streams.spawn(streams.seed_key(seed), POLICY_BRANCH)
        self.keys = streams.spawn(branch, first + np.arange(num_envs))
        self.num_parts = num_parts

    def take(self, env_ids: IntArray, choices_made: IntArray) -> NDArray[np.float64]:
        """(rows, parts) numbers for one more choice of each of these envs, which is counted."""
        drawn = np.empty((len(env_ids), self.num_parts))
        self.kernels.draw_luck(self.keys, env_ids, choices_made, drawn)
        return drawn
