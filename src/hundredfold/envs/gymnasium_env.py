"""Any Gymnasium env as an env: give a function that makes one (`gymnasium_factory.py`: or an id).

The envs are somebody else's, so this is where they are checked: shapes, types, finite numbers,
usable masks. Every episode starts with its own seed, drawn from the env's stream, which makes
env i tell the same story in any slice of any batch; so does a seed for the first episode alone, but
then nobody can play a later one again. What becomes of an env that fails is up to the env's
`guard`: by default it raises; a backend may set one that lets the env start again.

Gymnasium envs by their ids: what may be said about them, and how they are made.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from time import monotonic
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, EnvSpec, FloatArray, IntArray, State, StepBatch
from hundredfold.core.errors import EnvError, SettingsError
from hundredfold.core.failures import RestartPolicy
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.gymnasium_spaces import FINITE, ActionView, ObservationView, masks_of

Env = gymnasium.Env[Any, Any]
EnvMaker = Callable[[], Env]

# `sys.exit()` in an env is a failure of the env, not the end of our program.
FAULTS: Final = (Exception, SystemExit)
# From so many envs on, and up to so many numbers each, they are written down all at once.
MANY: Final = 4
SMALL: Final = 1000


class GymnasiumBatchEnv(ArrayBatchEnv):
    """Gymnasium envs stepped one after another, looking like any other env."""

    def __init__(
        self,
        env_ids: IntArray,
        make_env: EnvMaker,
        name: str | None = None,
        *,
        seed_episodes: bool = True,
    ) -> None:
        self.make_env = make_env
        self.seed_episodes = seed_episodes
        self.restart_policy = RestartPolicy()
        self.envs: list[Env] = []
        try:
            for env_id in env_ids:
                self.envs.append(self._first_env(int(env_id), name))
            self.name = name or _name_of(self.envs[0])
            self.view = ObservationView(self.envs[0].observation_space, self.name)
            self.actions = ActionView(self.envs[0].action_space, self.name)
            self.masks = masks_of(
                self.envs[0], self.view, self.actions, self._first_infos(env_ids), self.name
            )
        except BaseException:
            self.close()
            raise
        spec = EnvSpec(
            name=self.name,
            observation=self.view.specs,
            action_nvec=self.actions.action_nvec,
            continuous_action=self.actions.box,
            has_mask=self.masks is not None,
            has_snapshots=False,
        )
        super().__init__(spec, env_ids)
        self.unseeded: set[int] = set()  # rows whose next episode needs a seed in any case
        # A list, because it is counted up one by one: an array takes five times as long for that.
        self.steps = [0] * self.num_envs
        self.steps_kept = np.zeros(self.num_envs, np.int64)
        self.set_busy_since(np.zeros(self.num_envs))
        self.set_output_buffers(self.out)
        # Masks are looked at env by env, and large observations are not worth another copy.
        size = sum(array.size for array in self.view.specs.values())
        self.is_small = self.masks is None and size <= SMALL
        is_plain = self.masks is None and not self.view.is_dict
        self.plain_part = self.view.parts[0] if is_plain else None
        self.infos: list[Mapping[str, Any]] = [{} for _ in self.envs]

    def set_output_buffers(self, out: StepBatch) -> None:
        super().set_output_buffers(out)
        # The same as plain memory: numpy takes twice as long for a single number.
        self.reward_one: Any = out.reward.data
        self.over_one: Any = out.terminated.data
        self.cut_one: Any = out.truncated.data

    def set_busy_since(self, busy_since: FloatArray) -> None:
        """Note there, (envs,), since which `time.monotonic()` each is at work; 0 for not at all."""
        self.busy_since: Any = busy_since.data

    def start(self) -> None:
        self.out.infos = self.infos
        self.unseeded.update(range(self.num_envs))
        for row in range(self.num_envs):
            self._begin_somehow(row)

    def step(self, actions: IntArray) -> StepBatch:
        self.step_rows(0, self.num_envs, actions)
        return self.out

    def step_rows(self, first: int, last: int, actions: IntArray) -> None:
        """Play one action in each row `first..last-1`; threads may step other rows meanwhile."""
        moves = self.actions.for_envs(actions)
        busy_since, envs, steps = self.busy_since, self.envs, self.steps
        outcomes: list[Any] = []
        for row, move in enumerate(moves, first):
            busy_since[row] = monotonic()
            steps[row] += 1
            try:
                outcomes.append(envs[row].step(move))
            except FAULTS as error:
                outcomes.append(error)
            busy_since[row] = 0.0
        if self._take_all(first, last, outcomes):
            return
        for row, outcome in enumerate(outcomes, first):
            try:
                self._take(row, outcome)
            except EnvError as error:
                self._restart(row, error)

    def step_row(self, row: int, actions: Array) -> None:
        """The same for a single row, its action among those of all rows: as threads do it.

        With a hundred threads in turn all code is cold, so there is little of it.
        """
        move = self.actions.for_env(row, actions)
        self.busy_since[row] = monotonic()
        self.steps[row] += 1
        outcome: Any
        try:
            outcome = self.envs[row].step(move)
        except FAULTS as error:
            outcome = error
        self.busy_since[row] = 0.0
        if self._take_plain(row, outcome):
            return
        try:
            self._take(row, outcome)
        except EnvError as error:
            self._restart(row, error)

    def state_arrays(self) -> Arrays:
        # Only ever read: whoever is restored begins a new episode.
        self.steps_kept[:] = self.steps
        return {"steps": self.steps_kept}

    def restore(self, state: State) -> StepBatch:
        """Foreign envs cannot be frozen: their episodes are cut off and new ones begin."""
        super().restore(state)
        warnings.warn(
            f"{self.name} cannot be continued in the middle of an episode; its episodes count as "
            "truncated and new ones begin.",
            stacklevel=2,
        )
        return self.truncate_all(np.ones(self.num_envs, np.int64))

    def close(self) -> None:
        for env in self.envs:
            try:
                _close(env)
            except FAULTS as error:
                warnings.warn(
                    f"an env raised in close(): {type(error).__name__}: {error}.", stacklevel=2
                )

    # -- playing --------------------------------------------------------------------------------

    def _take_plain(self, row: int, outcome: Any) -> bool:
        """Write what most steps come to: one sound array, amid an episode. False for all else."""
        part = self.plain_part
        if part is None or type(outcome) is not tuple or len(outcome) != 5:
            return False
        seen, reward, over, cut, info = outcome
        if not (over is False and cut is False and isinstance(reward, float) and isfinite(reward)):
            return False
        if not isinstance(seen, np.ndarray) or not part.looks_sound(seen):
            return False
        self.out.observation[part.name][row] = seen
        self.reward_one[row] = reward
        self.over_one[row] = self.cut_one[row] = False
        self.infos[row] = info
        return True

    def _take(self, row: int, outcome: Any) -> None:
        """Write what came of one env's step. Nothing is written before all of it is checked."""
        out = self.out
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            seen, reward, over, cut, info = outcome
            out.reward[row] = paid = float(reward)
            out.terminated[row], out.truncated[row] = over, cut
        except FAULTS as error:
            raise self._failed(row, "step()", error) from error
        if not isfinite(paid):
            raise EnvError(f"{self._where(row)} returned {paid} in 'reward'; {FINITE}")
        parts = self._checked(row, seen)
        if over or cut:
            _put(row, parts, out.final_observation)
            self._next_episode(row, info)
        else:
            self._show(row, seen, parts, info)

    def _take_all(self, first: int, last: int, outcomes: list[Any]) -> bool:
        """The same for many envs at once; False if one needs a closer look, with nothing written.

        A few operations on whole arrays take a third of the time of the same for each env.
        """
        if last - first < MANY or not self.is_small:
            return False
        try:
            seen, rewards, over, cut, infos = zip(*outcomes, strict=True)
            paid = np.array(rewards, np.float64)
            flags = np.array((over, cut), bool)
            parts = self.view.stacked(seen)
        except FAULTS:
            return False
        if parts is None or paid.ndim != 1 or flags.ndim != 2 or not isfinite(np.add.reduce(paid)):
            return False
        out, rows = self.out, slice(first, last)
        out.reward[rows] = paid
        out.terminated[rows], out.truncated[rows] = flags
        self.infos[rows] = infos
        for part, array in zip(parts, out.observation.values(), strict=True):
            array[rows] = part
        for row in (first + np.flatnonzero(out.ended[rows])).tolist():
            _put(row, [part[row - first] for part in parts], out.final_observation)
            self._next_episode(row, infos[row - first])
        return True

    def _next_episode(self, row: int, last_info: Mapping[str, Any]) -> None:
        """An episode came to its end, and another begins in the same step."""
        self.episodes[row] += 1
        if self.restart_policy.consecutive:
            self.restart_policy.clear_failures(int(self.env_ids[row]))
        self._begin_somehow(row)
        self.infos[row] = {**self.infos[row], "final_info": last_info}

    def _begin(self, row: int) -> None:
        """Reset one env with the seed of its current episode and write what it shows."""
        seed = None
        if self.seed_episodes or row in self.unseeded:
            key = rng.spawn_one(int(self.env_keys[row]), int(self.episodes[row]))
            seed = key >> 33
            self.unseeded.discard(row)
        self.steps[row] = 0
        self.busy_since[row] = monotonic()
        try:
            seen, info = self.envs[row].reset(seed=seed)
        except FAULTS as error:
            raise self._failed(row, "reset()", error) from error
        finally:
            self.busy_since[row] = 0.0
        self._show(row, seen, self._checked(row, seen), info)

    def _begin_somehow(self, row: int) -> None:
        """Begin the current episode, or a later one with another env when this one fails."""
        try:
            self._begin(row)
        except EnvError as error:
            self._replace(row, error)

    # -- failing --------------------------------------------------------------------------------

    def _restart(self, row: int, error: EnvError) -> None:
        """Cut this row's episode off where it was last sound, and go on with another env."""
        out = self.out
        for name, array in out.final_observation.items():
            array[row] = out.observation[name][row]
        self._replace(row, error)
        out.reward[row], out.terminated[row], out.truncated[row] = 0.0, False, True
        self.infos[row] = {**self.infos[row], "final_info": {"env_error": str(error)}}

    def _replace(self, row: int, error: EnvError) -> None:
        """Put a new env into this row and begin its next episode, unless the guard has enough."""
        good_steps = int(self.steps[row])
        while True:
            self.restart_policy.record_failure(int(self.env_ids[row]), error, good_steps=good_steps)
            # Another episode, and so another seed: some levels cannot be played.
            self.episodes[row] += 1
            self.busy_since[row] = monotonic()
            try:
                self._renew(row)
                return self._begin(row)
            except EnvError as again:
                error, good_steps = again, 0
            finally:
                self.busy_since[row] = 0.0

    def _renew(self, row: int) -> None:
        """Make the env of this row anew, with the past that all envs have."""
        with suppress(*FAULTS):  # it is given up for what it did before
            _close(self.envs[row])
        self.unseeded.add(row)
        try:
            self.envs[row] = self.make_env()
            if self.view.mask_space is None:
                self.envs[row].reset(seed=0)
        except FAULTS as error:
            raise self._failed(row, "being made again", error) from error

    def _where(self, row: int) -> str:
        """Which env, and when."""
        when = f"step {self.steps[row]} of its episode {self.episodes[row]}"
        return f"env {self.env_ids[row]} of {self.name} ({when})"

    def _failed(self, row: int, call: str, error: BaseException) -> EnvError:
        return EnvError(
            f"{self._where(row)} raised in {call}: {type(error).__name__}: {error}. "
            "The env's own traceback is above."
        )

    # -- reading --------------------------------------------------------------------------------

    def _checked(self, row: int, seen: Any) -> list[Array]:
        """The parts of an observation, refused unless they are what the space promised."""
        found = []
        for part in self.view.parts:
            try:
                array = np.asarray(seen[part.name] if self.view.is_dict else seen)
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise EnvError(
                    f"{self._where(row)} returned an observation without a usable {part.name!r}; "
                    f"its observation space has {', '.join(self.view.specs)}."
                ) from error
            if not part.looks_sound(array):
                fault = part.fault_in(array)
                if fault is not None:
                    raise EnvError(f"{self._where(row)} returned {fault}")
            found.append(array)
        return found

    def _show(self, row: int, seen: Any, parts: list[Array], info: Mapping[str, Any]) -> None:
        """Write what an env shows now, with what it allows."""
        if self.masks is not None:
            assert self.out.mask is not None
            try:
                mask = self.masks.told(self.envs[row], seen, info)
            except FAULTS as error:
                raise self._failed(row, "action_masks()", error) from error
            if (fault := self.masks.fault_in(mask)) is not None:
                raise EnvError(f"{self._where(row)} {fault}")
            self.out.mask[row] = mask
        self.infos[row] = info
        _put(row, parts, self.out.observation)

    def _first_env(self, env_id: int, name: str | None) -> Env:
        try:
            return self.make_env()
        except SettingsError:
            raise
        except FAULTS as error:
            who = f"env {env_id}" if name is None else f"env {env_id} of {name}"
            raise EnvError(
                f"{who} could not be made: {type(error).__name__}: {error}. "
                "The env's own traceback is above."
            ) from error

    def _first_infos(self, env_ids: IntArray) -> list[Mapping[str, Any]]:
        """What envs say when they are reset, where that may be needed to find their masks.

        Every env gets a reset then, so that all of them have the same past.
        """
        infos: list[Mapping[str, Any]] = []
        if self.view.mask_space is not None:
            return infos
        for env_id, env in zip(env_ids, self.envs, strict=True):
            try:
                _, info = env.reset(seed=0)
            except FAULTS as error:
                raise EnvError(
                    f"env {env_id} of {self.name} raised in its first reset(): "
                    f"{type(error).__name__}: {error}."
                ) from error
            infos.append(info)
        return infos


