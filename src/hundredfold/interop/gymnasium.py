"""Gymnasium interface: envs as Gymnasium vector envs on any backend, built-in envs also singly.

Built-in envs are registered with Gymnasium (`hundredfold/CartPole-v0`, ...), for `gymnasium.make`
and `gymnasium.make_vec`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hundredfold.backends import make_backend
from hundredfold.backends.call_checks import check_num_envs, checked_actions
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core import rng
from hundredfold.core.batch import Arrays, ArraySpec, BoolArray, EnvSpec, StepBatch, copies
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.protocols import Backend, EnvFactory, SharedParams
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.next_step import NextStepFactory, with_ignored_actions
from hundredfold.envs.registry import ENVS, action_names, callable_factory, canonical_name, env_factory, settings_class
from hundredfold.envs.rendering import LastStep, make_rendering

Observation = Any


def make_vec(
    env: str | Callable[[], Any] | None = None,
    num_envs: int = 1,
    *,
    run: str | Path | None = None,
    checkpoint: str = "best",
    trust_run: bool = False,
    backend: str = "auto",
    seed: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    true_state_in_info: bool = False,
    worker_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> BackendVectorEnv:
    """Create a Gymnasium vector env.

    Args:
        env: Name of a built-in env, a Gymnasium id, or a function that creates an env.
        num_envs: Number of envs.
        run: Run folder instead of `env`: its env with its settings and, if it has a belief model,
            the beliefs of a checkpoint, so that its policy gets the inputs it was trained on. A run
            on a function needs the function as `env`, too.
        checkpoint: "best", "last" or an epoch of the run.
        trust_run: Import the module of an env that only the run folder names.
        backend: Where the envs run, as `--backend`; `auto` profiles one env first. A step returns
            all envs: `first_ready` waits for all of them here, as `processes` does.
        seed: Seed of the first `reset()` that is called without one; default: random.
        autoreset_mode: `NextStep`, Gymnasium's default, with which its vector wrappers are exact:
            an ended env returns its last observation, and the first one of the next episode in
            the next step, whose action is ignored. `SameStep`: it returns the first observation
            at once and the last one as `infos["final_obs"]`.
        copy: Whether returned arrays are copies, or views that are valid until the next step.
        true_state_in_info: Whether infos contain the hidden state as `true_state/...`.
        worker_settings: Settings of worker processes and failing envs by the names of their flags,
            for example `{"workers": 8, "env_threads": 1, "on_env_error": "stop"}`.
        settings: Settings of the env, or keyword arguments of the Gymnasium env.
    """
    workers = _worker_settings(worker_settings or {}, check_num_envs(num_envs))
    mode = _checked_mode(autoreset_mode)
    shared_params: SharedParams | None = None
    if run is not None:
        make_envs, shared_params = _env_of_run(run, checkpoint, trust_run, env, settings)
    elif env is None:
        raise SettingsError("make_vec() got neither env nor run; pass the name of an env or a run folder.")
    else:
        make_envs = factory_for(env, settings, OTHER_ARGUMENTS)
    # The factory of a built-in env holds its settings.
    env_settings = make_envs.keywords.get("settings") if isinstance(make_envs, partial) else None
    if mode is AutoresetMode.NEXT_STEP:
        make_envs = NextStepFactory(make_envs)
    running = make_backend(backend, make_envs, num_envs, workers)
    if shared_params is not None:
        running.broadcast(shared_params)
    return BackendVectorEnv(
        running,
        autoreset_mode=mode,
        seed=seed,
        copy=copy,
        true_state_in_info=true_state_in_info,
        action_names=() if env_settings is None else action_names(running.spec.name, env_settings),
    )


# Arguments beside the env and its settings.
OTHER_ARGUMENTS: Final = tuple(name for name in signature(make_vec).parameters if name not in ("env", "settings"))


def register() -> None:
    """Register built-in envs with Gymnasium; called when hundredfold is imported."""
    for name, entry in ENVS.items():
        if entry.gymnasium_id not in gymnasium.registry:
            gymnasium.register(
                id=entry.gymnasium_id,
                entry_point="hundredfold.interop.gymnasium:BuiltinEnv",
                vector_entry_point="hundredfold.interop.gymnasium:registered_vec",
                kwargs={"env": name},
            )


def registered_vec(num_envs: int, env: str, **settings: Any) -> BackendVectorEnv:
    """Entry point of `gymnasium.make_vec` for registered envs."""
    return make_vec(env, num_envs, **settings)


class BackendVectorEnv(VectorEnv[Any, Any, Any]):
    """A backend as a Gymnasium vector env.

    Infos contain the env's info arrays and `action_mask` if the env has masks. Where an episode
    ended they also contain its infos: with next-step autoreset under their own names, with
    same-step autoreset in `final_info`, beside `final_obs`.

    Args:
        backend: Runs the envs and returns all of them at every step; closed with this env.
        autoreset_mode: That of the backend's envs, see `make_vec`, also for the other arguments.
        seed: See `make_vec`.
        copy: See `make_vec`.
        true_state_in_info: See `make_vec`.
        action_names: Names of the actions, by number; empty if they have none.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        autoreset_mode: AutoresetMode,
        seed: int | None = None,
        copy: bool = True,
        true_state_in_info: bool = False,
        action_names: Sequence[str] = (),
    ) -> None:
        self.backend = backend
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.is_next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self.action_names = tuple(action_names)
        self.seed = secrets.randbits(63) if seed is None else seed
        self.num_resets = 0
        self.copy_arrays = copy
        self.true_state_in_info = true_state_in_info
        self.num_envs = backend.num_envs
        self.single_observation_space = observation_space(backend.spec)
        self.single_action_space = action_space(backend.spec)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.batch: StepBatch = backend.spec.batch(np.arange(self.num_envs))
        self.ended = np.zeros(self.num_envs, bool)  # envs whose episode ended in the last step

    @property
    def true_state(self) -> Arrays:
        """Hidden state of every env: views of arrays that the env has anyway."""
        return self.batch.true_state

    def action_masks(self) -> BoolArray:
        """(num_envs, actions) allowed actions; the method sb3-contrib looks for."""
        if self.batch.mask is None:
            return np.ones((self.num_envs, self.backend.spec.num_logits), bool)
        return self.batch.mask.copy()

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start episode 0 of every env; the envs' own seeds are derived from one seed."""
        if options:
            raise SettingsError(f"reset() takes no options, got {options}: all envs are reset together.")
        if seed is not None:
            if not isinstance(seed, int | np.integer):
                raise SettingsError(
                    f"reset() takes one integer as seed, from which every env derives its own; got {seed!r}."
                )
            self.seed, self.num_resets = int(seed), 0
        self.backend.reset(_reset_seed(self.seed, self.num_resets))
        self.num_resets += 1
        self._recv()
        return self._observation(), self._infos()

    def step(self, actions: Any) -> tuple[Observation, Any, BoolArray, BoolArray, dict[str, Any]]:
        """Take one action per env."""
        actions = np.asarray(actions)
        if self.is_next_step:
            actions = with_ignored_actions(actions, self.ended, self.batch, self.backend.spec)
        self.backend.send(actions)
        batch = self._recv()
        outputs = batch.reward, batch.terminated, batch.truncated
        if self.copy_arrays:
            outputs = batch.reward.copy(), batch.terminated.copy(), batch.truncated.copy()
        return self._observation(), *outputs, self._infos()

    def close_extras(self, **kwargs: Any) -> None:
        self.backend.close()

    def _recv(self) -> StepBatch:
        self.batch = batch = self.backend.recv()
        self.ended = batch.ended
        return batch

    def _observation(self) -> Observation:
        observation = _in_space(self.batch.observation, self.backend.spec, self.copy_arrays)
        if not (self.is_next_step and self.ended.any()):
            return observation
        arrays = copies(self.batch.observation)
        for name, array in arrays.items():
            array[self.ended] = self.batch.final_observation[name][self.ended]
        return _in_space(arrays, self.backend.spec, copy=False)

    def _infos(self) -> dict[str, Any]:
        batch, ended = self.batch, self.ended
        arrays: dict[str, Any] = dict(batch.info)
        if batch.mask is not None:
            arrays["action_mask"] = batch.mask
        if self.true_state_in_info:
            arrays |= {f"true_state/{name}": array for name, array in batch.true_state.items()}
        infos: dict[str, Any] = {}
        all_envs = np.ones(self.num_envs, bool)
        for name, array in arrays.items():
            infos[name] = array.copy() if self.copy_arrays else array
            infos[f"_{name}"] = all_envs
        for row, info in enumerate(batch.infos or ()):
            is_last = self.is_next_step and ended[row]
            infos = self._add_info(infos, dict(info["final_info"] if is_last else info), row)
        if ended.any() and self.is_next_step:
            self._add_episode_infos(infos)
        elif ended.any():
            infos |= {"final_obs": self._final_observations(ended), "_final_obs": ended}
            if batch.episode_info:
                final = copies(batch.episode_info) | {f"_{name}": ended for name in batch.episode_info}
                infos |= {"final_info": final, "_final_info": ended}
        return infos

    def _add_episode_infos(self, infos: dict[str, Any]) -> None:
        """Add the infos of ended episodes; where a step has an info of the same name, theirs replace it."""
        ended = self.ended
        for name, array in self.batch.episode_info.items():
            if name in infos:
                infos[name] = infos[name].copy()
                infos[name][ended] = array[ended]
            else:
                infos |= {name: array.copy(), f"_{name}": ended}

    def _final_observations(self, ended: BoolArray) -> Any:
        """(num_envs,) objects as Gymnasium has them: None where the episode did not end."""
        observations = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(ended):
            arrays = {name: array[row] for name, array in self.batch.final_observation.items()}
            observations[row] = _in_space(arrays, self.backend.spec, copy=True)
        return observations


