"""The steps a learner comes back to again and again, in rings that are allocated once.

Each env has a ring of its own, so rows may arrive in any order and in batches of any size. A row
holds what was seen, what was done and what came of it; what was seen next is the next row, so every
observation is kept once. An episode that was cut off takes one row more, for the observation it
ended with: its value goes on from there. Returns over several steps are summed up as rewards come
in, so that drawing samples is nothing but looking up rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import (
    Arrays,
    BoolArray,
    EnvSpec,
    IntArray,
    State,
    StepBatch,
    copies,
    fill,
    slice_rows,
)
from hundredfold.rollout.rollout_buffer import ActionSample

REPLAY_BRANCH: Final = 0x7265706C6179


class ReplayBuffer:
    """Replay buffer: one ring of transitions per env, filled by `add_actions`, `add_transitions`.

    A row may be drawn as soon as one step came of it; until its `return_steps` are complete it
    looks as far ahead as there is to see.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        num_envs: int,
        rows_per_env: int,
        return_steps: int,
        gamma: float,
        seed: int,
    ) -> None:
        # What was seen last needs a row of its own, and a cut-off episode two rows at a time.
        assert rows_per_env >= return_steps + 2, "a ring must hold more than one look ahead"
        self.num_envs, self.rows_per_env = num_envs, rows_per_env
        self.return_steps, self.gamma = return_steps, gamma
        rows = num_envs * rows_per_env
        self.observation = {name: array.empty(rows) for name, array in spec.observation.items()}
        self.mask = np.ones((rows, spec.num_logits), bool) if spec.has_mask else None
        self.actions = np.zeros(rows, np.int32)
        self.returns = np.zeros(rows, np.float32)  # rewards of the look ahead, discounted
        self.discounts = np.zeros(rows, np.float32)  # of what follows it; 0 after the end
        self.steps_ahead = np.zeros(rows, np.int16)  # rows from here to where it ends
        self.is_step = np.zeros(rows, bool)  # False where an episode was cut off
        self.cursor = np.zeros(num_envs, np.int64)  # the row of what was seen last
        self.filled = np.zeros(num_envs, np.int64)  # rows behind the cursor
        self.age = np.zeros(num_envs, np.int64)  # steps of this episode, up to return_steps
        self.seen = np.zeros(num_envs, bool)  # whether the cursor's row holds an observation
        self.awaiting = np.zeros(num_envs, bool)  # whether it holds a choice without outcome
        self.draws = np.zeros((), np.int64)
        self.key = rng.spawn(rng.seed_key(seed), REPLAY_BRANCH)

    def __len__(self) -> int:
        return int(self.filled.sum())

    @property
    def capacity(self) -> int:
        """Rows behind all cursors when every ring is full."""
        return self.num_envs * (self.rows_per_env - 1)

    # -- filling --------------------------------------------------------------------------------

    def add_actions(self, batch: StepBatch, choice: ActionSample) -> None:
        """Keep what was decided for these rows; what they saw is there since their last step."""
        ids = batch.env_ids
        if not self.seen[ids].all():
            self._see(ids, batch.observation, batch.mask)
            self.seen[ids] = True
        self.actions[self._rows(ids)] = choice.actions
        self.awaiting[ids] = True

    def add_transitions(self, batch: StepBatch) -> None:
        """Keep what came of the last choice of these rows, and what they see now."""
        if not self.awaiting[batch.env_ids].all():
            # After `forget`: nobody knows what these are the outcome of.
            batch = batch.take(np.flatnonzero(self.awaiting[batch.env_ids]))
        ids, terminated = batch.env_ids, batch.terminated
        self.awaiting[ids] = False
        for back in range(self.return_steps):
            self._add_rewards(batch, back)
        self.age[ids] = np.where(batch.ended, 0, np.minimum(self.age[ids] + 1, self.return_steps))
        cut = np.flatnonzero(batch.truncated & ~terminated)
        last_mask = None if self.mask is None else self.mask[self._rows(ids[cut])]
        self._advance(ids)
        if len(cut):
            # No env says what would have been allowed after the end: take what was before it.
            final = slice_rows(batch.final_observation, cut)
            self._see(ids[cut], final, last_mask)
            self._end_here(ids[cut])
        self._see(ids, batch.observation, batch.mask)

    def truncate_here(self, batch: StepBatch) -> None:
        """Note that the episodes of these rows ended after their last step, unseen by us."""
        # Where an outcome is awaited it will say by itself that the episode was cut off.
        ids = batch.env_ids[~self.awaiting[batch.env_ids]]
        # What they saw last is in the cursor's row already.
        self._end_here(ids[self.age[ids] > 0])
        self.age[ids] = 0
        self.seen[ids] = False

    def _add_rewards(self, batch: StepBatch, back: int) -> None:
        """Let the step so many rows back look as far as this one, if it is of the same episode."""
        ids, reward, terminated = batch.env_ids, batch.reward, batch.terminated
        if back == 0:
            rows = self._rows(ids)
            self.is_step[rows] = True
            self.returns[rows] = 0.0
        else:
            old = self.age[ids] >= back
            if not old.any():
                return
            ids, reward, terminated = ids[old], reward[old], terminated[old]
            rows = self._rows(ids, back)
        self.returns[rows] += self.gamma**back * reward
        self.discounts[rows] = self.gamma ** (back + 1) * ~terminated
        self.steps_ahead[rows] = back + 1

    def _end_here(self, ids: IntArray) -> None:
        """Let what these envs saw last be the end of a cut-off episode, and go on behind it."""
        self.is_step[self._rows(ids)] = False
        self._advance(ids)

    def _advance(self, ids: IntArray) -> None:
        self.cursor[ids] = (self.cursor[ids] + 1) % self.rows_per_env
        self.filled[ids] = np.minimum(self.filled[ids] + 1, self.rows_per_env - 1)

    def _see(self, ids: IntArray, observation: Arrays, mask: BoolArray | None) -> None:
        rows = self._rows(ids)
        for name, array in self.observation.items():
            array[rows] = observation[name]
        if self.mask is not None:
            self.mask[rows] = mask

    def _rows(self, ids: IntArray, back: int = 0) -> IntArray:
        """The rows at, or so many behind, the cursors of these envs."""
        rows: IntArray = ids * self.rows_per_env + (self.cursor[ids] - back) % self.rows_per_env
        return rows

    # -- drawing --------------------------------------------------------------------------------

    def sample(self, count: int) -> tuple[IntArray, IntArray]:
        """Rows of steps, all equally likely, with repetition; and where each look ahead ends."""
        rows = self._draw(count)
        while True:
            others = np.flatnonzero(~self.is_step[rows])
            if not len(others):
                break
            rows[others] = self._draw(len(others))
        ahead = self.steps_ahead[rows]
        over = rows % self.rows_per_env + ahead >= self.rows_per_env
        return rows, rows + ahead - over * self.rows_per_env

    def _draw(self, count: int) -> IntArray:
        """Any rows behind the cursors."""
        ends = np.cumsum(self.filled)
        counts = self.draws + np.arange(count)
        self.draws += count
        picks = rng.integers(self.key, counts, ends[-1])
        env_ids = np.searchsorted(ends, picks, side="right")
        back = ends[env_ids] - picks
        rows: IntArray = (
            env_ids * self.rows_per_env + (self.cursor[env_ids] - back) % self.rows_per_env
        )
        return rows

    # -- snapshots ------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Copies of everything; of the rings, the part that was ever written."""
        wrapped = (self.filled == self.rows_per_env - 1).any()
        return copies(self._arrays(self.rows_per_env if wrapped else int(self.cursor.max()) + 1))

    def restore(self, state: State) -> None:
        used = state["is_step"].shape[-1] if "is_step" in state else self.rows_per_env
        fill(self._arrays(used), state)

    def forget(self) -> None:
        """Start over with empty rings."""
        for array in (self.cursor, self.filled, self.age):
            array[:] = 0
        self.seen[:] = False
        self.awaiting[:] = False

    def _arrays(self, used: int) -> Arrays:
        """Everything that changes; rows as (envs, used rows of each ring, ...)."""
        rings: Arrays = {
            "actions": self.actions,
            "returns": self.returns,
            "discounts": self.discounts,
            "steps_ahead": self.steps_ahead,
            "is_step": self.is_step,
        }
        if self.mask is not None:
            rings["mask"] = self.mask
        rings |= {f"observation/{name}": array for name, array in self.observation.items()}
        shape = (self.num_envs, self.rows_per_env)
        return {
            "cursor": self.cursor,
            "filled": self.filled,
            "age": self.age,
            "seen": self.seen,
            "awaiting": self.awaiting,
            "draws": self.draws,
            **{
                name: array.reshape(*shape, *array.shape[1:])[:, :used]
                for name, array in rings.items()
            },
        }


def row_bytes(spec: EnvSpec) -> int:
    """Memory one row of a replay takes."""
    seen = sum(array.size * np.dtype(array.dtype).itemsize for array in spec.observation.values())
    mask = spec.num_logits if spec.has_mask else 0
    # Action, return and discount take 4 bytes each, steps_ahead 2 and is_step 1.
    return seen + mask + 15
