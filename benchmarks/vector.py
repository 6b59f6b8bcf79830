"""Throughput of stepping many envs: backends compared with vector envs of other libraries.

Actions are drawn beforehand and no network is involved. Systems are measured in turn, each after a
short warm-up, so that no system depends on what ran before it. A measurement that was disturbed by
CPU steal time is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, Literal

import gymnasium

from benchmarks.measure import rate_row, summarise
from benchmarks.subjects import BackendSubject, EnvMaker, Subject, VectorEnvSubject, envpool_envs, vector_env_makers
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.errors import is_installed
from hundredfold.core.protocols import EnvFactory
from hundredfold.envs.registry import callable_factory, env_factory, settings_class
from hundredfold.profiling.scaling import HUNDREDFOLD, MAX_STEAL, StealTimeMonitor
from hundredfold.profiling.workloads import ComputingEnv, LargeInfoEnv, SlowWaitingEnv, WaitingEnv

# Fraction of a measurement that runs before it counts.
WARM_UP: Final = 0.15
# Measurements taken until one has low steal time; else the one with the lowest is used.
MAX_TRIES: Final = 4
# first_ready waits for one env in this many: with fewer the main process becomes the bottleneck.
READY_DIVISOR: Final = 32

Kind = Literal["cheap", "waiting", "computing"]
SystemKey = tuple[str, str]  # (system, backend)


@dataclass(frozen=True, slots=True)
class Workload:
    """Envs to step."""

    name: str
    make_env: EnvMaker
    num_envs: int
    kind: Kind = "cheap"
    reference: str = "processes"  # backend of hundredfold that the ratios refer to

    @property
    def max_parallel(self) -> int | None:
        """How many envs could step at the same time; None if rewards are not durations."""
        if self.kind == "cheap":
            return None
        return self.num_envs if self.kind == "waiting" else min(usable_cores(), self.num_envs)


CARTPOLE: Final = "CartPole-v1"
LARGE_INFO: Final = "dict + 5 kB info"
WORKLOADS: Final = (
    Workload(CARTPOLE, partial(gymnasium.make, CARTPOLE, disable_env_checker=True), 100),
    Workload("waiting 10 ms", WaitingEnv, 100, "waiting", "first_ready"),
    Workload("waiting 10 ms", WaitingEnv, 256, "waiting", "first_ready"),
    Workload("waiting 50 ms", SlowWaitingEnv, 256, "waiting", "first_ready"),
    Workload("computing 1-5 ms", ComputingEnv, 100, "computing", "first_ready"),
    Workload(LARGE_INFO, LargeInfoEnv, 100),
)

# Goals by (workload, backend): a fraction of the ideal, or a multiple of another system's speed.
GOALS: Final[Mapping[tuple[str, str], tuple[str, float]]] = {
    ("waiting 10 ms", "first_ready"): ("efficiency", 0.95),
    ("waiting 10 ms", "first_ready, quarters"): ("efficiency", 0.80),
    ("waiting 50 ms", "first_ready"): ("efficiency", 0.95),
    ("waiting 50 ms", "first_ready, quarters"): ("efficiency", 0.80),
    ("computing 1-5 ms", "first_ready"): ("efficiency", 0.85),
    (CARTPOLE, "processes"): ("gymnasium async", 15.0),
    # Like for like: Gymnasium's vector envs seed the first episode only.
    (CARTPOLE, "processes, seeded once"): ("gymnasium async", 15.0),
    (CARTPOLE, "batch env"): ("envpool", 1.0),
    (LARGE_INFO, "processes"): ("stable-baselines3 subproc", 9.0),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of one system."""

    steps: int
    work_seconds: float  # sum of the rewards: durations of the steps, where rewards are that
    seconds: float
    steal_fraction: float = 0.0  # stolen fraction of CPU time


