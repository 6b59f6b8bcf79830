"""Which backend suits an env, and which comes next where that one cannot start.

A built-in env is a batch: it runs in this process. Other envs are measured for a moment; whether
their steps cost enough to be sent elsewhere, whether they wait or compute and how much they differ
decides. The choice rests on a clock, so it is told and written down; what an env lives through
does not depend on it.

Measuring an env where it can do no harm: in a worker of its own, with a limit of time.

An env that hangs, or that takes its process along, is found out here before anything else depends
on it. The worker is like any other: it starts as they do and ends when the parent ends.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from hundredfold.backends.call_checks import check_num_envs
from hundredfold.backends.env_profile import Probe, barrier_share, probe
from hundredfold.backends.processes.backend import READY_DIVISOR
from hundredfold.backends.processes.env_shards import MAX_THREADS
from hundredfold.backends.processes.worker_handle import MAIN_GUARD_HINT, EnvTimeoutError
from hundredfold.backends.processes.worker_pool import InFlight, WorkerPool
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import WorkerError
from hundredfold.core.failures import RestartPolicy
from hundredfold.core.formatting import format_duration
from hundredfold.core.protocols import Backend, EnvFactory, PerEnvBatch

# A step that takes longer than this is not waited for: workers are right for it in any case.
PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about an env."""

    spec: EnvSpec
    is_per_env: bool
    probe: Probe | None = None  # None where nothing was played
    hung_seconds: float = 0.0  # how long one call was waited for, in vain


def probe_apart(make_envs: EnvFactory, settings: WorkerSettings) -> Finding:
    """Make one env in a worker and play it there, if it is somebody else's.

    Raises `WorkerError` or `OSError` where no worker can start, and `EnvError` where the env fails
    or takes its process along.
    """
    patience = min(settings.step_timeout, PATIENCE_SECONDS)
    alone = replace(settings, workers=1, env_threads=1, batch_envs=0, step_timeout=patience)
    with closing(WorkerPool(make_envs, InFlight(1), alone, batch_envs=1)) as pool:
        found = partial(Finding, pool.spec, pool.is_per_env)
        if not pool.is_per_env:
            return found()
        pool.restart_policy = RestartPolicy(
            "stop"
        )  # no second try for an env that takes its worker along
        try:
            return found(probe=pool.request("probe")[0])
        except EnvTimeoutError:
            return found(hung_seconds=patience)


def is_ours(make_envs: EnvFactory) -> bool:
    """Whether this can be seen to make a built-in env, which need not be tried out."""
    made: object = make_envs
    while isinstance(made, partial):
        made = made.func
    return isinstance(made, type) and not hasattr(made, "step_rows")


# What a batch costs that goes through workers: waking them up and being woken, and every env's
# part of it; where every env has a thread, these take turns.
ROUND_TRIP_SECONDS: Final = 150e-6
ENV_SECONDS: Final = 3e-6
BYTE_SECONDS: Final = 0.5e-9
THREAD_SECONDS: Final = 60e-6
# About what a small network needs to act on a batch, whatever its size, and to learn from a step.
POLICY_SECONDS: Final = 1e-3
LEARN_SECONDS: Final = 10e-6
# Workers that make a training less than so many times faster are not worth their trouble.
WORTHWHILE: Final = 1.25
# Losing this share of the time to the slowest is a reason not to wait for it.
BARRIER_SHARE: Final = 0.1

# What to try where a backend cannot start.
NEXT: Final = {"ray": "processes", "first_ready": "processes", "processes": "in_process"}

