"""Automatic choice of a backend, and the fallback where a backend cannot start.

A built-in env is a batch and runs in this process. A third-party env is profiled for a moment in a
worker of its own, so that one that hangs or crashes is found before anything depends on it; the
choice follows from what a step costs, whether it waits or computes, and how much steps differ. It
rests on a clock, so it is printed and recorded; trajectories do not depend on it, except that
`first_ready` is not deterministic.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from hundredfold.backends.call_checks import check_num_envs, is_importing_main, refuse_while_importing_main
from hundredfold.backends.env_profile import EnvProfile, StepCosts, barrier_share, measure_steps
from hundredfold.backends.processes.backend import READY_DIVISOR
from hundredfold.backends.processes.env_threads import MAX_THREADS
from hundredfold.backends.processes.profile import is_built_in, profile_in_worker
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.errors import WorkerError
from hundredfold.core.formatting import format_duration
from hundredfold.core.protocols import Backend, EnvFactory, PerEnvBatch

# Cost of a batch that goes through workers: one round trip of wake-ups, and per env bookkeeping,
# copied bytes and, where every env has a thread, the time threads take from each other.
ROUND_TRIP_SECONDS: Final = 150e-6
ENV_SECONDS: Final = 3e-6
BYTE_SECONDS: Final = 0.5e-9
THREAD_SECONDS: Final = 60e-6
# Roughly what a small network needs to act on a batch of any size, and to learn from one step.
POLICY_SECONDS: Final = 1e-3
LEARN_SECONDS: Final = 10e-6
# Most workers for envs that wait and need the main thread of a process.
MAX_WAITING_WORKERS: Final = 64
# Workers must make training faster by this factor to be chosen.
MIN_SPEEDUP: Final = 1.25
# From this share of time lost to the slowest env on, `first_ready` is chosen.
MAX_BARRIER_SHARE: Final = 0.1

# What to try where a backend cannot start.
FALLBACK: Final = {"ray": "processes", "first_ready": "processes", "processes": "in_process"}


class BackendMaker(Protocol):
    """Creates a backend; the classes of `BACKENDS` are such callables."""

    def __call__(self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> Backend: ...


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The backend to use, its settings, and the reason."""

    backend: str
    settings: WorkerSettings
    reason: str

    @property
    def summary(self) -> str:
        """The choice in one line, for the console and the log."""
        parts = [self.backend]
        if self.backend in FALLBACK:
            parts.append(f"{self.settings.workers} workers")
            if self.settings.env_threads > 1:
                parts.append(f"{self.settings.env_threads} threads each")
            if self.settings.batch_envs:
                parts.append(f"batches of {self.settings.batch_envs} or more")
        return f"backend: {', '.join(parts)} ({self.reason})"


