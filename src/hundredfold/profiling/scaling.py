"""Scaling of an env with the number of envs on each backend, and what keeps it from the ideal.

The reference is one env alone: the mean duration of its steps. Envs that wait could all wait at
once, so the ideal of N envs is N times that rate; envs that compute need a core, so the ideal is
limited by the number of cores; a built-in env is compared with N times a batch of one env.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final, Literal, cast

import numpy as np
import psutil

from hundredfold.backends import make_backend
from hundredfold.backends.auto_select import fit_workers, ready_batch
from hundredfold.backends.env_profile import StepCosts, measure_steps
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core import rng
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.batch import EnvSpec, IntArray, StepBatch
from hundredfold.core.formatting import format_count
from hundredfold.core.protocols import Backend, EnvFactory
from hundredfold.envs.gymnasium_env import EnvMaker, GymnasiumBatchEnv
from hundredfold.envs.registry import callable_factory, canonical_name, env_factory
from hundredfold.profiling.timeline import (
    RecordingBackend,
    TimeBreakdown,
    TimestampedBatchFactory,
    TimestampedEnvFactory,
    TimestampFile,
    time_breakdown,
)
from hundredfold.profiling.workloads import ComputingEnv, LargeInfoEnv, SlowWaitingEnv, WaitingEnv

# Name of this package in the column `system`.
HUNDREDFOLD: Final = "hundredfold"
# A measurement counts as undisturbed up to this fraction of stolen CPU time.
MAX_STEAL: Final = 0.02
# Synthetic envs of known cost, by the names they have in `hundredfold scale`.
SYNTHETIC_ENVS: Final[Mapping[str, EnvMaker]] = {
    "waiting": WaitingEnv,
    "waiting-50ms": SlowWaitingEnv,
    "computing": ComputingEnv,
    "large-info": LargeInfoEnv,
}
SIZES: Final = (1, 8, 64, 100, 256)
ALL_BACKENDS: Final = ("in_process", "processes", "first_ready")
# Slowdowns of waiting envs up to this speed are within the variation of their durations.
NOTICEABLE_SPEED: Final = 0.9
# Fraction of a measurement that runs before it counts.
WARM_UP: Final = 0.15
NUM_PREDRAWN: Final = 64
LEARN_STEPS: Final = 32

Kind = Literal["waiting", "computing", "batch"]

# Causes of lost time, as rows of `scale` name them after `lost_to_`.
LOSSES: Final = ("slowdown", "serial", "barrier", "transfer", "policy", "learner")
LOSS_NAMES: Final[Mapping[str, str]] = {
    "barrier": "the barrier (waiting for the slowest env)",
    "serial": "stepping envs one after another",
    "transfer": "data transfer",
    "policy": "the policy",
    "learner": "the learner",
    "slowdown": "steps that are slower than alone",
}
REMEDIES: Final[Mapping[str, str]] = {
    "barrier": "use --backend first_ready, which does not wait for the slowest env",
    "serial": "use --backend processes or first_ready, so that envs run in parallel",
    "transfer": "data transfer costs more than the steps: use --backend in_process, or smaller observations and infos",
    "policy": "a faster policy, or more envs per batch, would help more than another backend",
    "learner": "fewer update epochs or a smaller network would help more than another backend",
    "slowdown": "steps take longer in parallel than alone: other load is on these cores, or memory "
    "bandwidth is the limit",
}
# From this efficiency on there is no advice.
NEARLY_IDEAL: Final = 0.95
# Steps cheaper than this cost less than sending them to another process.
CHEAP_STEP_SECONDS: Final = 50e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings:
    """Settings of a scaling measurement."""

    num_envs: tuple[int, ...] = SIZES
    backends: tuple[str, ...] = ALL_BACKENDS
    seconds: float = 2.0  # per number of envs and backend
    policy_ms: float = 0.0  # computing time that stands for a policy, per batch of actions
    learn: bool = False  # PPO instead of random actions
    # An env that fails ends the measurement.
    workers: WorkerSettings = field(default_factory=lambda: WorkerSettings(on_env_error="stop"))


@dataclass(frozen=True, slots=True)
class MeasuredEnv:
    """The env whose scaling is measured."""

    name: str
    kind: Kind
    make_envs: Callable[[TimestampFile], EnvFactory]  # envs that record timestamps
    costs: StepCosts | None  # None for built-in envs

    def max_lanes(self, num_envs: int, cores: int) -> int:
        """How many lanes could step at the same time."""
        if self.kind == "batch":
            return 1
        return num_envs if self.kind == "waiting" else min(cores, num_envs)

    def ideal_speedup(self, num_envs: int, cores: int) -> int:
        """Ideal throughput as a multiple of one env alone."""
        return num_envs if self.kind == "batch" else self.max_lanes(num_envs, cores)

    def describe_ideal(self, cores: int) -> str:
        """What efficiency is measured against."""
        if self.kind == "batch":
            return "N times a batch of one env"
        if self.kind == "waiting":
            return "N times one env, because its envs wait rather than compute"
        return f"{cores} times one env, because its envs compute and there are {cores} cores"


def profile_env(name: str, env_settings: Any = None) -> MeasuredEnv:
    """Profile one env of a built-in, Gymnasium or synthetic name."""
    factory = factory_of(name, env_settings)
    env = factory(np.arange(1))
    try:
        if not isinstance(env, GymnasiumBatchEnv):
            return MeasuredEnv(name, "batch", partial(TimestampedBatchFactory, factory), None)
        costs = measure_steps(env)
        kind: Kind = "waiting" if costs.waits else "computing"
        make_envs = partial(TimestampedEnvFactory, env.make_env, name)
        return MeasuredEnv(name, kind, make_envs, costs)
    finally:
        env.close()


def factory_of(name: str, env_settings: Any) -> EnvFactory:
    """Env factory of a built-in, Gymnasium or synthetic name."""
    if name in SYNTHETIC_ENVS:
        return callable_factory(SYNTHETIC_ENVS[name])
    return env_factory(canonical_name(name), env_settings)


def measure_scaling(
    env: MeasuredEnv, settings: ScaleSettings, on_progress: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Throughput, efficiency and losses; a row per number of envs and backend."""
    cores = usable_cores()
    on_progress(f"{env.name}: one env alone")
    alone = measure_one(env, "in_process", 1, replace(settings, policy_ms=0.0, learn=False))
    rows = []
    for num_envs in dict.fromkeys(settings.num_envs):
        for backend in settings.backends:
            on_progress(f"{env.name}: {format_count(num_envs, 'env')}, {backend}")
            measured = measure_one(env, backend, num_envs, settings)
            lanes = int(lane_ids(env, backend, num_envs, settings.workers).max()) + 1
            used = min(1.0, lanes / env.max_lanes(num_envs, cores))
            speed = relative_speed(measured.step_seconds, alone.step_seconds, env.kind)
            shares = ideal_shares(measured, speed, used)
            ideal = env.ideal_speedup(num_envs, cores) / (speed * measured.step_seconds)
            if env.kind == "batch":
                # A part of the batch takes about as long as the whole: most of such a step is slowdown.
                efficiency = measured.steps_per_second / ideal
                shares["slowdown"] += shares["stepping"] - efficiency
                shares["stepping"] = efficiency
            rows.append(
                {
                    "system": HUNDREDFOLD,
                    "env": env.name,
                    "num_envs": num_envs,
                    "backend": backend,
                    "steps_per_second": measured.steps_per_second,
                    "ideal_steps_per_second": ideal,
                    "efficiency": shares.pop("stepping"),
                    **{f"lost_to_{name}": share for name, share in shares.items()},
                    "step_seconds": measured.step_seconds,
                    "step_seconds_alone": alone.step_seconds,
                }
            )
    return rows


