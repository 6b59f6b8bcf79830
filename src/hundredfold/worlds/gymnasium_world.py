"""Any Gymnasium env as a world: give an id or a function that makes an env.

The envs are somebody else's, so this is where they are checked: shapes, types, finite numbers,
usable masks. Every episode starts with its own seed, drawn from the env's stream, which makes
env i tell the same story in any slice of any batch.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hundredfold.core import streams
from hundredfold.core.batch import (
    Array,
    Arrays,
    ArraySpec,
    IntArray,
    State,
    StepBatch,
    WorldSpec,
)
from hundredfold.core.errors import EnvError, SettingsError
from hundredfold.worlds.batch_world import BatchWorld

Env = gymnasium.Env[Any, Any]
EnvMaker = Callable[[], Env]

MASK = "action_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumSettings:
    """How to make the env."""

    env_kwargs: tuple[str, ...] = ()
    """Arguments of the env as key=value, for example: is_slippery=false map_name=8x8"""

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments as Python values: JSON where it parses, plain text otherwise."""
        return dict(_parse_keyword(pair) for pair in self.env_kwargs)

    def __post_init__(self) -> None:
        for pair in self.env_kwargs:
            _parse_keyword(pair)


class GymnasiumWorld(BatchWorld):
    """Gymnasium envs stepped one after another, looking like any other world."""

    def __init__(self, env_ids: IntArray, make_env: EnvMaker, name: str | None = None) -> None:
        self.envs: list[Env] = []
        try:
            for _ in env_ids:
                self.envs.append(make_env())
            self.name = name or _name_of(self.envs[0])
            self.view = ObservationView(self.envs[0].observation_space, self.name)
            self.actions = ActionView(self.envs[0].action_space, self.name)
            self.mask_source = self._find_mask(env_ids)
        except BaseException:
            self.close()
            raise
        spec = WorldSpec(
            name=self.name,
            observation=self.view.specs,
            choices=self.actions.choices,
            has_mask=self.mask_source is not None,
            has_snapshots=False,
        )
        super().__init__(spec, env_ids)
        self.steps = np.zeros(self.num_envs, np.int64)
        # Length of the episode that ended last, for naming the step that ended it.
        self.last_lengths = np.zeros(self.num_envs, np.int64)
        self.infos: list[Mapping[str, Any]] = [{} for _ in self.envs]

    def start(self) -> None:
        for row in range(self.num_envs):
            self._begin(row)
        self.out.foreign_infos = self.infos
        self._refuse_bad_numbers()

    def step(self, actions: IntArray) -> StepBatch:
        out = self.out
        moves = self.actions.for_envs(actions)
        reward, terminated, truncated = out.reward, out.terminated, out.truncated
        for row, env in enumerate(self.envs):
            self.steps[row] += 1
            try:
                seen, reward[row], over, cut, info = env.step(moves[row])
            except Exception as error:
                raise self._failed(row, "step()", error) from error
            terminated[row], truncated[row] = over, cut
            if over or cut:
                self._write(row, seen, out.final_observation)
                self.last_lengths[row] = self.steps[row]
                self.episodes[row] += 1
                self._begin(row)
                self.infos[row] = {**self.infos[row], "final_info": info}
            else:
                self._write(row, seen, out.observation)
                self.infos[row] = info
                if self.mask_source is not None:
                    self._write_mask(row, seen)
        out.foreign_infos = self.infos
        self._refuse_bad_numbers()
        return out

    def kept(self) -> Arrays:
        return {"steps": self.steps}

    def restore(self, state: State) -> StepBatch:
        """Foreign envs cannot be frozen: their episodes are cut off and new ones begin."""
        super().restore(state)
        warnings.warn(
            f"{self.name} cannot be continued in the middle of an episode; its episodes count as "
            "truncated and new ones begin.",
            stacklevel=2,
        )
        for name, array in self.out.observation.items():
            self.out.final_observation[name][:] = array
        self.out.reward[:] = 0.0
        self.out.terminated[:] = False
        self.out.truncated[:] = True
        self.episodes += 1
        self.start()
        return self.out

    def close(self) -> None:
        for env in self.envs:
            _close(env)

    def _begin(self, row: int) -> None:
        """Reset one env with the seed of its current episode and write what it shows."""
        key = streams.spawn(self.env_keys[row], self.episodes[row])
        self.steps[row] = 0
        try:
            seen, info = self.envs[row].reset(seed=int(key >> np.uint64(33)))
        except Exception as error:
            raise self._failed(row, "reset()", error) from error
        self.infos[row] = info
        self._write(row, seen, self.out.observation)
        if self.mask_source is not None:
            self._write_mask(row, seen)

    def _write(self, row: int, seen: Any, buffers: Arrays) -> None:
        """Copy one observation into its row, refusing another shape than the space promised."""
        for name, buffer in buffers.items():
            try:
                array = np.asarray(seen[name] if self.view.is_dict else seen)
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise EnvError(
                    f"{self._where(row)} returned an observation without a usable {name!r}; its "
                    f"observation space has {', '.join(buffers)}."
                ) from error
            if array.shape != buffer.shape[1:]:
                raise EnvError(
                    f"{self._where(row)} returned {name!r} of shape {array.shape}; its observation "
                    f"space says {buffer.shape[1:]}. Make observation_space match the env."
                )
            if array.dtype.kind == "f" and buffer.dtype.kind != "f":
                raise EnvError(
                    f"{self._where(row)} returned {name!r} as {array.dtype} where its observation "
                    f"space has whole numbers ({buffer.dtype})."
                )
            buffer[row] = array

    def _write_mask(self, row: int, seen: Any) -> None:
        assert self.out.mask is not None
        if self.mask_source == "observation":
            mask = seen[MASK]
        elif self.mask_source == "info":
            mask = self.infos[row].get(MASK)
        else:
            try:
                mask = self.envs[row].get_wrapper_attr("action_masks")()
            except Exception as error:
                raise self._failed(row, "action_masks()", error) from error
        wanted = self.out.mask.shape[1:]
        if mask is None or np.shape(mask) != wanted:
            raise EnvError(
                f"{self._where(row)} gave the action mask {mask!r}; expected {wanted[0]} bools at "
                "every step and reset (True = allowed), one per action."
            )
        self.out.mask[row] = mask
        offset = 0
        for count in self.spec.choices:
            if not self.out.mask[row, offset : offset + count].any():
                raise EnvError(
                    f"{self._where(row)} forbids all {count} actions; a mask must leave at least "
                    "one. End the episode where nothing can be done."
                )
            offset += count

    def _refuse_bad_numbers(self) -> None:
        """One check for the whole batch; the culprit is looked for only when there is one."""
        out = self.out
        self._refuse_in({"reward": out.reward}, in_step=True)
        self._refuse_in(out.observation, in_step=False)
        ended = np.flatnonzero(out.ended)
        if len(ended):
            final = {name: array[ended] for name, array in out.final_observation.items()}
            self._refuse_in(final, in_step=True, rows=ended)

    def _refuse_in(self, arrays: Arrays, in_step: bool, rows: IntArray | None = None) -> None:
        """`in_step`: the step itself gave these, not the reset that may have followed it."""
        for name, array in arrays.items():
            # A part of the observation may be called `reward`, too.
            spec = None if array is self.out.reward else self.view.specs.get(name)
            bad = _bad_entries(array, spec)
            if bad is None or not bad.any():
                continue
            first, *place = (int(index) for index in np.argwhere(bad)[0])
            row = first if rows is None else int(rows[first])
            raise EnvError(
                f"{self._where(row, in_step)} returned {array[(first, *place)]} in {name!r}"
                f"{place or ''}; observations and rewards must be finite numbers, and categories "
                "within their number. Fix the env, or mend such values in a wrapper."
            )

    def _where(self, row: int, in_step: bool = False) -> str:
        """Which env, and when; where its episode has just ended, the step that ended it."""
        step, episode = self.steps[row], self.episodes[row]
        if in_step and self.out.ended[row]:
            step, episode = self.last_lengths[row], episode - 1
        return f"env {self.env_ids[row]} of {self.name} (step {step} of its episode {episode})"

    def _failed(self, row: int, call: str, error: Exception) -> EnvError:
        return EnvError(
            f"{self._where(row)} raised in {call}: {type(error).__name__}: {error}. "
            "The env's own traceback is above."
        )

    def _find_mask(self, env_ids: IntArray) -> str | None:
        """Where these envs say what is allowed: observation, info, method, or nowhere.

        Only a reset shows an info. Every env gets one, so that all of them have the same past.
        """
        if self.view.mask_space is not None:
            return "observation"
        source = "method" if self.envs[0].has_wrapper_attr("action_masks") else None
        for env_id, env in zip(env_ids, self.envs, strict=True):
            try:
                _, info = env.reset(seed=0)
            except Exception as error:
                raise EnvError(
                    f"env {env_id} of {self.name} raised in its first reset(): "
                    f"{type(error).__name__}: {error}."
                ) from error
            source = "info" if MASK in info else source
        return source


