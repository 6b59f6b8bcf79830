"""Where the current play began, for workers that have to join in later."""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.backends.worker import Origin
from hundredfold.core.batch import BoolArray, IntArray, State


class Story:
    """What was told to everybody, and how many episodes ago."""

    def __init__(self, num_envs: int) -> None:
        self.seed: int | None = None
        self.state: State | None = None
        self.knowledge: dict[str, Any] = {}
        self.begun = False
        self.ended = np.zeros(num_envs, np.int64)  # episodes since the beginning
        # Envs whose worker was lost and whose end of episode is still to be told.
        self.cut_off = np.zeros(num_envs, bool)
        self.any_cut_off = False

    def lose(self, rows: slice) -> None:
        """The worker of these envs is lost."""
        self.cut_off[rows] = True
        self.any_cut_off = True

    def tell(self, env_ids: IntArray) -> BoolArray:
        """Which of these come with an end of episode that is their worker's loss."""
        told = self.cut_off[env_ids]
        self.cut_off[env_ids] = False
        self.any_cut_off = bool(self.cut_off.any())
        return told

    def begin_with(self, seed: int) -> None:
        """Everybody was reset; what they had learned stays with them."""
        self.seed, self.begun = seed, True
        self._forget_the_past()

    def go_on_from(self, state: State) -> None:
        """Everybody was restored; what they had learned is part of the snapshot."""
        self.seed, self.state, self.knowledge, self.begun = None, state, {}, True
        self._forget_the_past()

    def origin(self, rows: slice) -> Origin:
        """What a worker of these rows needs to know."""
        state = self.state
        if state is not None:
            state = {name: array[rows] for name, array in state.items()}
        return Origin(self.seed, state, self.knowledge, self.ended[rows] + 1)

    def _forget_the_past(self) -> None:
        self.ended[:] = 0
        self.cut_off[:] = False
        self.any_cut_off = False