def measure_one(env: MeasuredEnv, backend: str, num_envs: int, settings: ScaleSettings) -> TimeBreakdown:
    """Step the envs for a while and break down the time."""
    workers = worker_settings(env, backend, num_envs, settings.workers)
    with TemporaryDirectory(prefix="hundredfold-") as folder:
        file = TimestampFile(Path(folder) / "stamps", num_envs)
        stamps = file.create()
        envs = RecordingBackend(make_backend(backend, env.make_envs(file), num_envs, workers), stamps)
        try:
            (_learn if settings.learn else _step_randomly)(envs, settings)
        finally:
            envs.close()
    return time_breakdown(envs.events, lane_ids(env, backend, num_envs, settings.workers))


def worker_settings(env: MeasuredEnv, backend: str, num_envs: int, given: WorkerSettings) -> WorkerSettings:
    """Workers and threads as `--backend auto` would set them."""
    if env.costs is None:
        return given
    fitted = fit_workers(env.costs, num_envs, given, usable_cores())
    if backend != "first_ready":
        return replace(fitted, batch_envs=0)
    return replace(fitted, batch_envs=given.batch_envs or ready_batch(env.costs, num_envs))


def lane_ids(env: MeasuredEnv, backend: str, num_envs: int, given: WorkerSettings) -> IntArray:
    """(envs,) lane of each env; envs of one lane step one after another."""
    if backend not in ("processes", "first_ready"):
        return np.zeros(num_envs, np.int64)
    fitted = worker_settings(env, backend, num_envs, given)
    if fitted.env_threads > 1:
        return np.arange(num_envs)
    workers = fitted.num_workers(num_envs)
    edges = np.arange(workers + 1) * num_envs // workers
    return np.repeat(np.arange(workers), np.diff(edges))