def choose_backend(make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> BackendChoice:
    """The fastest backend for an env; what the settings already say is kept.

    A third-party env is created once in a worker and profiled there.
    """
    check_num_envs(num_envs)
    settings = settings or WorkerSettings()
    if num_envs == 1:
        return BackendChoice("in_process", settings, "a single env has nothing to run parallel to")
    return choose_from_profile(profile_env(make_envs, settings), num_envs, settings)


def profile_env(make_envs: EnvFactory, settings: WorkerSettings, *, in_worker: bool = True) -> EnvProfile:
    """Profile an env in a worker process where one can start, otherwise in this process.

    Args:
        make_envs: creates the env.
        settings: start method, timeouts and what to do when the env fails.
        in_worker: False to profile in this process, for envs that will run here in any case.
    """
    refuse_while_importing_main("choose a backend")
    profile = _profile(make_envs, settings, in_worker=in_worker and not is_built_in(make_envs))
    if profile.num_failures:
        warnings.warn(_failure_warning(profile), stacklevel=3)
    return profile


def _profile(make_envs: EnvFactory, settings: WorkerSettings, *, in_worker: bool) -> EnvProfile:
    if in_worker:
        try:
            return profile_in_worker(make_envs, settings)
        except (WorkerError, OSError):
            pass  # no worker can start, so the envs will run here in any case
    with closing(make_envs(np.arange(1))) as env:
        if env.spec.has_snapshots or not isinstance(env, PerEnvBatch):
            return EnvProfile(env.spec, is_per_env=False)
        env.restart_policy = settings.restart_policy()
        costs = measure_steps(env)
        failures = env.restart_policy.drain()
        first = str(failures[0]) if failures else ""
        return EnvProfile(env.spec, is_per_env=True, step_costs=costs, num_failures=len(failures), first_failure=first)


def _failure_warning(profile: EnvProfile) -> str:
    times = "once" if profile.num_failures == 1 else f"{profile.num_failures} times"
    return (
        f"the env failed {times} while it was profiled for a moment, and was restarted as it will be in training "
        f"(--on-env-error stop ends the run instead). First failure: {profile.first_failure}"
    )


def choose_from_profile(profile: EnvProfile, num_envs: int, settings: WorkerSettings) -> BackendChoice:
    """The backend for an env with this profile."""
    if num_envs == 1:
        return BackendChoice("in_process", settings, "a single env has nothing to run parallel to")
    if profile.spec.has_snapshots:
        return BackendChoice("in_process", settings, "this env is one batch")
    if not profile.is_per_env:
        return BackendChoice("in_process", settings, "its envs do not step one by one")
    if profile.step_costs is None:
        if profile.hung_seconds:
            reason = (
                f"a first step took more than {profile.hung_seconds:g} seconds; in workers an env that "
                f"hangs is replaced after {settings.step_timeout:g} seconds"
            )
        else:
            reason = "it failed whenever it was profiled; in workers an env that crashes its process is replaced"
        settings = replace(settings, workers=settings.num_workers(num_envs), env_threads=settings.env_threads or 1)
        return BackendChoice("processes", settings, reason)
    if profile.needs_main_thread:
        workers = settings.workers or min(num_envs, MAX_WAITING_WORKERS)
        choice = choose_from_costs(
            profile.step_costs, num_envs, replace(settings, workers=workers, env_threads=1), usable_cores()
        )
        return replace(choice, reason=f"{choice.reason}; it fails in a thread, so there are more workers instead")
    choice = choose_from_costs(profile.step_costs, num_envs, settings, usable_cores())
    if profile.starts_programs and choice.backend == "in_process":
        fitted = fit_workers(profile.step_costs, num_envs, settings, usable_cores())
        return BackendChoice("processes", fitted, "it starts other programs, which end with their worker")
    return choice


def choose_from_costs(costs: StepCosts, num_envs: int, settings: WorkerSettings, cores: int) -> BackendChoice:
    """The backend for envs whose steps cost this much."""
    fitted = fit_workers(costs, num_envs, settings, cores)
    step = format_duration(costs.step_seconds)
    in_sequence = num_envs * costs.step_seconds
    if costs.waits:
        lanes = min(num_envs, fitted.workers * fitted.env_threads)
        per_lane = -(-num_envs // lanes)
        in_parallel = per_lane * costs.step_seconds + num_envs * THREAD_SECONDS / fitted.workers
        finding = f"a step takes {step}, {100 * costs.waiting_share:.0f} % of it waiting"
    else:
        lanes = min(fitted.workers, cores)
        if lanes == 1:
            limit = "only one core" if cores == 1 else "one worker"
            return BackendChoice("in_process", settings, f"steps compute, and there is {limit}")
        in_parallel, per_lane = in_sequence / lanes, max(1, num_envs // lanes)
        finding = f"a step computes for {step}"
    in_parallel += ROUND_TRIP_SECONDS
    in_parallel += num_envs * (ENV_SECONDS + BYTE_SECONDS * costs.step_bytes)
    learning = POLICY_SECONDS + num_envs * LEARN_SECONDS
    if in_sequence + learning < MIN_SPEEDUP * (in_parallel + learning):
        reason = f"{finding}: running {num_envs} of them in other processes would gain little"
        return BackendChoice("in_process", settings, reason)
    lost = barrier_share(costs.costs, lanes, per_lane)
    if lost < MAX_BARRIER_SHARE or settings.batch_envs >= num_envs:
        reason = f"{finding}; waiting for the slowest env costs about {100 * lost:.0f} %"
        return BackendChoice("processes", fitted, reason)
    reason = (
        f"{finding}; waiting for the slowest env would cost about {100 * lost:.0f} %. Envs that "
        "are ready first continue first, so no two runs are the same"
    )
    batch_envs = settings.batch_envs or ready_batch(costs, num_envs)
    return BackendChoice("first_ready", replace(fitted, batch_envs=batch_envs), reason)


def fit_workers(costs: StepCosts, num_envs: int, settings: WorkerSettings, cores: int) -> WorkerSettings:
    """One worker per core, and one thread per env where envs wait, unless the settings say so."""
    workers = min(settings.workers or cores, num_envs)
    threads = min(-(-num_envs // workers), MAX_THREADS) if costs.waits else 1
    return replace(settings, workers=workers, env_threads=settings.env_threads or threads)


def ready_batch(costs: StepCosts, num_envs: int) -> int:
    """Batch size of `first_ready`: at most as many envs as become ready while the policy acts."""
    most = max(1, num_envs // READY_DIVISOR)
    if not costs.waits:
        # Policy and envs share the cores: few large batches are better than many small ones.
        return most
    meanwhile = num_envs * POLICY_SECONDS / costs.step_seconds
    return min(most, max(1, round(meanwhile / 2)))


def start_or_fall_back(
    makers: Mapping[str, BackendMaker], choice: BackendChoice, make_envs: EnvFactory, num_envs: int
) -> tuple[Backend, BackendChoice]:
    """Start the chosen backend, or the next one that starts, with one warning that says why.

    Errors of the envs themselves are raised.
    """
    name, first_error = choice.backend, None
    while True:
        try:
            backend = makers[name](make_envs, num_envs, choice.settings)
        except (WorkerError, OSError) as error:
            # A worker that imports the user's script must fail there, not train instead of it.
            if name not in FALLBACK or is_importing_main():
                raise
            first_error = first_error or error
            name = FALLBACK[name]
        else:
            break
    if first_error is None:
        return backend, choice
    warnings.warn(fallback_warning(choice.backend, name, first_error), stacklevel=4)
    return backend, BackendChoice(name, choice.settings, f"{choice.backend} could not start")


def fallback_warning(wanted: str, taken: str, error: Exception) -> str:
    """The warning that names what could not start, why, and what runs instead."""
    # Where the system refused something, that is the reason, and a main guard is no remedy.
    reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
    text = f"the backend {wanted} could not start: {str(reason).rstrip('.')}."
    if isinstance(reason, OSError):
        text += " Allow more processes, open files or memory (`ulimit -a` shows the limits)."
    if taken == "in_process":
        text += " The envs run one after another in this process instead"
    else:
        text += f" The backend {taken} runs instead"
    return f"{text}; pass --backend {taken} if that is what you want."