class BuiltinEnv(gymnasium.Env[Any, Any]):
    """A single built-in env as a Gymnasium env.

    Args:
        env: Name of the env.
        render_mode: `rgb_array` (an image) or `ansi` (lines of text) for `render()`.
        settings: Settings of the env.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, env: str, render_mode: str | None = None, **settings: Any) -> None:
        modes = self.metadata["render_modes"]
        if render_mode not in (None, *modes):
            # A TypeError by convention: trainers that try a render mode then retry without one.
            raise TypeError(f"built-in envs render to {' and '.join(modes)}; got render_mode={render_mode!r}.")
        batch_env = factory_for(env, settings)(np.arange(1))
        if not isinstance(batch_env, ArrayBatchEnv):
            raise SettingsError(f"{env} is not a built-in env; use gymnasium.make.")
        self.env = batch_env
        self.observation_space = observation_space(batch_env.spec)
        self.action_space = action_space(batch_env.spec)
        # Built-in envs start the next episode within the last step of the one before.
        self.next_has_started = False
        self.is_seeded = False
        self.render_mode = render_mode
        self.last_step = LastStep()
        self.frame: Any = None  # picture of the current state, once it was drawn
        if render_mode is not None:
            self.rendering = make_rendering(canonical_name(env), batch_env)
            self.metadata = {**self.metadata, "render_fps": self.rendering.fps}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the next episode, or episode 0 of another seed."""
        super().reset(seed=seed)
        if seed is not None or not self.is_seeded:
            self.env.reset(secrets.randbits(63) if seed is None else seed)
            self.is_seeded = True
        elif not self.next_has_started:
            self.env.episodes += 1
            self.env.start()
        self.next_has_started = False
        self.last_step, self.frame = LastStep(), None
        for array in self.env.out.info.values():
            array[...] = 0  # of the last step of the episode before
        return self._observation(self.env.out.observation), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        checked = checked_actions(np.asarray(action)[None], self.env.out, self.env.spec)
        frame_before = self.render()
        out = self.env.step(checked)
        self.last_step = LastStep(int(checked[0]), self.last_step.total_reward + float(out.reward[0]))
        self.next_has_started = bool(out.ended[0])
        self.frame = frame_before if self.next_has_started else None
        observation = out.final_observation if self.next_has_started else out.observation
        info = self._info()
        if self.next_has_started:
            info |= {name: _scalar_or_array(array[0]) for name, array in out.episode_info.items()}
        return (
            self._observation(observation),
            float(out.reward[0]),
            bool(out.terminated[0]),
            bool(out.truncated[0]),
            info,
        )

    def render(self) -> Any:
        """The state as an image or text; after the last step that before it, as the next episode has started."""
        if self.render_mode is None:
            return None
        if self.next_has_started:
            return self.frame
        return (
            self.rendering.text(self.last_step) if self.render_mode == "ansi" else self.rendering.image(self.last_step)
        )

    def action_masks(self) -> BoolArray:
        """(actions,) allowed actions."""
        mask = self.env.out.mask
        return np.ones(self.env.spec.num_logits, bool) if mask is None else mask[0].copy()

    def _observation(self, arrays: Arrays) -> Observation:
        row = {name: array[0] for name, array in arrays.items()}
        return _in_space(row, self.env.spec, copy=True)

    def _info(self) -> dict[str, Any]:
        info = {name: _scalar_or_array(array[0]) for name, array in self.env.out.info.items()}
        if self.env.out.mask is not None:
            info["action_mask"] = self.action_masks()
        return info


