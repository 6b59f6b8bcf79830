"""Vector envs for RLlib's env runners: flat observations, next-step autoreset, a failure log."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hundredfold.backends.call_checks import checked_actions
from hundredfold.core.batch import BoolArray, StepBatch
from hundredfold.core.failures import Failure, Health, RestartPolicy
from hundredfold.core.protocols import BatchEnv, EnvFactory, PerEnvBatch
from hundredfold.distributed.actor import ShardFactory
from hundredfold.distributed.placement import NODE_LABEL, load_ray
from hundredfold.envs.next_step import NextStepFactory, with_ignored_actions
from hundredfold.interop.flat_spaces import FlatSpaces
from hundredfold.interop.gymnasium import BuiltinEnv, factory_for

Rows = NDArray[np.float32]
VectorStep = tuple[Rows, NDArray[np.float32], BoolArray, BoolArray, dict[str, Any]]

# Keys of an `env_config` that are not settings of the env.
ENGINE_KEYS: Final = ("seed", "restart_policy", "failure_log")
RESERVED_KEYS: Final = ("num_envs", "env", "make_envs", *ENGINE_KEYS)


class FailureLogActor:
    """The Ray actor behind a `FailureLog`."""

    def __init__(self) -> None:
        self.health, self.last_error = Health(), ""

    def record_restarts(self, failures: Sequence[Failure]) -> None:
        self.health.count_restarts(failures)

    def record_error(self, message: str) -> None:
        # The first one is the cause; others may follow from it.
        self.last_error = self.last_error or message

    def read(self) -> tuple[dict[str, int], str]:
        return self.health.counts(), self.last_error

    def first_failure(self) -> Failure | None:
        return self.health.first


class FailureLog:
    """Failures of envs in all env runners: RLlib ends a runner without reporting its error.

    It is sent to the runners with the env config; all copies share one Ray actor.
    """

    def __init__(self) -> None:
        ray = load_ray()
        # On the driver's node, so that it is not lost with another one.
        driver_node = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
        remote = ray.remote(FailureLogActor).options(num_cpus=0, label_selector=driver_node)
        self.actor: Any = remote.remote()

    def __deepcopy__(self, memo: Any) -> FailureLog:
        return self

    def record_restarts(self, failures: Sequence[Failure]) -> None:
        """Record envs that failed and were recreated."""
        self.actor.record_restarts.remote(failures)

    def record_error(self, message: str) -> None:
        """Record the error that ends an env runner; returns when it is stored."""
        load_ray().get(self.actor.record_error.remote(message))

    def read(self) -> tuple[dict[str, int], str]:
        """Failure counts, and the error that ended an env runner if one did."""
        counts, last_error = load_ray().get(self.actor.read.remote())
        return counts, last_error

    def first_failure(self) -> Failure | None:
        """The first failure of an env that was recreated."""
        failure: Failure | None = load_ray().get(self.actor.first_failure.remote())
        return failure

    def close(self) -> None:
        load_ray().kill(self.actor, no_restart=True)


def make_env(env: str, context: Mapping[str, Any]) -> VectorEnv[Any, Any, Any] | BuiltinEnv:
    """Env creator for `register_env`.

    Args:
        env: Name of the env.
        context: Settings of the env by name, `num_envs` if a vector env is wanted, and keys of
            `--engine rllib`.
    """
    settings = {name: value for name, value in context.items() if name not in RESERVED_KEYS}
    if "num_envs" not in context:
        return BuiltinEnv(env, **settings)
    make_envs: EnvFactory | None = context.get("make_envs")
    if make_envs is None:
        make_envs = factory_for(env, settings)
    options = {name: context[name] for name in ENGINE_KEYS if name in context}
    return FlatVectorEnv(make_envs, int(context["num_envs"]), **options)


class FlatVectorEnv(VectorEnv[Any, Any, Any]):
    """Vector env of a shard: observations are flat rows that end with the mask, if there is one.

    Envs are created at the first reset, because RLlib creates one vector env more than it uses and
    tells only afterwards which runner each is for.

    Args:
        make_envs: Env factory.
        num_envs: Number of envs in this runner.
        seed: Of the run; by default RLlib gives each runner its own.
        restart_policy: What happens to third-party envs that fail; by default the runner ends.
        failure_log: Where failures are recorded.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        make_envs: EnvFactory,
        num_envs: int,
        *,
        seed: int | None = None,
        restart_policy: RestartPolicy | None = None,
        failure_log: FailureLog | None = None,
    ) -> None:
        self.make_envs, self.num_envs, self.seed = make_envs, num_envs, seed
        self.restart_policy, self.failure_log = restart_policy, failure_log
        self.first = 0
        self.env: BatchEnv | None = None
        with closing(make_envs(np.arange(1))) as single:
            spec = self.env_spec = single.spec
        self.flat = FlatSpaces(spec, dtype="float32", with_mask=True)
        self.single_observation_space = self.flat.observation_space
        self.single_action_space = self.flat.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.out: StepBatch = spec.batch(np.arange(num_envs))
        self.awaits_reset = np.zeros(num_envs, bool)  # rows whose next step is a reset

    def set_runner_index(self, index: int) -> None:
        """Run the envs of this runner; runners count from 1, and 0 only has a look at the spec."""
        self.first = max(index - 1, 0) * self.num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Rows, dict[str, Any]]:
        """Start episode 0 of every env.

        The seed of a run is the same for all runners, which have different envs; otherwise RLlib
        passes a seed of each runner's own.
        """
        env_seed = seed if self.seed is None and isinstance(seed, int) else self.seed
        with self._logged_failures():
            if self.env is None:
                self.env = self._create_envs()
            self.out = self.env.reset(secrets.randbits(31) if env_seed is None else env_seed)
        self.awaits_reset[:] = False
        return self.flat.flatten(self.out.observation, self.out.mask), {}

    def step(self, actions: Any) -> VectorStep:
        """Take one action per env; rows that ended last time return their reset instead."""
        assert self.env is not None, "call reset() first"
        chosen = with_ignored_actions(self.flat.unflatten_action(actions), self.awaits_reset, self.out, self.env_spec)
        with self._logged_failures():
            self.out = out = self.env.step(checked_actions(chosen, self.out, self.env_spec))
        terminated, truncated = out.terminated.copy(), out.truncated.copy()
        rows = self.flat.flatten(out.observation, out.mask)
        ended = self.awaits_reset = terminated | truncated
        if ended.any():
            # No action follows these rows, so their mask does not matter.
            rows[ended] = self.flat.flatten(out.final_observation)[ended]
        return rows, out.reward.astype(np.float32), terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        if self.env is not None:
            self.env.close()

    def _create_envs(self) -> BatchEnv:
        env = NextStepFactory(ShardFactory(self.make_envs, self.first))(np.arange(self.num_envs))
        if self.restart_policy is not None and isinstance(env, PerEnvBatch):
            # A failed env is recreated as on the backends of this package.
            env.restart_policy = self.restart_policy
        return env

    @contextmanager
    def _logged_failures(self) -> Iterator[None]:
        """Record restarts of envs, and the error that ends this runner."""
        try:
            yield
        except Exception as error:
            if self.failure_log is not None:
                self.failure_log.record_error(f"{type(error).__name__}: {error}")
            raise
        if self.restart_policy is not None and self.restart_policy.unreported:
            failures = self.restart_policy.drain()
            if self.failure_log is not None:
                self.failure_log.record_restarts(failures)
