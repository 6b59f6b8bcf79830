"""Recovery after a worker died: what its replacement continues from.

Episodes of a dead worker are truncated where they were. The replacement starts from the last
`reset` or `restore`, skips the episodes that ended since, and begins the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.batch import BoolArray, IntArray, State, slice_rows
from hundredfold.core.protocols import SharedParams


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """What the replacement of a dead worker starts from."""

    seed: int | None  # of the last reset; None after a restore
    state: State | None  # of the last restore, if any
    shared_params: SharedParams  # broadcast so far
    skip: IntArray  # (envs of the worker,) episodes to skip from there


class RecoveryState:
    """Last reset or restore of all envs and the episodes that ended since."""

    def __init__(self, num_envs: int) -> None:
        self.seed: int | None = None
        self.state: State | None = None
        self.shared_params: dict[str, Any] = {}
        self.has_begun = False
        self.num_ended = np.zeros(num_envs, np.int64)  # (envs,) episodes since then
        # (envs,) episodes that the reset or restore in progress skips: their resets killed workers.
        self.num_skipped = np.zeros(num_envs, np.int64)
        # (envs,) True from the death of a worker until recv() has returned the truncation.
        self.pending_truncation = np.zeros(num_envs, bool)
        self.any_pending = False

    def begin_start(self) -> None:
        """A reset or restore of all envs begins."""
        self.num_skipped[:] = 0

    def skip_episodes(self, env_ids: IntArray, *, starting: bool) -> None:
        """The worker of these envs died in their resets: their next episodes are not tried again.

        Args:
            env_ids: the envs that were in reset.
            starting: whether a reset or restore of all envs was in progress.
        """
        (self.num_skipped if starting else self.num_ended)[env_ids] += 1

    def reset_with(self, seed: int) -> None:
        """All envs were reset; they keep their shared parameters."""
        self.seed, self.has_begun = seed, True
        self._clear()

    def restored_from(self, state: State) -> None:
        """All envs were restored; the snapshot includes their shared parameters."""
        self.seed, self.state, self.shared_params, self.has_begun = None, state, {}, True
        self._clear()

    def mark_truncated(self, rows: slice) -> None:
        """The worker of these envs died."""
        self.pending_truncation[rows] = True
        self.any_pending = True

    def take_truncated(self, env_ids: IntArray) -> BoolArray:
        """(rows,) which of these envs come with the truncation by a dead worker; clears it."""
        truncated = self.pending_truncation[env_ids]
        self.pending_truncation[env_ids] = False
        self.any_pending = bool(self.pending_truncation.any())
        return truncated

    def point_for(self, rows: slice) -> RecoveryPoint:
        """The recovery point of a new worker for these envs."""
        state = None if self.state is None else slice_rows(self.state, rows)
        return RecoveryPoint(self.seed, state, self.shared_params, self.num_ended[rows] + 1)

    def _clear(self) -> None:
        self.num_ended[:] = self.num_skipped
        self.pending_truncation[:] = False
        self.any_pending = False