def observation_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Observation space of one env: a Dict, unless its only array is called `observation`."""
    arrays = {name: _space(array) for name, array in spec.observation.items()}
    return arrays["observation"] if list(arrays) == ["observation"] else spaces.Dict(arrays)


def action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Action space of one env: Discrete, MultiDiscrete, or a Box for continuous actions."""
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
    values = np.broadcast_to(np.reshape(bound, array.shape if isinstance(bound, tuple) else ()), array.shape)
    if np.dtype(array.dtype).kind not in "iu":
        return values.astype(array.dtype)
    # Bounds are stored as floats, and the largest integers do not survive that: clip them.
    limits = np.iinfo(array.dtype)
    exact = [min(max(int(value), limits.min), limits.max) for value in values.flat]
    return np.array(exact, array.dtype).reshape(array.shape)


def _env_of_run(
    run: str | Path, checkpoint: str, trust_run: bool, env: str | Callable[[], Any] | None, settings: Mapping[str, Any]
) -> tuple[EnvFactory, SharedParams | None]:
    """The env factory of a run, and the parameters of its belief model if it has one."""
    from hundredfold.training.build import load_belief_model
    from hundredfold.training.run_folder import RunFolder
    from hundredfold.training.trust import require_trust

    if settings or isinstance(env, str):
        given = env if isinstance(env, str) else ", ".join(settings)
        raise SettingsError(f"make_vec() got both run and {given}; env and settings are those of the run.")
    folder = RunFolder.open(Path(run))
    saved = folder.settings()
    if env is None:
        # The cluster of a run is not joined here.
        require_trust(folder, saved, {"address"}, trust_run)
    belief_model = load_belief_model(folder, checkpoint)
    shared_params = None if belief_model is None else belief_model.params(exploring=False)
    if env is None:
        return env_factory(saved.env, saved.env_settings), shared_params
    return callable_factory(env, saved.env_settings), shared_params


