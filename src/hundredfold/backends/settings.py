"""What one may say about where envs run."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import Literal

from hundredfold.core.errors import SettingsError
from hundredfold.core.failures import OnEnvError, RestartPolicy

StartMethod = Literal["auto", "fork", "spawn", "forkserver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How envs are spread over worker processes, and what happens when one fails."""

    workers: int = 0
    """Worker processes; 0: as many as there are cores."""
    batch_envs: int = 0
    """Ready envs to wait for before the policy acts; 0: everybody, or an eighth in first_ready."""
    env_threads: int = 0
    """Threads per worker; 0: one per env where envs wait rather than compute; 1: never any."""
    start_method: StartMethod = "auto"
    """How workers start: fork, spawn or forkserver; auto takes fork where that is safe."""
    step_timeout: float = 120.0
    """Seconds after which an env that does not return from step or reset counts as hanging."""
    start_timeout: float = 300.0
    """Seconds a worker may take to start and make its envs."""
    on_env_error: OnEnvError = "restart"
    """Make a failed env anew and cut off its episode, or stop the run."""
    max_env_failures: int = 10
    """Failures of one env without a finished episode in between, after which the run ends."""

    def __post_init__(self) -> None:
        for name in ("workers", "batch_envs", "env_threads"):
            if getattr(self, name) < 0:
                raise SettingsError(
                    f"{name} must not be negative, got {getattr(self, name)}; 0 leaves it to us."
                )
        for name in ("step_timeout", "start_timeout"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be above 0 seconds, got {getattr(self, name)}.")
        if self.max_env_failures < 1:
            raise SettingsError(
                f"max_env_failures must be at least 1, got {self.max_env_failures}."
            )
        if self.on_env_error not in ("restart", "stop"):
            raise SettingsError(f"on_env_error is restart or stop, got {self.on_env_error!r}.")
        known = ("auto", *multiprocessing.get_all_start_methods())
        if self.start_method not in known:
            raise SettingsError(
                f"this system cannot start workers by {self.start_method!r}; it has "
                f"{', '.join(known)}."
            )

    def restart_policy(self) -> RestartPolicy:
        """What stands between failing envs and the run."""
        return RestartPolicy(self.on_env_error, self.max_env_failures)

    def num_workers(self, num_envs: int) -> int:
        """No more workers than envs, and by default no more than cores."""
        return min(self.workers or usable_cores(), num_envs)

    def resolved_start_method(self) -> str:
        """The start method, decided."""
        if self.start_method != "auto":
            return self.start_method
        # A forked process needs no main guard and no pickling, but macOS' own libraries break.
        can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
        return "fork" if can_fork else "spawn"


def usable_cores() -> int:
    """Cores this process may run on, which in a container may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
