"""Replay buffer with n-step returns: one ring buffer of transitions per env.

Each env has its own ring, so rows may arrive in any order and in batches of any size. The next
observation of a row is the row after it, so every observation is stored once. A truncated episode
takes one row more, for its final observation, from which its value is bootstrapped. N-step returns
are accumulated as rewards arrive, so sampling only looks up rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, BoolArray, EnvSpec, IntArray, State, StepBatch, copies, fill, slice_rows
from hundredfold.rollout.rollout_buffer import ActionSample

# RNG stream of replay sampling.
REPLAY_STREAM: Final = 0x7265706C6179


class ReplayBuffer:
    """Replay buffer, filled by `add_actions` and `add_transitions` in turn.

    A row can be sampled as soon as its step has returned; until `n_step` rewards have arrived its
    return covers as many as there are.

    Args:
        spec: arrays of the env; actions are discrete.
        num_envs: number of envs.
        rows_per_env: rows in the ring of each env.
        n_step: steps of the n-step return.
        gamma: discount factor.
        seed: seed of sampling.
    """

    def __init__(
        self, spec: EnvSpec, *, num_envs: int, rows_per_env: int, n_step: int, gamma: float, seed: int
    ) -> None:
        # The current observation needs a row of its own, and a truncated episode two rows at once.
        assert rows_per_env >= n_step + 2, "a ring must hold more than one n-step return"
        self.num_envs, self.rows_per_env = num_envs, rows_per_env
        self.n_step, self.gamma = n_step, gamma
        rows = num_envs * rows_per_env
        self.observation = {name: array.empty(rows) for name, array in spec.observation.items()}
        self.mask = np.ones((rows, spec.num_logits), bool) if spec.has_mask else None
        self.actions = np.zeros(rows, np.int32)
        self.returns = np.zeros(rows, np.float32)  # n-step return, discounted, not bootstrapped
        self.discounts = np.zeros(rows, np.float32)  # of the bootstrap value; 0 if terminated
        self.num_return_steps = np.zeros(rows, np.int16)  # steps that the return covers so far
        self.is_transition = np.zeros(rows, bool)  # False for final observations
        self.cursor = np.zeros(num_envs, np.int64)  # row of the current observation
        self.filled = np.zeros(num_envs, np.int64)  # rows behind the cursor
        self.episode_steps = np.zeros(num_envs, np.int64)  # of this episode, at most n_step
        self.has_observation = np.zeros(num_envs, bool)  # whether the cursor's row is written
        self.awaiting_transition = np.zeros(num_envs, bool)  # action stored, reward not yet
        self.num_draws = np.zeros((), np.int64)
        self.key = rng.spawn(rng.seed_key(seed), REPLAY_STREAM)

    def __len__(self) -> int:
        return int(self.filled.sum())

    @property
    def capacity(self) -> int:
        """Rows behind all cursors when every ring is full."""
        return self.num_envs * (self.rows_per_env - 1)

    # -- adding ---------------------------------------------------------------------------------

    def add_actions(self, batch: StepBatch, sample: ActionSample) -> None:
        """Store the actions of these rows; their observations are stored since their last step."""
        ids = batch.env_ids
        if not self.has_observation[ids].all():
            self._write_observation(ids, batch.observation, batch.mask)
            self.has_observation[ids] = True
        self.actions[self._rows(ids)] = sample.actions
        self.awaiting_transition[ids] = True

    def add_transitions(self, batch: StepBatch) -> None:
        """Store what followed the last action of these rows, and their current observations."""
        if not self.awaiting_transition[batch.env_ids].all():
            # The buffer was cleared in between: the actions of these transitions are gone.
            batch = batch.take(np.flatnonzero(self.awaiting_transition[batch.env_ids]))
        ids = batch.env_ids
        self.awaiting_transition[ids] = False
        for back in range(self.n_step):
            self._add_rewards(batch, back)
        steps = np.minimum(self.episode_steps[ids] + 1, self.n_step)
        self.episode_steps[ids] = np.where(batch.ended, 0, steps)
        truncated = np.flatnonzero(batch.truncated & ~batch.terminated)
        last_mask = None if self.mask is None else self.mask[self._rows(ids[truncated])]
        self._advance(ids)
        if len(truncated):
            # Envs return no mask for the final observation: the one before it stands in.
            final = slice_rows(batch.final_observation, truncated)
            self._write_observation(ids[truncated], final, last_mask)
            self._close_truncated(ids[truncated])
        self._write_observation(ids, batch.observation, batch.mask)

    def truncate_here(self, batch: StepBatch) -> None:
        """Mark the episodes of these rows as truncated after their last stored step.

        For episodes that ended without a step, for example because their env was recreated.
        """
        # A transition that is still awaited will itself say that the episode was truncated.
        ids = batch.env_ids[~self.awaiting_transition[batch.env_ids]]
        # The cursor's row already holds the final observation.
        self._close_truncated(ids[self.episode_steps[ids] > 0])
        self.episode_steps[ids] = 0
        self.has_observation[ids] = False

    def _add_rewards(self, batch: StepBatch, back: int) -> None:
        """Extend the return of the step `back` rows ago by this reward, within the episode."""
        ids, reward, terminated = batch.env_ids, batch.reward, batch.terminated
        if back == 0:
            rows = self._rows(ids)
            self.is_transition[rows] = True
            self.returns[rows] = 0.0
        else:
            same_episode = self.episode_steps[ids] >= back
            if not same_episode.any():
                return
            ids, reward = ids[same_episode], reward[same_episode]
            terminated = terminated[same_episode]
            rows = self._rows(ids, back)
        self.returns[rows] += self.gamma**back * reward
        self.discounts[rows] = self.gamma ** (back + 1) * ~terminated
        self.num_return_steps[rows] = back + 1

    def _close_truncated(self, ids: IntArray) -> None:
        """Make the cursor's row of these envs the final observation of a truncated episode."""
        self.is_transition[self._rows(ids)] = False
        self._advance(ids)

    def _advance(self, ids: IntArray) -> None:
        self.cursor[ids] = (self.cursor[ids] + 1) % self.rows_per_env
        self.filled[ids] = np.minimum(self.filled[ids] + 1, self.rows_per_env - 1)

    def _write_observation(self, ids: IntArray, observation: Arrays, mask: BoolArray | None) -> None:
        rows = self._rows(ids)
        for name, array in self.observation.items():
            array[rows] = observation[name]
        if self.mask is not None:
            self.mask[rows] = mask

    def _rows(self, ids: IntArray, back: int = 0) -> IntArray:
        """Rows at the cursors of these envs, or `back` rows behind them."""
        rows: IntArray = ids * self.rows_per_env + (self.cursor[ids] - back) % self.rows_per_env
        return rows

    # -- sampling -------------------------------------------------------------------------------

    def sample(self, count: int) -> tuple[IntArray, IntArray]:
        """Sample transitions uniformly, with replacement.

        Returns:
            (count,) rows, and (count,) rows of the observations to bootstrap their returns from.
        """
        rows = self._draw_rows(count)
        while True:
            others = np.flatnonzero(~self.is_transition[rows])
            if not len(others):
                break
            rows[others] = self._draw_rows(len(others))
        steps = self.num_return_steps[rows]
        wraps = rows % self.rows_per_env + steps >= self.rows_per_env
        return rows, rows + steps - wraps * self.rows_per_env

    def _draw_rows(self, count: int) -> IntArray:
        """Random rows behind the cursors, final observations included."""
        ends = np.cumsum(self.filled)
        counts = self.num_draws + np.arange(count)
        self.num_draws += count
        picks = rng.integers(self.key, counts, ends[-1])
        env_ids = np.searchsorted(ends, picks, side="right")
        back = ends[env_ids] - picks
        rows: IntArray = env_ids * self.rows_per_env + (self.cursor[env_ids] - back) % self.rows_per_env
        return rows

    # -- snapshots ------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Snapshot; of the rings, only the part that was ever written."""
        wrapped = (self.filled == self.rows_per_env - 1).any()
        return copies(self._arrays(self.rows_per_env if wrapped else int(self.cursor.max()) + 1))

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        used = state.get("is_transition")
        fill(self._arrays(self.rows_per_env if used is None else used.shape[-1]), state)

    def clear(self) -> None:
        """Empty all rings."""
        for array in (self.cursor, self.filled, self.episode_steps):
            array[:] = 0
        self.has_observation[:] = False
        self.awaiting_transition[:] = False

    def _arrays(self, used: int) -> Arrays:
        """All arrays that change; those of the rings as (envs, used rows, ...)."""
        rings: Arrays = {
            "actions": self.actions,
            "returns": self.returns,
            "discounts": self.discounts,
            "num_return_steps": self.num_return_steps,
            "is_transition": self.is_transition,
        }
        if self.mask is not None:
            rings["mask"] = self.mask
        rings |= {f"observation/{name}": array for name, array in self.observation.items()}
        shape = (self.num_envs, self.rows_per_env)
        return {
            "cursor": self.cursor,
            "filled": self.filled,
            "episode_steps": self.episode_steps,
            "has_observation": self.has_observation,
            "awaiting_transition": self.awaiting_transition,
            "num_draws": self.num_draws,
            **{name: array.reshape(*shape, *array.shape[1:])[:, :used] for name, array in rings.items()},
        }


def row_bytes(spec: EnvSpec) -> int:
    """Memory of one row of a replay buffer, in bytes."""
    observation = sum(array.size * np.dtype(array.dtype).itemsize for array in spec.observation.values())
    mask = spec.num_logits if spec.has_mask else 0
    # Action, return and discount take 4 bytes each, num_return_steps 2 and is_transition 1.
    return observation + mask + 15