def _worker_settings(given: Mapping[str, Any], num_envs: int) -> WorkerSettings:
    """Worker settings of a vector env, which waits for all envs at every step."""
    known = [item.name for item in fields(WorkerSettings) if item.name != "batch_envs"]
    for key in given:
        if key not in known:
            raise SettingsError(f"worker_settings has no entry {key!r}; {suggest(key, known)}")
    return WorkerSettings(**given, batch_envs=num_envs)


def factory_for(env: str | Callable[[], Any], settings: dict[str, Any], arguments: Sequence[str] = ()) -> EnvFactory:
    """Env factory for a user's settings, which must not need the belief model of a training.

    Args:
        env: Name of an env, Gymnasium id, or function that makes an env.
        settings: Settings by name.
        arguments: Names that the caller takes itself, of which a setting that does not exist may be a typo.
    """
    if callable(env):
        return callable_factory(partial(env, **settings))
    name = canonical_name(env)
    env_settings = settings_class(name)
    if name not in ENVS:
        from hundredfold.envs.gymnasium_factory import GymnasiumFactory

        keywords = {key: value for key, value in settings.items() if key != "atari"}
        return GymnasiumFactory(name, keywords, atari=bool(settings.get("atari", False)))
    known = [item.name for item in fields(env_settings)]
    for key in settings:
        if key not in known:
            hint = suggest(key, [*known, *arguments], otherwise=suggest(key, known))
            raise SettingsError(f"{name} has no setting {key!r}; {hint}")
    chosen = env_settings(**settings)
    if needs := getattr(chosen, "belief_inputs", ()):
        raise SettingsError(
            f"{', '.join(needs)} of {name} come from the belief model of a training; use make_vec(run=RUN), or leave "
            "them out."
        )
    return env_factory(name, chosen)


def _checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        found = AutoresetMode(mode)
    except ValueError:
        found = AutoresetMode.DISABLED
    if found is AutoresetMode.DISABLED:
        raise SettingsError(
            f"autoreset_mode must be NextStep or SameStep, got {mode!r}: the envs start their next episode themselves."
        )
    return found


def _reset_seed(seed: int, num_resets: int) -> int:
    """The seed itself at the first reset, seeds derived from it at later ones."""
    return seed if num_resets == 0 else int(rng.spawn(rng.seed_key(seed), num_resets))


def _in_space(arrays: Arrays, spec: EnvSpec, copy: bool) -> Observation:
    """Arrays as an element of the observation space: one array, or a dictionary."""
    elements = {name: np.array(array) if copy else array for name, array in arrays.items()}
    return elements["observation"] if list(spec.observation) == ["observation"] else elements


def _scalar_or_array(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else np.array(value)
