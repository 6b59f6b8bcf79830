"""An env as RLlib's env runners want it: flat rows, and a step of its own for every reset.

RLlib begins the next episode with the step after the one that ended the last, where built-in envs
begin it at once. Rows that wait for that step stand still while the others go on: somebody else's
envs are stepped one by one, and what a built-in env did with them meanwhile is taken back.

What envs in RLlib's runners have to say to the driver: RLlib ends a runner without its words.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hundredfold.backends.call_checks import checked_actions
from hundredfold.core.action_scaling import argmax_actions
from hundredfold.core.batch import Array, Arrays, BoolArray, EnvSpec, IntArray, StepBatch
from hundredfold.core.failures import Failure, Health, RestartPolicy
from hundredfold.core.protocols import BatchEnv, EnvFactory, PerEnvBatch
from hundredfold.distributed.actor import ShardFactory
from hundredfold.distributed.placement import NODE_LABEL, load_ray
from hundredfold.envs.registry import env_factory, settings_class
from hundredfold.interop.flat_spaces import Window
from hundredfold.interop.gymnasium import BuiltinEnv


class Letters:
    """The actor that keeps what was posted."""

    def __init__(self) -> None:
        self.health, self.last_words = Health(), ""

    def failed(self, failures: Sequence[Failure]) -> None:
        self.health.count_restarts(failures)

    def gave_up(self, why: str) -> None:
        self.last_words = self.last_words or why

    def read(self) -> tuple[dict[str, int], str]:
        return self.health.counts(), self.last_words


class Postbox:
    """Travels with the settings of the envs; everybody posts to the same actor."""

    def __init__(self) -> None:
        ray = load_ray()
        # With the driver: no other node's end takes it along.
        here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
        letters = ray.remote(Letters).options(num_cpus=0, label_selector=here)
        self.letters: Any = letters.remote()

    def __deepcopy__(self, memory: Any) -> Postbox:
        return self

    def failed(self, failures: Sequence[Failure]) -> None:
        """Envs failed and were made anew."""
        self.letters.failed.remote(failures)

    def gave_up(self, why: str) -> None:
        """A runner is about to end."""
        load_ray().get(self.letters.gave_up.remote(why))

    def read(self) -> tuple[dict[str, int], str]:
        """What went wrong so far, and the last words of a runner that gave up."""
        found: tuple[dict[str, int], str] = load_ray().get(self.letters.read.remote())
        return found

    def close(self) -> None:
        load_ray().kill(self.letters, no_restart=True)


Rows = NDArray[np.float32]
Outcome = tuple[Rows, NDArray[np.float32], BoolArray, BoolArray, dict[str, Any]]


def make_env(env: str, context: Mapping[str, Any]) -> VectorEnv[Any, Any, Any] | BuiltinEnv:
    """What RLlib calls: a batch where it says how many envs, else a single one.

    `context` has the env's settings by name; the rest of it is for our own engine.
    """
    settings = {name: value for name, value in context.items() if name not in OWN_WORDS}
    if "num_envs" not in context:
        return BuiltinEnv(env, **settings)
    make_envs: EnvFactory | None = context.get("make_envs")
    if make_envs is None:
        make_envs = env_factory(env, settings_class(env)(**settings))
    words = {name: context[name] for name in ("seed", "guard", "postbox") if name in context}
    return FlatVectorEnv(make_envs, int(context["num_envs"]), **words)


OWN_WORDS = ("num_envs", "env", "make_envs", "seed", "guard", "postbox")


class FlatVectorEnv(VectorEnv[Any, Any, Any]):
    """A slice of an env; observations are rows of numbers, with the mask behind them if any.

    Its envs are made when they are first reset: RLlib makes one more of these than it plays, and
    says only afterwards which of its runners it is for.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        make_envs: EnvFactory,
        num_envs: int,
        *,
        seed: int | None = None,
        restart_policy: RestartPolicy | None = None,
        postbox: Postbox | None = None,
    ) -> None:
        self.make_envs, self.num_envs, self.seed = make_envs, num_envs, seed
        self.restart_policy, self.postbox = restart_policy, postbox
        self.first = 0
        self.env: BatchEnv | None = None
        with closing(make_envs(np.arange(1))) as one:
            spec = self.env_spec = one.spec
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (width_of(spec),), np.float32)
        self.window = Window(spec)
        self.single_action_space = self.window.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.out: StepBatch = spec.batch(np.arange(num_envs))
        self.over = np.zeros(num_envs, bool)  # rows whose next step is a reset

    def take_place(self, runner: int) -> None:
        """Hold the envs of this runner; they count from 1, and 0 is one that only looks."""
        self.first = max(runner - 1, 0) * self.num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Rows, dict[str, Any]]:
        """Start episode 0 of every env.

        A seed of the run is for all runners, which hold different envs; without one RLlib gives
        every runner its own.
        """
        chosen = seed if self.seed is None and isinstance(seed, int) else self.seed
        with self._overheard():
            if self.env is None:
                self.env = self._made()
            self.out = self.env.reset(secrets.randbits(31) if chosen is None else chosen)
        self.over[:] = False
        return flat_rows(self.out.observation, self.out.mask, self.env_spec), {}

    def step(self, actions: Any) -> Outcome:
        """Play one action per env; rows that ended last time show their next episode instead."""
        waiting = self.over
        if not waiting.all():
            with self._overheard():
                self._play(self.window.played(actions), waiting)
        out = self.out
        moved = ~waiting
        terminated, truncated = out.terminated & moved, out.truncated & moved
        reward = np.where(moved, out.reward, 0.0).astype(np.float32)
        rows = flat_rows(out.observation, out.mask, self.env_spec)
        self.over = terminated | truncated
        if self.over.any():
            # Nobody acts on these: what would have been allowed does not matter.
            last = flat_rows(out.final_observation, None, self.env_spec)
            rows[self.over] = last[self.over]
        return rows, reward, terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        if self.env is not None:
            self.env.close()

    def _made(self) -> BatchEnv:
        env = ShardFactory(self.make_envs, self.first)(np.arange(self.num_envs))
        if self.restart_policy is not None and isinstance(env, PerEnvBatch):
            # An env that fails is made anew here as it is with our own backends.
            env.restart_policy = self.restart_policy
        return env

    @contextmanager
    def _overheard(self) -> Iterator[None]:
        """Post what goes wrong; what cannot be mended ends this runner."""
        try:
            yield
        except Exception as error:
            if self.postbox is not None:
                self.postbox.gave_up(f"{type(error).__name__}: {error}")
            raise
        if self.restart_policy is not None and self.restart_policy.unreported:
            failures = self.restart_policy.drain()
            if self.postbox is not None:
                self.postbox.failed(failures)

    def _play(self, moves: Array, waiting: BoolArray) -> None:
        assert self.env is not None, "reset() comes first"
        if not waiting.any():
            self.out = self.env.step(checked_actions(moves, self.out, self.env_spec))
            return
        moves = np.where(_along(waiting, moves), self._any_move(), moves)
        moves = checked_actions(moves, self.out, self.env_spec)
        if isinstance(self.env, PerEnvBatch):
            for row in np.flatnonzero(~waiting).tolist():
                self.env.step_row(row, moves)
            return
        before = self.env.state()
        self.env.step(moves)
        after = self.env.state()
        for name, array in after.items():
            array[waiting] = before[name][waiting]
        self.out = self.env.restore(after)

    def _any_move(self) -> Array:
        """Some allowed action of every row."""
        if self.env_spec.continuous_action is not None:
            return self.window.played(np.zeros((self.num_envs, self.env_spec.num_logits)))
        return first_allowed(self.out, self.env_spec)


def width_of(spec: EnvSpec) -> int:
    """Numbers in a row: all arrays side by side, then the mask where there is one."""
    seen = sum(array.size for array in spec.observation.values())
    return seen + spec.num_logits if spec.has_mask else seen


def flat_rows(observation: Arrays, mask: BoolArray | None, spec: EnvSpec) -> Rows:
    """(envs, width) fresh rows; without a mask everything is allowed."""
    rows = np.ones((len(next(iter(observation.values()))), width_of(spec)), np.float32)
    first = 0
    for name, array in spec.observation.items():
        rows[:, first : first + array.size] = observation[name].reshape(len(rows), -1)
        first += array.size
    if mask is not None:
        rows[:, first:] = mask
    return rows


def first_allowed(batch: StepBatch, spec: EnvSpec) -> IntArray:
    """Some allowed action of every row."""
    if batch.mask is None:
        return np.zeros((len(batch), *spec.action_shape), np.int64)
    return argmax_actions(spec, batch.mask)


def _along(rows: BoolArray, moves: Array) -> BoolArray:
    """The flags of rows in a shape that goes with their actions."""
    return rows.reshape(-1, *[1] * (moves.ndim - 1))