Maker = Callable[[EnvFactory, int, WorkerSettings | None], Backend]


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend, how to start it, and why this one."""

    backend: str
    settings: WorkerSettings
    reason: str

    @property
    def told(self) -> str:
        """One line for the person who left the choice to us."""
        parts = [self.backend]
        if self.backend in NEXT:
            parts.append(f"{self.settings.workers} workers")
            if self.settings.env_threads > 1:
                parts.append(f"{self.settings.env_threads} threads each")
            if self.settings.batch_envs:
                parts.append(f"batches of {self.settings.batch_envs} or more")
        return f"backend: {', '.join(parts)} ({self.reason})"


def choose_backend(
    make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None
) -> BackendChoice:
    """What suits this env; what the settings already say stays as it is.

    Makes one env in a worker and plays it for a moment there, unless the env is one of ours.
    """
    check_num_envs(num_envs)
    settings = settings or WorkerSettings()
    if num_envs == 1:
        return BackendChoice("in_process", settings, "one env has nobody to run beside")
    return choice_for(find_out(make_envs, settings), num_envs, settings)


def choice_for(found: Finding, num_envs: int, settings: WorkerSettings) -> BackendChoice:
    """What suits an env of which this was found out."""
    if num_envs == 1:
        return BackendChoice("in_process", settings, "one env has nobody to run beside")
    if found.spec.has_snapshots:
        return BackendChoice("in_process", settings, "this env is one batch")
    if not found.is_per_env:
        return BackendChoice("in_process", settings, "its envs do not step one by one")
    if found.probe is None:
        reason = (
            f"a first step took more than {found.hung_seconds:g} seconds; in workers an env that "
            f"hangs is replaced after {settings.step_timeout:g} seconds"
        )
        workers = settings.num_workers(num_envs)
        return BackendChoice("processes", replace(settings, workers=workers), reason)
    return decide(found.probe, num_envs, settings, usable_cores())


def find_out(make_envs: EnvFactory, settings: WorkerSettings, *, apart: bool = True) -> Finding:
    """What this env is like; tried out in a worker where one can start, else in this process.

    Without `apart` always in this process: for envs that are to run here and nowhere else.
    """
    refuse_in_worker()
    if apart and not is_ours(make_envs):
        try:
            return probe_apart(make_envs, settings)
        except (WorkerError, OSError):
            pass  # no worker can start, so the envs will run here in any case
    with closing(make_envs(np.arange(1))) as env:
        if env.spec.has_snapshots or not isinstance(env, PerEnvBatch):
            return Finding(env.spec, is_per_env=False)
        env.restart_policy = settings.restart_policy()
        return Finding(env.spec, is_per_env=True, probe=probe(env))


def decide(found: Probe, num_envs: int, settings: WorkerSettings, cores: int) -> BackendChoice:
    """What suits envs that were found to be like this."""
    fitted = fit_workers(found, num_envs, settings, cores)
    step = format_duration(found.step_seconds)
    alone = num_envs * found.step_seconds
    if found.waits:
        side_by_side = found.step_seconds + num_envs * THREAD_SECONDS / fitted.workers
        lanes, per_lane = num_envs, 1
        like = f"a step takes {step}, {100 * found.waiting_share:.0f} % of it waiting"
    else:
        lanes = min(fitted.workers, cores)
        if lanes == 1:
            what = "only one core" if cores == 1 else "one worker"
            return BackendChoice("in_process", settings, f"steps compute, and there is {what}")
        side_by_side, per_lane = alone / lanes, max(1, num_envs // lanes)
        like = f"a step computes for {step}"
    side_by_side += ROUND_TRIP_SECONDS
    side_by_side += num_envs * (ENV_SECONDS + BYTE_SECONDS * found.step_bytes)
    learning = POLICY_SECONDS + num_envs * LEARN_SECONDS
    if alone + learning < WORTHWHILE * (side_by_side + learning):
        reason = f"{like}: sending {num_envs} of them to other processes would gain little"
        return BackendChoice("in_process", settings, reason)
    lost = barrier_share(found.costs, lanes, per_lane)
    if lost < BARRIER_SHARE:
        reason = f"{like}; waiting for the slowest costs about {100 * lost:.0f} %"
        return BackendChoice("processes", fitted, reason)
    reason = (
        f"{like}; waiting for the slowest would cost about {100 * lost:.0f} %. Whoever is ready "
        "first goes on, so no two runs are the same"
    )
    batch_envs = settings.batch_envs or ready_batch(found, num_envs)
    return BackendChoice("first_ready", replace(fitted, batch_envs=batch_envs), reason)


def fit_workers(
    found: Probe, num_envs: int, settings: WorkerSettings, cores: int
) -> WorkerSettings:
    """A worker per core, a thread per env where envs wait; unless the settings say otherwise."""
    workers = min(settings.workers or cores, num_envs)
    threads = min(-(-num_envs // workers), MAX_THREADS) if found.waits else 1
    return replace(settings, workers=workers, env_threads=settings.env_threads or threads)


def ready_batch(found: Probe, num_envs: int) -> int:
    """Envs to wait for: no more than come anyway while the policy is busy with others."""
    most = max(1, num_envs // READY_DIVISOR)
    if not found.waits:
        # Its cores are the envs' cores: rather few large batches than many small ones.
        return most
    meanwhile = num_envs * POLICY_SECONDS / found.step_seconds
    return min(most, max(1, round(meanwhile / 2)))


def start_or_fall_back(
    makers: Mapping[str, Maker], choice: BackendChoice, make_envs: EnvFactory, num_envs: int
) -> tuple[Backend, BackendChoice]:
    """The chosen backend, or the next one that starts, with one warning that says why.

    What goes wrong in the envs themselves is none of this: their errors come through.
    """
    name, first_error = choice.backend, None
    while True:
        try:
            backend = makers[name](make_envs, num_envs, choice.settings)
        except (WorkerError, OSError) as error:
            # A worker that imports the user's script must fail there, not train in its place.
            if name not in NEXT or is_importing_main():
                raise
            first_error = first_error or error
            name = NEXT[name]
        else:
            break
    if first_error is None:
        return backend, choice
    warnings.warn(fallback_warning(choice.backend, name, first_error), stacklevel=4)
    return backend, BackendChoice(name, choice.settings, f"{choice.backend} could not start")


def fallback_warning(wanted: str, taken: str, error: Exception) -> str:
    """What could not start, why, what runs instead and what to do about it."""
    # Where the system refused something, that is the reason, and a main guard is no remedy.
    reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
    text = f"the backend {wanted} could not start: {str(reason).rstrip('.')}."
    if isinstance(reason, OSError):
        text += " Allow more processes, open files or memory (`ulimit -a` shows the limits)."
    if taken == "in_process":
        text += " The envs run one after another in this process instead"
    else:
        text += f" The backend {taken} runs instead"
    return f"{text}; ask for --backend {taken} where that is what you want."


def refuse_in_worker() -> None:
    """Refuse to choose anything in a worker that is importing the script which started it."""
    if is_importing_main():
        raise WorkerError(
            f"a worker process tried to choose a backend of its own. {MAIN_GUARD_HINT}"
        )


def is_importing_main() -> bool:
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))