class ObservationView:
    """How the parts of an observation space become named arrays."""

    def __init__(self, space: spaces.Space[Any], env_name: str) -> None:
        self.is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self.mask_space = parts.pop(MASK, None) if self.is_dict else None
        if not parts:
            raise SettingsError(f"{env_name} observes nothing but its {MASK}.")
        self.specs = {name: _array_spec(part, name, env_name) for name, part in parts.items()}


class ActionView:
    """How whole numbers from 0 become the actions an env expects."""

    def __init__(self, space: spaces.Space[Any], env_name: str) -> None:
        if isinstance(space, spaces.Discrete):
            self.choices: tuple[int, ...] = (int(space.n),)
            self.start: IntArray = np.asarray(space.start, np.int64)
        elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            self.choices = tuple(int(n) for n in space.nvec)
            self.start = np.asarray(space.start, np.int64)
        else:
            raise SettingsError(
                f"{env_name} has the action space {space}; hundredfold plays Discrete and flat "
                "MultiDiscrete ones. Wrap the env to offer a list of actions."
            )
        self.is_single = isinstance(space, spaces.Discrete)

    def for_envs(self, actions: IntArray) -> list[Any]:
        """One action per env, as its space has it."""
        shifted = actions + self.start
        return shifted.tolist() if self.is_single else list(shifted.reshape(-1, len(self.choices)))


