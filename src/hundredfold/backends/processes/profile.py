"""Profile of an env in a worker process: what a step costs, and whether it may run in a thread."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from hundredfold.backends.env_profile import MAX_STEPS, EnvProfile
from hundredfold.backends.processes.env_threads import MAX_THREADS
from hundredfold.backends.processes.worker_handle import EnvTimeoutError
from hundredfold.backends.processes.worker_main import marked_processes
from hundredfold.backends.processes.worker_pool import InFlight, WorkerPool
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import EnvError, WorkerError
from hundredfold.core.failures import RestartPolicy
from hundredfold.core.protocols import EnvFactory

# A profile does not wait longer for a step: workers are right for such an env in any case.
PROFILE_TIMEOUT: Final = 10.0
# An env that crashes is profiled again, with another seed, so many times in all.
PROFILE_ATTEMPTS: Final = 3
# Steps that show whether an env waits, and whether it runs in a thread.
FEW_STEPS: Final = 8


def profile_in_worker(make_envs: EnvFactory, settings: WorkerSettings, steps: int = MAX_STEPS) -> EnvProfile:
    """Create one env in a worker process and, if it is a third-party env, measure it there.

    Args:
        make_envs: creates the env.
        settings: start method, timeouts and what to do when the env fails.
        steps: most steps to measure.

    Raises:
        WorkerError, OSError: no worker can start.
        EnvError: the env fails or crashes its process, and the run is to end then.
    """
    single = _single_env(settings, env_threads=1)
    with closing(WorkerPool(make_envs, InFlight(1), single, batch_envs=1)) as pool:
        profile = partial(EnvProfile, pool.spec, pool.is_per_env)
        if not pool.is_per_env:
            return profile()
        # A crash ends the request, so that the next one has another seed.
        pool.restart_policy = RestartPolicy("stop")
        failures: list[str] = []
        for seed in range(PROFILE_ATTEMPTS):
            try:
                costs = pool.request("measure_steps", [(seed, steps)])[0]
            except EnvTimeoutError:
                return profile(hung_seconds=single.step_timeout)
            except (EnvError, WorkerError) as error:
                if settings.on_env_error == "stop" or len(failures) + 1 >= settings.max_env_failures:
                    raise EnvError(str(error)) from error.__cause__
                failures.append(str(error))
            else:
                num_failures = len(failures) + pool.health.env_failures
                failures += map(str, pool.health.recent)
                starts_programs = bool(marked_processes(pool.token))
                break
        else:
            return profile(num_failures=len(failures), first_failure=failures[0])
    might_use_threads = costs.waits and settings.env_threads == 0
    needs_main_thread = might_use_threads and not runs_in_thread(make_envs, settings, is_reliable=not failures)
    return profile(
        step_costs=costs,
        needs_main_thread=needs_main_thread,
        starts_programs=starts_programs,
        num_failures=num_failures,
        first_failure="".join(failures[:1]),
    )


def runs_in_thread(make_envs: EnvFactory, settings: WorkerSettings, *, is_reliable: bool) -> bool:
    """Whether an env can be created and stepped outside the main thread of a worker.

    Args:
        make_envs: creates the env.
        settings: start method and timeouts.
        is_reliable: whether it did not fail in the main thread; otherwise only errors that
            mention threads count.
    """
    single = replace(_single_env(settings, env_threads=2), on_env_error="stop")
    try:
        with closing(WorkerPool(make_envs, InFlight(1), single, batch_envs=1)) as pool:
            pool.restart_policy = RestartPolicy("stop")
            pool.request("measure_steps", [(0, FEW_STEPS)])
    except (EnvError, WorkerError) as error:
        return not (is_reliable or "thread" in str(error).lower())
    return True


def with_env_threads(settings: WorkerSettings, make_envs: EnvFactory, num_envs: int) -> WorkerSettings:
    """The settings with a number of threads: one per env if the envs wait, otherwise none.

    A profile is only taken where it is needed: for third-party envs that share a worker.
    """
    if settings.env_threads > 0 or settings.num_workers(num_envs) == num_envs or is_built_in(make_envs):
        return settings
    try:
        profile = profile_in_worker(make_envs, settings, FEW_STEPS)
    except (EnvError, WorkerError, OSError):
        return replace(settings, env_threads=1)  # the workers themselves will report it
    waits = profile.step_costs is not None and profile.step_costs.waits and not profile.needs_main_thread
    return replace(settings, env_threads=MAX_THREADS if waits else 1)


def is_built_in(make_envs: EnvFactory) -> bool:
    """Whether this visibly makes a built-in env, which need not be profiled."""
    maker: object = make_envs
    while isinstance(maker, partial) or hasattr(maker, "make_envs"):
        maker = maker.func if isinstance(maker, partial) else maker.make_envs
    return isinstance(maker, type) and not hasattr(maker, "step_rows")


def _single_env(settings: WorkerSettings, env_threads: int) -> WorkerSettings:
    timeout = min(settings.step_timeout, PROFILE_TIMEOUT)
    return replace(settings, workers=1, env_threads=env_threads, batch_envs=0, step_timeout=timeout)
