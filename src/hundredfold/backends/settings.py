"""Settings of the backends: worker processes, failing envs, Ray."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

from annotated_types import Interval

from hundredfold.core.bounds import AtLeastOne, NonNegativeInt, check_bounds
from hundredfold.core.errors import SettingsError
from hundredfold.core.failures import OnEnvError, RestartPolicy

ActorBackend = Literal["auto", "in_process", "processes", "first_ready"]
StartMethod = Literal["auto", "fork", "spawn", "forkserver"]

# In seconds, about four months; sockets and locks accept no infinite timeouts.
MAX_TIMEOUT: Final = 10_000_000
Timeout = Annotated[float, Interval(gt=0, le=MAX_TIMEOUT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How envs are distributed over worker processes, and what happens when one fails."""

    workers: NonNegativeInt = 0
    """Worker processes; 0 = one per core."""
    batch_envs: NonNegativeInt = 0
    """Ready envs to wait for before the policy acts; 0 = all, or an eighth with first_ready."""
    env_threads: NonNegativeInt = 0
    """Threads per worker, each of which owns its envs from creation to close; 0 = one per env if envs wait rather than
    compute, 1 = no threads, for envs that need the main thread of a process."""
    start_method: StartMethod = "auto"
    """Multiprocessing start method; auto = fork where it is safe, else spawn."""
    step_timeout: Timeout = 120.0
    """Seconds after which an env that does not return from step or reset counts as hung."""
    start_timeout: Timeout = 300.0
    """Seconds that a worker may take to start and create its envs."""
    on_env_error: OnEnvError = "restart"
    """Recreate a failed env and truncate its episode (restart), or end the run (stop)."""
    max_env_failures: AtLeastOne = 10
    """Failures of one env without a finished episode in between after which the run ends."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.on_env_error not in get_args(OnEnvError):
            raise SettingsError(f"on_env_error is restart or stop, got {self.on_env_error!r}.")
        available = ("auto", *multiprocessing.get_all_start_methods())
        if self.start_method not in available:
            raise SettingsError(
                f"start_method must be one of {', '.join(available)} on this system, got {self.start_method!r}."
            )

    def restart_policy(self) -> RestartPolicy:
        """A new restart policy with these settings."""
        return RestartPolicy(self.on_env_error, self.max_env_failures)

    def num_workers(self, num_envs: int) -> int:
        """The number of workers for so many envs: at most one per env, by default one per core."""
        return min(self.workers or usable_cores(), num_envs)

    def resolved_start_method(self) -> str:
        """The start method that `auto` stands for."""
        if self.start_method != "auto":
            return self.start_method
        # Fork needs no main guard and no pickling, but system libraries of macOS break in it.
        can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
        return "fork" if can_fork else "spawn"


def usable_cores() -> int:
    """Cores this process may run on; in a container often fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Backend `ray`: which cluster to use, and how its actors run envs."""

    address: str = ""
    """Ray cluster to join: auto, host:port or ray://host:port; local = a new cluster on this machine
    that ends with the run; empty = RAY_ADDRESS if it is set, else local."""
    policy_lag: Annotated[int, Interval(ge=0, le=1)] = 0
    """Age of the collecting policy in updates; 1 = collect the next rollout during the update
    (faster, slightly off-policy), 0 = collect with the newest weights."""
    actor_cpus: Annotated[float, Interval(ge=0, le=10_000)] = 1.0
    """CPU cores that Ray reserves for each actor."""
    actor_backend: ActorBackend = "auto"
    """Backend that runs the envs of an actor, as --backend on one machine."""
    fragment_timeout: Timeout = 600.0
    """Seconds after which an actor that returns no rollout fragment counts as hung and is
    replaced."""
    placement_timeout: Annotated[float, Interval(ge=0, le=MAX_TIMEOUT)] = 5.0
    """Seconds to wait for free cores in the cluster before actors share cores."""
    object_store_mb: Annotated[int, Interval(ge=0, le=1_000_000_000)] = 0
    """Object store size of a cluster started here, in MB; 0 = Ray's default."""

    def __post_init__(self) -> None:
        check_bounds(self)