def _array_spec(space: spaces.Space[Any], name: str, env_name: str) -> ArraySpec:
    if isinstance(space, spaces.Box):
        return ArraySpec(space.shape, str(space.dtype), _bounds(space.low), _bounds(space.high))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return ArraySpec((), "int64", 0, int(space.n) - 1, categories=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and not np.any(space.start):
        counts = tuple(int(n) for n in space.nvec.flat)
        high = tuple(float(count - 1) for count in counts)
        return ArraySpec(space.shape, "int64", 0, high, categories=counts)
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int8", 0, 1)
    raise SettingsError(
        f"{env_name} observes {name!r} as {space}; hundredfold reads Box, Discrete and "
        "MultiDiscrete (from 0), MultiBinary, and a Dict of these. Flatten it with "
        "gymnasium.wrappers.FlattenObservation or a wrapper of your own."
    )


def _bounds(bound: Array) -> float | tuple[float, ...]:
    """One number where all entries share it (images would fill a settings file otherwise)."""
    values = [float(b) for b in bound.flat]
    return values[0] if len(set(values)) <= 1 and values else tuple(values)


def _bad_entries(array: Array, spec: ArraySpec | None) -> Array | None:
    """Where numbers are not finite or categories out of range; None where neither can be."""
    if spec is not None and spec.categories is not None:
        counts = np.reshape(spec.categories, spec.shape)
        return (array < 0) | (array >= counts)
    return ~np.isfinite(array) if array.dtype.kind == "f" else None


def _close(env: Env) -> None:
    env.close()  # type: ignore[no-untyped-call]


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


def _name_of(env: Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


@dataclass(frozen=True, slots=True)
class GymnasiumFactory:
    """Makes a `GymnasiumWorld` from an env id; plain data, so it travels to worker processes."""

    env_id: str
    keywords: Mapping[str, Any]

    def __call__(self, env_ids: IntArray) -> GymnasiumWorld:
        return GymnasiumWorld(env_ids, self.make_env, name=self.env_id)

    def make_env(self) -> Env:
        try:
            # The adapter checks every step itself; Gymnasium's passive checker would do it again.
            return gymnasium.make(self.env_id, disable_env_checker=True, **self.keywords)
        except Exception as error:
            given = f" with {dict(self.keywords)}" if self.keywords else ""
            raise SettingsError(
                f"Gymnasium cannot make {self.env_id}{given}: {type(error).__name__}: {error}"
            ) from error