def relative_speed(step_seconds: float, alone_seconds: float, kind: Kind) -> float:
    """Speed of steps relative to one env alone; above 1 where they are faster.

    Small differences of waiting envs are those of the durations that were drawn.
    """
    speed = alone_seconds / step_seconds
    return 1.0 if kind == "waiting" and speed > NOTICEABLE_SPEED else speed


def ideal_shares(measured: TimeBreakdown, speed: float, used: float) -> dict[str, float]:
    """Fractions of the time of the ideal number of lanes; they add up to 1.

    `stepping` counts at the speed of one env alone; the additional time of steps is `slowdown`, which is
    negative where steps are faster than alone, so that `stepping` may exceed 1.

    Args:
        measured: measured time breakdown.
        speed: speed of steps relative to one env alone.
        used: fraction of the ideal number of lanes that exists.
    """
    shares = {name: used * share for name, share in measured.shares.items()}
    shares["slowdown"] = (1.0 - speed) * shares["stepping"]
    shares["stepping"] *= speed
    shares["serial"] = 1.0 - used
    return {name: shares[name] for name in ("stepping", *LOSSES)}


def advice(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence of advice from the rows with the largest number of envs."""
    num_envs = max(row["num_envs"] for row in rows)
    largest = [row for row in rows if row["num_envs"] == num_envs]
    best = max(largest, key=lambda row: row["steps_per_second"])
    reached = f"{100 * best['efficiency']:.0f} % of the ideal with {num_envs} envs"
    others = [row for row in largest if row is not best]
    if others:
        second = max(others, key=lambda row: row["steps_per_second"])
        return (
            f"Use --backend {best['backend']}: it reaches {reached}. With {second['backend']}, "
            f"{_describe_loss(second)}."
        )
    if best["efficiency"] >= NEARLY_IDEAL:
        return f"{best['backend']} reaches {reached}: there is almost nothing left to gain."
    cause = main_loss(best)
    remedy = REMEDIES[cause]
    if cause == "barrier" and best["backend"] == "first_ready":
        remedy = "use a smaller --batch-envs"
    elif cause == "transfer" and best["backend"] == "in_process":
        remedy = (
            "steps are cheaper than handing over their data: more envs per batch, or smaller observations and infos"
        )
    elif cause == "serial" and best["step_seconds_alone"] < CHEAP_STEP_SECONDS:
        remedy = "steps this cheap gain little from other processes; a batch env would help"
    return f"{best['backend']} reaches {reached}. {_describe_loss(best)}: {remedy}."


def main_loss(row: Mapping[str, Any]) -> str:
    """The cause of most of the lost time."""
    return max(LOSSES, key=lambda name: float(row[f"lost_to_{name}"]))


def _describe_loss(row: Mapping[str, Any]) -> str:
    cause = main_loss(row)
    total = sum(max(0.0, row[f"lost_to_{name}"]) for name in LOSSES)
    share = row[f"lost_to_{cause}"] / total if total > 0 else 0.0
    return f"{100 * share:.0f} % of the loss is {LOSS_NAMES[cause]}"


def _step_randomly(envs: RecordingBackend, settings: ScaleSettings) -> None:
    """Step with random allowed actions, after as much computing as a policy would need."""
    act = _random_actor(envs.spec, envs.num_envs, settings.policy_ms / 1e3)
    envs.reset(0)
    for fraction in (WARM_UP, 1.0):
        envs.clear()
        begin, steps = perf_counter(), 0
        # At least three steps per env: the first was taken before the recording.
        while steps < 3 * envs.num_envs or perf_counter() - begin < fraction * settings.seconds:
            batch = envs.recv()
            envs.send(act(batch))
            steps += len(batch)


def _random_actor(spec: EnvSpec, num_envs: int, seconds: float) -> Callable[[StepBatch], IntArray]:
    """Actions from random numbers drawn beforehand; each call takes the given time."""
    counts = np.arange(NUM_PREDRAWN * num_envs * spec.num_logits)
    uniforms = rng.uniforms(rng.seed_key(0), counts).reshape(-1, spec.num_logits)
    predrawn = random_actions(spec, uniforms)
    predrawn = predrawn.reshape(NUM_PREDRAWN, num_envs, *spec.action_shape)
    indices = cycle(range(NUM_PREDRAWN))

    def act(batch: StepBatch) -> IntArray:
        until = perf_counter() + seconds
        index = next(indices)
        actions: IntArray = predrawn[index, batch.env_ids]
        if batch.mask is not None:
            rows = uniforms[index * num_envs + batch.env_ids]
            actions = random_actions(spec, rows, batch.mask)
        while perf_counter() < until:
            pass
        return actions

    return act


def _learn(envs: RecordingBackend, settings: ScaleSettings) -> None:
    """Train PPO with its default settings: a real policy, and an update every 32 steps."""
    import torch

    from hundredfold.algorithms.actor_critic import NetworkSettings
    from hundredfold.algorithms.ppo import PPO, PPOSettings
    from hundredfold.rollout.collector import Collector
    from hundredfold.rollout.rollout_buffer import RolloutSettings

    torch.set_num_threads(1)
    learner = PPO.build(
        envs.spec,
        settings=PPOSettings(),
        network=NetworkSettings(),
        rollout=RolloutSettings(num_envs=envs.num_envs, num_steps=LEARN_STEPS),
        num_updates=1_000_000,
        seed=0,
        device=torch.device("cpu"),
    )
    collector = Collector(cast(Backend, envs), 0)
    collector.start(0)
    collector.collect(learner.policy, learner.buffer, LEARN_STEPS)
    for fraction in (WARM_UP, 1.0):
        envs.clear()
        begin = perf_counter()
        # At least two updates, so that one lies between two steps.
        while perf_counter() - begin < fraction * settings.seconds or len(envs.events.update_spans) < 2:
            envs.run_update(learner.update)
            collector.collect(learner.policy, learner.buffer, LEARN_STEPS)


class StealTimeMonitor:
    """Measures CPU steal time from its creation on.

    Steal time is what the host of a virtual machine gives to other guests, milliseconds at a time.
    Linux reports it; elsewhere, and on physical machines, it is 0.
    """

    def __init__(self) -> None:
        self.start_steal, self.start_total = _cpu_seconds()

    def steal_fraction(self) -> float:
        """Stolen fraction of the time of all cores."""
        steal, total = _cpu_seconds()
        seconds = total - self.start_total
        return (steal - self.start_steal) / seconds if seconds > 0 else 0.0


def _cpu_seconds() -> tuple[float, float]:
    """Stolen and total time of all cores since the machine started, in seconds."""
    times = psutil.cpu_times()
    # Guest time is also counted in user and nice.
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return getattr(times, "steal", 0.0), sum(times) - guest