def bench_vector(
    workloads: Sequence[Workload] = WORKLOADS,
    repeats: int = 5,
    seconds: float = 0.8,
    on_progress: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """A row per workload and system."""
    return [row for work in workloads for row in bench_workload(work, repeats, seconds, on_progress)]


def bench_workload(
    work: Workload, repeats: int, seconds: float, on_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """All systems on the same workload, measured in turn."""
    subjects: dict[SystemKey, Subject] = {}
    measurements: dict[SystemKey, list[Measurement]] = {}
    label = f"{work.name}, {work.num_envs} envs"
    try:
        for key, make in subject_makers(work).items():
            on_progress(f"{label}: starting {' '.join(key)}")
            try:
                subjects[key] = make()
            except OSError as error:  # 256 processes are more than some machines allow
                on_progress(f"{label}: {' '.join(key)} could not start: {error}")
                continue
            measurements[key] = []
            measure(subjects[key], seconds / 4)
        for number in range(repeats):
            on_progress(f"{label}: round {number + 1} of {repeats}")
            for key, subject in subjects.items():
                measurements[key].append(measure_with_low_steal(subject, seconds))
    finally:
        for subject in subjects.values():
            subject.close()
    return rows_of(work, measurements)


def measure_with_low_steal(subject: Subject, seconds: float) -> Measurement:
    """The first measurement with low steal time, or the one with the lowest of a few."""
    tries: list[Measurement] = []
    while len(tries) < MAX_TRIES:
        tries.append(measure(subject, seconds))
        if tries[-1].steal_fraction <= MAX_STEAL:
            break
    return min(tries, key=lambda one: one.steal_fraction)


def measure(subject: Subject, seconds: float) -> Measurement:
    """Step for some seconds, after a warm-up."""
    begin = perf_counter()
    subject.step_batch()
    while perf_counter() - begin < WARM_UP * seconds:
        subject.step_batch()
    steps, work_seconds, monitor, begin = 0, 0.0, StealTimeMonitor(), perf_counter()
    while True:
        batch_steps, reward = subject.step_batch()
        steps, work_seconds = steps + batch_steps, work_seconds + reward
        elapsed = perf_counter() - begin
        if elapsed >= seconds:
            steal_fraction = monitor.steal_fraction()
            subject.wait_until_idle()
            return Measurement(steps, work_seconds, elapsed, steal_fraction)


def subject_makers(work: Workload) -> dict[SystemKey, Callable[[], Subject]]:
    """Constructors of all systems, without those that would take seconds for one batch."""
    makers = backend_makers(work)
    if work.name == CARTPOLE and is_installed("envpool"):
        makers["envpool", ""] = lambda: VectorEnvSubject(envpool_envs(CARTPOLE, work.num_envs), work.num_envs, 2)
    num_actions = 2 if work.name == CARTPOLE else 4
    for (system, kind), make_envs in vector_env_makers().items():
        if work.kind == "waiting" and kind in ("sync", "dummy"):
            continue
        makers[system, kind] = partial(_vector_env_subject, make_envs, work, num_actions)
    return makers


def backend_makers(work: Workload) -> dict[SystemKey, Callable[[], Subject]]:
    """Constructors of the backends of hundredfold."""
    factory, num_envs = hundredfold_factory(work), work.num_envs
    makers: dict[SystemKey, Callable[[], Subject]] = {}

    def add(name: str, backend: str, factory: EnvFactory = factory, **settings: Any) -> None:
        workers = WorkerSettings(**settings)
        makers[HUNDREDFOLD, name] = partial(BackendSubject, backend, factory, num_envs, workers)

    if work.kind == "waiting":
        threads = -(-num_envs // min(usable_cores(), num_envs))
        few, quarter = max(1, num_envs // READY_DIVISOR), max(1, num_envs // 4)
        add("processes", "processes", env_threads=threads)
        add("first_ready", "first_ready", env_threads=threads, batch_envs=few)
        add("first_ready, quarters", "first_ready", env_threads=threads, batch_envs=quarter)
    else:
        add("in_process", "in_process")
        add("processes", "processes")
        add("first_ready", "first_ready")
    if work.name == LARGE_INFO:
        makers[HUNDREDFOLD, "processes, infos read"] = partial(
            BackendSubject, "processes", factory, num_envs, read_infos=True
        )
    if work.name == CARTPOLE:
        # As in the other libraries. Seeding an episode of CartPole takes as long as three steps.
        once = env_factory(CARTPOLE, settings_class(CARTPOLE)(seed_episodes=False))
        add("processes, seeded once", "processes", once)
        batch_env = env_factory("cartpole", settings_class("cartpole")())
        add("batch env", "in_process", batch_env)
    return makers


def hundredfold_factory(work: Workload) -> EnvFactory:
    """Env factory for the backends of hundredfold."""
    if work.name == CARTPOLE:
        return env_factory(CARTPOLE, settings_class(CARTPOLE)())
    return callable_factory(work.make_env)


def _vector_env_subject(make_envs: Callable[[EnvMaker, int], Any], work: Workload, num_actions: int) -> Subject:
    return VectorEnvSubject(make_envs(work.make_env, work.num_envs), work.num_envs, num_actions)


def rows_of(work: Workload, measurements: Mapping[SystemKey, Sequence[Measurement]]) -> list[dict[str, Any]]:
    """Medians with their range, ratios to hundredfold, and goals."""
    rates = {key: summarise([one.steps / one.seconds for one in repeats]) for key, repeats in measurements.items()}
    medians = {" ".join(key).strip(): rate.median for key, rate in rates.items()}
    reference = medians[f"{HUNDREDFOLD} {work.reference}"]
    rows = []
    for (system, backend), rate in rates.items():
        row = rate_row(system, rate, backend=backend, env=work.name, num_envs=work.num_envs)
        row["ratio_to_hundredfold"] = rate.median / reference
        repeats = measurements[system, backend]
        row["steal_fraction"] = summarise([one.steal_fraction for one in repeats]).median
        if work.max_parallel is not None:
            shares = [one.work_seconds / (one.seconds * work.max_parallel) for one in repeats]
            row["efficiency"] = summarise(shares).median
        if system == HUNDREDFOLD:
            row |= goal_of(work.name, backend, row, medians)
        rows.append(row)
    return rows


def goal_of(work: str, backend: str, row: Mapping[str, Any], medians: Mapping[str, float]) -> dict[str, Any]:
    """The goal of a row of hundredfold and whether it is reached; empty without a goal."""
    reference, goal = GOALS.get((work, backend), ("", 0.0))
    if reference == "efficiency":
        return {"goal": f">= {100 * goal:.0f} % of ideal", "reached": row[reference] >= goal}
    if reference not in medians:
        return {}
    ratio = row["steps_per_second"] / medians[reference]
    return {"goal": f">= {goal:g}x {reference} (is {ratio:.1f}x)", "reached": ratio >= goal}
