"""The ecosystem's door: built-in envs as Gymnasium envs and vector envs.

`make_vec` gives any env or Gymnasium id as a vector env on any backend. The envs are also
registered with Gymnasium (`hundredfold/CartPole-v0`, ...), for `gymnasium.make` and
`gymnasium.make_vec`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hundredfold.backends import make_backend
from hundredfold.backends.call_checks import checked_actions
from hundredfold.core import rng
from hundredfold.core.batch import Arrays, ArraySpec, BoolArray, EnvSpec, StepBatch
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.protocols import Backend, EnvFactory
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.registry import (
    ENVS,
    callable_factory,
    canonical_name,
    env_factory,
    settings_class,
)

Observation = Any


def make_vec(
    env: str | Callable[[], Any],
    num_envs: int = 1,
    *,
    backend: str = "auto",
    seed: int | None = None,
    copy: bool = True,
    true_state_in_info: bool = False,
    **settings: Any,
) -> BackendVectorEnv:
    """An env, a Gymnasium id or a function that makes an env, as a Gymnasium vector env.

    Settings of the env (or arguments of the Gymnasium env) go by name. `seed` is used by the
    first `reset()` that names none. With `copy=False` arrays are live views, right until the next
    step.
    """
    factory = _factory(env, settings)
    return BackendVectorEnv(
        make_backend(backend, factory, num_envs),
        seed=seed,
        copy=copy,
        true_state_in_info=true_state_in_info,
    )


def register() -> None:
    """Tell Gymnasium about built-in envs; done when hundredfold is imported."""
    for name, entry in ENVS.items():
        if entry.gymnasium_id not in gymnasium.registry:
            gymnasium.register(
                id=entry.gymnasium_id,
                entry_point="hundredfold.interop.gymnasium:BuiltinEnv",
                vector_entry_point="hundredfold.interop.gymnasium:registered_vec",
                kwargs={"env": name},
            )


def registered_vec(num_envs: int, env: str, **settings: Any) -> BackendVectorEnv:
    """What `gymnasium.make_vec` calls for a registered env."""
    return make_vec(env, num_envs, **settings)


class BackendVectorEnv(VectorEnv[Any, Any, Any]):
    """A backend seen as a Gymnasium vector env with same-step autoreset.

    Infos carry the env's info arrays, `action_mask` where the env has masks, and, where
    episodes ended, `final_obs` and `final_info`. `true_state` is the env's own state, free of
    charge: arrays that are already there.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        backend: Backend,
        *,
        seed: int | None = None,
        copy: bool = True,
        true_state_in_info: bool = False,
    ) -> None:
        self.backend = backend
        self.seed = secrets.randbits(63) if seed is None else seed
        self.resets = 0
        self.copy_arrays = copy
        self.true_state_in_info = true_state_in_info
        self.num_envs = backend.num_envs
        self.single_observation_space = observation_space(backend.spec)
        self.single_action_space = action_space(backend.spec)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.batch: StepBatch = backend.spec.batch(np.arange(self.num_envs))

    @property
    def true_state(self) -> Arrays:
        """The true state of every env before the next step: live arrays, no copies."""
        return self.batch.true_state

    def action_masks(self) -> BoolArray:
        """(num_envs, actions) what may be done now, by the name that sb3-contrib looks for."""
        if self.batch.mask is None:
            return np.ones((self.num_envs, self.backend.spec.num_logits), bool)
        return self.batch.mask.copy()

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start episode 0 of every env; one seed serves them all."""
        if options:
            raise SettingsError(
                f"reset() got the options {options}; all envs are reset together, without options."
            )
        if seed is not None:
            if not isinstance(seed, int | np.integer):
                raise SettingsError(
                    f"reset() got the seeds {seed}; pass one number, and every env has its own."
                )
            self.seed, self.resets = int(seed), 0
        self.backend.reset(_seed_of_reset(self.seed, self.resets))
        self.resets += 1
        self.batch = self.backend.recv()
        return self._observation(), self._infos()

    def step(self, actions: Any) -> tuple[Observation, Any, BoolArray, BoolArray, dict[str, Any]]:
        """Play one action per env."""
        self.backend.send(np.asarray(actions))
        self.batch = batch = self.backend.recv()
        reward, over, cut = batch.reward, batch.terminated, batch.truncated
        if self.copy_arrays:
            reward, over, cut = reward.copy(), over.copy(), cut.copy()
        return self._observation(), reward, over, cut, self._infos()

    def close_extras(self, **kwargs: Any) -> None:
        self.backend.close()

    def _observation(self) -> Observation:
        return _joined(self.batch.observation, self.backend.spec, self.copy_arrays)

    def _infos(self) -> dict[str, Any]:
        batch = self.batch
        named: dict[str, Any] = dict(batch.info)
        if batch.mask is not None:
            named["action_mask"] = batch.mask
        if self.true_state_in_info:
            named |= {f"true_state/{name}": array for name, array in batch.true_state.items()}
        infos: dict[str, Any] = {}
        everyone = np.ones(self.num_envs, bool)
        for name, array in named.items():
            infos[name] = array.copy() if self.copy_arrays else array
            infos[f"_{name}"] = everyone
        for row, info in enumerate(batch.infos or ()):
            infos = self._add_info(infos, dict(info), row)
        ended = batch.ended
        if ended.any():
            infos["final_obs"] = self._final_observations(ended)
            infos["_final_obs"] = ended
            if batch.episode_info:
                final = {name: array.copy() for name, array in batch.episode_info.items()}
                infos["final_info"] = final | {f"_{name}": ended for name in final}
                infos["_final_info"] = ended
        return infos

    def _final_observations(self, ended: BoolArray) -> Any:
        """Gymnasium's form: an object per env, None where the episode goes on."""
        found = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(ended):
            parts = {name: array[row] for name, array in self.batch.final_observation.items()}
            found[row] = _joined(parts, self.backend.spec, copy=True)
        return found


