"""Batches of third-party Gymnasium envs, made by a function or by a Gymnasium id.

Outputs of the envs are checked here: shapes, dtypes, finite numbers, usable masks. Every episode is
reset with a seed of its own from the env's RNG stream, so env i has the same trajectory in any
shard of any batch. A failed env raises unless the backend sets a `RestartPolicy` that restarts it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import gymnasium
import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, EnvSpec, FloatArray, IntArray, State, StepBatch
from hundredfold.core.errors import EXAMPLE, EnvError, SettingsError, describe_exception
from hundredfold.core.failures import FORKS, RestartPolicy, describe_env_exception, end_forked_child, raise_interrupt
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.gymnasium_actions import ActionAdapter
from hundredfold.envs.gymnasium_spaces import (
    MAX_FLOAT32,
    InvalidObservationError,
    ObservationAdapter,
    PrivilegedKeys,
    all_finite,
    all_flags,
    find_flag_error,
    find_masks,
    find_reward_error,
)

Env = gymnasium.Env[Any, Any]
EnvMaker = Callable[[], Env]

# From this many envs on, and up to this many numbers each, outputs are stored as one array.
MIN_BATCH_ROWS: Final = 4
MAX_BATCH_SIZE: Final = 1000


class GymnasiumBatchEnv(ArrayBatchEnv):
    """A batch of Gymnasium envs that are stepped one after another.

    Args:
        env_ids: (envs,) ids of these envs.
        make_env: creates one Gymnasium env.
        name: name of the env; default: its Gymnasium id or class.
        seed_episodes: False to seed only the first episode, as Gymnasium's vector envs do.
        privileged: keys that the policy does not see.
    """

    def __init__(
        self,
        env_ids: IntArray,
        make_env: EnvMaker,
        name: str | None = None,
        *,
        seed_episodes: bool = True,
        privileged: PrivilegedKeys | None = None,
    ) -> None:
        self.make_env = make_env
        self.seed_episodes = seed_episodes
        self.restart_policy = RestartPolicy()
        self.envs: list[Env] = []
        try:
            for env_id in env_ids:
                self.envs.append(self._make_first(int(env_id), name))
            self.name = name or _name_of(self.envs[0])
            self.observation_adapter = ObservationAdapter(self.envs[0].observation_space, self.name, privileged)
            self.action_adapter = ActionAdapter(self.envs[0].action_space, self.name)
            infos = self._first_infos(env_ids)
            self.observation_adapter.add_info_keys(infos)
            self.masks = find_masks(
                self.envs[0], self.observation_adapter, self.action_adapter.action_nvec, infos, self.name
            )
        except BaseException:
            self.close()
            raise
        spec = EnvSpec(
            name=self.name,
            observation=self.observation_adapter.specs,
            action_nvec=self.action_adapter.action_nvec,
            continuous_action=self.action_adapter.box,
            has_mask=self.masks is not None,
            privileged=self.observation_adapter.privileged,
            has_snapshots=False,
        )
        super().__init__(spec, env_ids)
        self.is_outside = False  # whether an observation was outside the bounds of its space
        self.unseeded: set[int] = set()  # rows whose next reset needs a seed in any case
        # A list: incrementing single entries of an array takes five times as long.
        self.steps = [0] * self.num_envs
        self.saved_steps = np.zeros(self.num_envs, np.int64)
        self.set_busy_since(np.zeros(self.num_envs))
        self.set_output_buffers(self.out)
        # Masks are read env by env, and large observations are not worth another copy.
        size = sum(array.size for array in self.observation_adapter.specs.values())
        from_info = bool(self.observation_adapter.info_keys)
        self.fits_batch = self.masks is None and size <= MAX_BATCH_SIZE and not from_info
        is_single = self.masks is None and self.observation_adapter.is_plain and not from_info
        self.single_entry = self.observation_adapter.entries[0] if is_single else None
        self.infos: list[Mapping[str, Any]] = [{} for _ in self.envs]

    def set_output_buffers(self, out: StepBatch) -> None:
        super().set_output_buffers(out)
        # Memory views: numpy takes twice as long to write a single number.
        self.reward_view: Any = out.reward.data
        self.terminated_view: Any = out.terminated.data
        self.truncated_view: Any = out.truncated.data

    def set_busy_since(self, busy_since: FloatArray) -> None:
        """Set the array, (envs,), of when a step or, negative, a reset began; see `PerEnvBatch`."""
        self.busy_since: Any = busy_since.data

    def start(self) -> None:
        self.out.infos = self.infos
        self.unseeded.update(range(self.num_envs))
        for row in range(self.num_envs):
            self._reset_with_retry(row)

    def step(self, actions: IntArray) -> StepBatch:
        self.step_rows(0, self.num_envs, actions)
        return self.out

    def step_rows(self, first: int, last: int, actions: IntArray) -> None:
        """Step rows `first..last-1` with one action each; threads may step other rows meanwhile."""
        env_actions = self.action_adapter.to_env_actions(actions)
        busy_since, envs, steps, forks = self.busy_since, self.envs, self.steps, FORKS.count
        results: list[Any] = []
        for row, action in enumerate(env_actions, first):
            busy_since[row] = monotonic()
            steps[row] += 1
            try:
                results.append(envs[row].step(action))
            except BaseException as error:
                raise_interrupt(error)
                results.append(error)
            if FORKS.count != forks:
                end_forked_child(self._location(row), "step()")
            busy_since[row] = 0.0
        if self._store_batch(first, last, results):
            return
        for row, result in enumerate(results, first):
            try:
                self._store_one(row, result)
            except EnvError as error:
                self._truncate_and_replace(row, error)

    def step_row(self, row: int, actions: Array) -> None:
        """Step a single row, whose action is `actions[row]`.

        This is the path of threads. With a hundred of them no code stays in the CPU caches, so it
        is short.
        """
        action = self.action_adapter.to_env_action(row, actions)
        self.busy_since[row] = monotonic()
        self.steps[row] += 1
        forks = FORKS.count
        result: Any
        try:
            result = self.envs[row].step(action)
        except BaseException as error:
            raise_interrupt(error)
            result = error
        if FORKS.count != forks:
            end_forked_child(self._location(row), "step()")
        self.busy_since[row] = 0.0
        if self._store_fast(row, result):
            return
        try:
            self._store_one(row, result)
        except EnvError as error:
            self._truncate_and_replace(row, error)

    def state_arrays(self) -> Arrays:
        # Only for the shape of a snapshot: a restored env starts a new episode.
        self.saved_steps[:] = self.steps
        return {"steps": self.saved_steps}

    def restore(self, state: State) -> StepBatch:
        """Truncate all episodes and start new ones: third-party envs cannot be restored."""
        super().restore(state)
        warnings.warn(
            f"{self.name} cannot continue in the middle of an episode; its episodes count as "
            "truncated and new ones start.",
            stacklevel=2,
        )
        return self.truncate_all(np.ones(self.num_envs, np.int64))

    def close(self) -> None:
        for env in self.envs:
            try:
                _close(env)
            except BaseException as error:
                raise_interrupt(error)
                warnings.warn(f"an env raised in close(): {describe_exception(error)}.", stacklevel=2)

    # --- outputs of a step ----------------------------------------------------------------------

    def _store_fast(self, row: int, result: Any) -> bool:
        """Store the common case, one valid array within an episode; False if it is not that."""
        entry = self.single_entry
        if entry is None or type(result) is not tuple or len(result) != 5:
            return False
        observation, reward, terminated, truncated, info = result
        if not (terminated is False and truncated is False):
            return False
        if not (isinstance(reward, float) and -MAX_FLOAT32 <= reward <= MAX_FLOAT32):
            return False
        if not isinstance(observation, np.ndarray) or not entry.is_valid_fast(observation):
            return False
        self.out.observation[entry.name][row] = observation
        self.reward_view[row] = reward
        self.terminated_view[row] = self.truncated_view[row] = False
        self.infos[row] = info
        return True

    def _store_one(self, row: int, result: Any) -> None:
        """Check and store the result of one env's step; observations only if they are valid."""
        out = self.out
        try:
            if isinstance(result, BaseException):
                raise result
            observation, reward, terminated, truncated, info = result
            out.reward[row] = reward = float(reward)
            fault = find_reward_error(reward) or find_flag_error(terminated, truncated)
            out.terminated[row], out.truncated[row] = terminated, truncated
        except BaseException as error:
            raise self._env_error(row, "step()", error) from error
        if fault is not None:
            raise EnvError(f"{self._location(row)} returned {fault}")
        arrays = self._checked(row, observation, info)
        if terminated or truncated:
            self._end_episode(row, arrays, info)
        else:
            self._store_observation(row, observation, arrays, info)

    def _store_batch(self, first: int, last: int, results: list[Any]) -> bool:
        """Store the results of many envs at once; False, with nothing stored, if one is not simple.

        A few operations on whole arrays take a third of the time of the same for each env.
        """
        if last - first < MIN_BATCH_ROWS or not self.fits_batch:
            return False
        try:
            observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
            reward = np.array(rewards, np.float64)
            flags = np.array((terminated, truncated), bool)
            arrays = self.observation_adapter.stack(observations)
            if not (all_flags(terminated) and all_flags(truncated)):
                return False
        except BaseException as error:
            raise_interrupt(error)
            return False
        if arrays is None or reward.ndim != 1 or flags.ndim != 2 or not all_finite(reward):
            return False
        out, rows = self.out, slice(first, last)
        out.reward[rows] = reward
        out.terminated[rows], out.truncated[rows] = flags
        self.infos[rows] = infos
        for array, buffer in zip(arrays, out.observation.values(), strict=True):
            buffer[rows] = array
        for row in (first + np.flatnonzero(out.ended[rows])).tolist():
            self._end_episode(row, [array[row - first] for array in arrays], infos[row - first])
        return True

    def _end_episode(self, row: int, final_arrays: list[Array], last_info: Mapping[str, Any]) -> None:
        """Store the final observation and start the next episode in the same step."""
        _copy_row(row, final_arrays, self.out.final_observation)
        self._check_bounds(final_arrays)
        self.episodes[row] += 1
        if self.restart_policy.consecutive:
            self.restart_policy.clear_failures(int(self.env_ids[row]))
        self._reset_with_retry(row)
        self.infos[row] = {**self.infos[row], "final_info": last_info}

    def _reset_row(self, row: int) -> None:
        """Reset one env with the seed of its current episode and store its first observation."""
        seed = None
        if self.seed_episodes or row in self.unseeded:
            key = rng.spawn_one(int(self.env_keys[row]), int(self.episodes[row]))
            seed = key >> 33
            self.unseeded.discard(row)
        self.steps[row] = 0
        self.busy_since[row] = -monotonic()
        forks = FORKS.count
        try:
            observation, info = self.envs[row].reset(seed=seed)
        except BaseException as error:
            raise self._env_error(row, "reset()", error) from error
        finally:
            if FORKS.count != forks:
                end_forked_child(self._location(row), "reset()")
            self.busy_since[row] = 0.0
        arrays = self._checked(row, observation, info)
        self._check_bounds(arrays)
        self._store_observation(row, observation, arrays, info)

    def _reset_with_retry(self, row: int) -> None:
        """Start the current episode, or a later one in a new env if the reset fails."""
        try:
            self._reset_row(row)
        except EnvError as error:
            self._replace_env(row, error)

    # --- failures -------------------------------------------------------------------------------

    def _truncate_and_replace(self, row: int, error: EnvError) -> None:
        """Truncate this row's episode at its last valid observation and continue with a new env."""
        out = self.out
        for name, array in out.final_observation.items():
            array[row] = out.observation[name][row]
        self._replace_env(row, error)
        out.reward[row], out.terminated[row], out.truncated[row] = 0.0, False, True
        self.infos[row] = {**self.infos[row], "final_info": {"env_error": str(error)}}

    def _replace_env(self, row: int, error: EnvError) -> None:
        """Recreate this row's env and start its next episode, if the restart policy allows it."""
        good_steps = int(self.steps[row])
        while True:
            self.restart_policy.record_failure(int(self.env_ids[row]), error, good_steps=good_steps)
            # Another episode, and so another seed: the env may fail for this one only.
            self.episodes[row] += 1
            self.busy_since[row] = monotonic()
            try:
                self._recreate_env(row)
                return self._reset_row(row)
            except EnvError as again:
                error, good_steps = again, 0
            finally:
                self.busy_since[row] = 0.0

    def _recreate_env(self, row: int) -> None:
        """Recreate the env of this row, with the same first reset that all envs had."""
        try:
            _close(self.envs[row])
        except BaseException as error:
            raise_interrupt(error)  # else the failure that led here is what is reported
        self.unseeded.add(row)
        try:
            self.envs[row] = self.make_env()
            if self._needs_first_infos:
                self.envs[row].reset(seed=0)
        except BaseException as error:
            raise self._env_error(row, "its constructor", error) from error

    def _location(self, row: int) -> str:
        """Env, step and episode, for error messages."""
        when = f"step {self.steps[row]} of its episode {self.episodes[row]}"
        return f"env {self.env_ids[row]} of {self.name} ({when})"

    def _env_error(self, row: int, call: str, error: BaseException) -> EnvError:
        raise_interrupt(error)
        return EnvError(f"{self._location(row)} raised in {call}: {describe_env_exception(error)}")

    # --- checks ---------------------------------------------------------------------------------

    def _checked(self, row: int, observation: Any, info: Mapping[str, Any]) -> list[Array]:
        """The arrays of an observation, refused if they do not match the observation space."""
        try:
            return self.observation_adapter.read(observation, info)
        except InvalidObservationError as error:
            raise EnvError(f"{self._location(row)} returned {error}") from error.__cause__

    def _check_bounds(self, arrays: list[Array]) -> None:
        """Warn once if an observation is outside the bounds of its space; checked where episodes begin and end."""
        outside = None if self.is_outside else self.observation_adapter.find_outside(arrays)
        if outside is not None:
            self.is_outside = True
            text = f"{self.name} returns observations outside the bounds of its observation space. They are used as "
            warnings.warn(f"{text}they are; correct the bounds or the env.{EXAMPLE}{outside}.", stacklevel=2)

    def _store_observation(self, row: int, observation: Any, arrays: list[Array], info: Mapping[str, Any]) -> None:
        """Store the current observation, its mask and its info."""
        if self.masks is not None:
            assert self.out.mask is not None
            try:
                mask = self.masks.read(self.envs[row], observation, info)
            except BaseException as error:
                raise self._env_error(row, "action_masks()", error) from error
            if (fault := self.masks.find_error(mask)) is not None:
                raise EnvError(f"{self._location(row)} {fault}")
            self.out.mask[row] = mask
        self.infos[row] = info
        _copy_row(row, arrays, self.out.observation)

    def _make_first(self, env_id: int, name: str | None) -> Env:
        try:
            return self.make_env()
        except SettingsError:
            raise
        except BaseException as error:
            raise_interrupt(error)
            env = f"env {env_id}" if name is None else f"env {env_id} of {name}"
            raise EnvError(f"{env} could not be created: {describe_env_exception(error)}") from error

    @property
    def _needs_first_infos(self) -> bool:
        adapter = self.observation_adapter
        return adapter.mask_space is None or bool(adapter.info_keys)

    def _first_infos(self, env_ids: IntArray) -> list[Mapping[str, Any]]:
        """Infos of a first reset, unless the observation space says what they could.

        Every env gets this reset, so that all of them have the same history.
        """
        infos: list[Mapping[str, Any]] = []
        if not self._needs_first_infos:
            return infos
        for env_id, env in zip(env_ids, self.envs, strict=True):
            try:
                _, info = env.reset(seed=0)
            except BaseException as error:
                raise_interrupt(error)
                raise EnvError(
                    f"env {env_id} of {self.name} raised in its first reset(): {describe_env_exception(error)}"
                ) from error
            infos.append(info)
        return infos


def _copy_row(row: int, arrays: list[Array], buffers: Arrays) -> None:
    for array, buffer in zip(arrays, buffers.values(), strict=True):
        buffer[row] = array


def _close(env: Env) -> None:
    env.close()  # type: ignore[no-untyped-call]


def _name_of(env: Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