def _put(row: int, parts: list[Array], buffers: Arrays) -> None:
    for array, buffer in zip(parts, buffers.values(), strict=True):
        buffer[row] = array


def _close(env: Env) -> None:
    env.close()  # type: ignore[no-untyped-call]


def _name_of(env: Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumSettings:
    """How to make the env."""

    env_kwargs: tuple[str, ...] = ()
    """Arguments of the env as key=value, for example: is_slippery=false map_name=8x8"""

    seed_episodes: bool = True
    """Give every episode a seed of its own, so that it can be played again; otherwise only the
    first one, as Gymnasium's vector envs do: cheap envs with short episodes are faster that way"""

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments as Python values: JSON where it parses, plain text otherwise."""
        return dict(_parse_keyword(pair) for pair in self.env_kwargs)

    def __post_init__(self) -> None:
        for pair in self.env_kwargs:
            _parse_keyword(pair)


@dataclass(frozen=True, slots=True)
class GymnasiumFactory:
    """Makes a `GymnasiumBatchEnv` from an env id; plain data, so it travels to worker processes."""

    env_id: str
    keywords: Mapping[str, Any]
    seed_episodes: bool = True

    def __call__(self, env_ids: IntArray) -> GymnasiumBatchEnv:
        return GymnasiumBatchEnv(
            env_ids, self.make_env, self.env_id, seed_episodes=self.seed_episodes
        )

    def make_env(self) -> Env:
        try:
            # The adapter checks every step itself; Gymnasium's passive checker would do it again.
            env = gymnasium.make(self.env_id, disable_env_checker=True, **self.keywords)
        except Exception as error:
            given = f" with {dict(self.keywords)}" if self.keywords else ""
            raise SettingsError(
                f"Gymnasium cannot make {self.env_id}{given}: {type(error).__name__}: {error}"
            ) from error
        return _without_order_check(env)


def _parse_keyword(pair: str) -> tuple[str, Any]:
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
        raise SettingsError(
            f"env_kwargs got {pair!r}; write key=value, for example is_slippery=false."
        )
    try:
        return key, json.loads(text)
    except json.JSONDecodeError:
        return key, text


def _without_order_check(env: Env) -> Env:
    """The env without Gymnasium's check that a reset comes first: here it always does."""
    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, gymnasium.Wrapper):
        env.env = _without_order_check(env.env)
    return env