class BuiltinEnv(gymnasium.Env[Any, Any]):
    """One env of one of built-in envs, for everything that wants a plain Gymnasium env."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: str, render_mode: None = None, **settings: Any) -> None:
        if render_mode is not None:
            # A TypeError by custom: trainers that ask on the off chance then ask for nothing.
            raise TypeError(
                f"built-in envs draw nothing; render_mode {render_mode!r} cannot be had."
            )
        made = _factory(env, settings)(np.arange(1))
        if not isinstance(made, ArrayBatchEnv):
            raise SettingsError(f"{env} is not one of our batch envs; use gymnasium.make.")
        self.env = made
        self.observation_space = observation_space(made.spec)
        self.action_space = action_space(made.spec)
        # built-in envs begin the next episode by themselves; the next `reset` finds it begun.
        self.next_has_begun = False
        self.seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next episode, or episode 0 of another seed."""
        super().reset(seed=seed)
        if seed is not None or not self.seeded:
            self.env.reset(secrets.randbits(63) if seed is None else seed)
            self.seeded = True
        elif not self.next_has_begun:
            self.env.episodes += 1
            self.env.start()
        self.next_has_begun = False
        for array in self.env.out.info.values():
            array[...] = 0  # it tells of the last step of the episode before
        return self._observation(self.env.out.observation), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play one action."""
        chosen = checked_actions(np.asarray(action)[None], self.env.out, self.env.spec)
        out = self.env.step(chosen)
        self.next_has_begun = bool(out.ended[0])
        seen = out.final_observation if self.next_has_begun else out.observation
        info = self._info()
        if self.next_has_begun:
            info |= {name: _plain(array[0]) for name, array in out.episode_info.items()}
        return (
            self._observation(seen),
            float(out.reward[0]),
            bool(out.terminated[0]),
            bool(out.truncated[0]),
            info,
        )

    def action_masks(self) -> BoolArray:
        """(actions,) what may be done now."""
        mask = self.env.out.mask
        return np.ones(self.env.spec.num_logits, bool) if mask is None else mask[0].copy()

    def _observation(self, arrays: Arrays) -> Observation:
        row = {name: array[0] for name, array in arrays.items()}
        return _joined(row, self.env.spec, copy=True)

    def _info(self) -> dict[str, Any]:
        info = {name: _plain(array[0]) for name, array in self.env.out.info.items()}
        if self.env.out.mask is not None:
            info["action_mask"] = self.action_masks()
        return info


def observation_space(spec: EnvSpec) -> spaces.Space[Any]:
    """One env's observation: a plain space for a single array called `observation`, else a Dict."""
    parts = {name: _space(array) for name, array in spec.observation.items()}
    return parts["observation"] if list(parts) == ["observation"] else spaces.Dict(parts)


def action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Discrete for one choice, MultiDiscrete for several, a Box where actions are numbers."""
    if spec.continuous_action is not None:
        return _space(spec.continuous_action)
    if len(spec.action_nvec) == 1:
        return spaces.Discrete(spec.action_nvec[0])
    return spaces.MultiDiscrete(list(spec.action_nvec))


def _space(array: ArraySpec) -> spaces.Space[Any]:
    if array.categories is not None:
        if array.shape == ():
            return spaces.Discrete(array.categories[0])
        return spaces.MultiDiscrete(np.asarray(array.categories).reshape(array.shape))
    if (array.dtype, array.low, array.high) == ("int8", 0, 1):
        return spaces.MultiBinary(array.shape)
    dtype = np.dtype(array.dtype).type
    return spaces.Box(_bound(array.low, array), _bound(array.high, array), array.shape, dtype)


def _bound(bound: float | tuple[float, ...], array: ArraySpec) -> Any:
    values = np.broadcast_to(
        np.reshape(bound, array.shape if isinstance(bound, tuple) else ()), array.shape
    )
    if np.dtype(array.dtype).kind not in "iu":
        return values.astype(array.dtype)
    # Bounds travel as floats, and the largest whole numbers do not survive that: cut them off.
    limits = np.iinfo(array.dtype)
    exact = [min(max(int(value), limits.min), limits.max) for value in values.flat]
    return np.array(exact, array.dtype).reshape(array.shape)


def _factory(env: str | Callable[[], Any], settings: dict[str, Any]) -> EnvFactory:
    if callable(env):
        return callable_factory(partial(env, **settings))
    name = canonical_name(env)
    kind = settings_class(name)
    if name not in ENVS:
        from hundredfold.envs.gymnasium_env import GymnasiumFactory

        return GymnasiumFactory(name, settings)
    known = [item.name for item in fields(kind)]
    for word in settings:
        if word not in known:
            raise SettingsError(f"{name} has no setting {word!r}; {suggest(word, known)}")
    return env_factory(name, kind(**settings))


def _seed_of_reset(seed: int, resets: int) -> int:
    """The seed itself at first; later resets that name none have seeds that follow from it."""
    return seed if resets == 0 else int(rng.spawn(rng.seed_key(seed), resets))


def _joined(arrays: Arrays, spec: EnvSpec, copy: bool) -> Observation:
    """As the observation space has it: one array, or a dictionary of them."""
    kept = {name: np.array(array) if copy else array for name, array in arrays.items()}
    return kept["observation"] if list(spec.observation) == ["observation"] else kept


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else np.array(value)
