"""Cost profile of an env: how long its steps take, and whether they wait or compute."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from statistics import NormalDist
from time import perf_counter, process_time
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.batch import EnvSpec, FloatArray, StepBatch
from hundredfold.core.protocols import PerEnvBatch

# Envs wait rather than compute if they give up their core in at least half of their steps and are
# off it for this fraction of the time. A busy machine takes cores away, too, but that is not a
# voluntary context switch.
MIN_SWITCHES_PER_STEP: Final = 0.5
MIN_WAITING_FRACTION: Final = 0.25
# A measurement ends after so many steps or so many seconds, whichever comes first. It takes two
# steps in any case, because a first step often loads and compiles.
MAX_STEPS: Final = 500
MAX_SECONDS: Final = 0.3
EMPTY_CALLS: Final = 20
SEED: Final = 0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Measured cost of some steps of one env."""

    seconds: FloatArray  # (steps,) wall time
    cpu_seconds: FloatArray  # (steps,) CPU time of this process
    switches: int  # voluntary context switches
    step_bytes: int  # size of one env's row of a batch, without infos, which are fetched when read

    @property
    def waits(self) -> bool:
        """Whether the env waits (for I/O, a server, a sleep) rather than computes."""
        total = float(self.seconds.sum())
        yields_core = self.switches >= MIN_SWITCHES_PER_STEP * len(self.seconds)
        return yields_core and total - float(self.cpu_seconds.sum()) >= MIN_WAITING_FRACTION * total

    @property
    def costs(self) -> FloatArray:
        """(steps,) wall seconds where the env waits, else CPU seconds, unaffected by load."""
        return self.seconds if self.waits else self.cpu_seconds

    @property
    def step_seconds(self) -> float:
        """Mean seconds per step."""
        return float(self.costs.mean())

    @property
    def waiting_share(self) -> float:
        """The share of a step in which no core is used."""
        return max(0.0, 1.0 - float(self.cpu_seconds.sum()) / float(self.seconds.sum()))


@dataclass(frozen=True, slots=True)
class EnvProfile:
    """What was found out about an env by creating it and stepping it for a moment."""

    spec: EnvSpec
    is_per_env: bool  # whether its envs step one by one, as third-party envs do
    step_costs: StepCosts | None = None  # None where nothing was measured
    hung_seconds: float = 0.0  # above 0: a step did not return within this time
    needs_main_thread: bool = False  # it waits, but fails outside the main thread of a process
    starts_programs: bool = False  # in other processes, which must end with the env
    num_failures: int = 0  # meanwhile, after which the env was restarted
    first_failure: str = ""


def measure_steps(
    env: PerEnvBatch, steps: int = MAX_STEPS, seconds: float = MAX_SECONDS, seed: int = SEED
) -> StepCosts:
    """Reset a batch of one env and measure its steps under random allowed actions."""
    spec, batch = env.spec, env.reset(seed)
    counts = np.arange((steps + 1) * spec.num_logits)
    uniforms = rng.uniforms(rng.seed_key(seed), counts).reshape(steps + 1, -1)
    # Drawn beforehand where no mask has to be respected: in between it would cool the CPU caches.
    drawn = random_actions(spec, uniforms)
    walls, cpus = np.zeros(steps + 1), np.zeros(steps + 1)
    begun = perf_counter()
    taken = switches = 0
    while taken <= steps and (taken < 2 or perf_counter() - begun < seconds):
        actions = drawn[taken : taken + 1]
        if batch.mask is not None:
            actions = random_actions(spec, uniforms[taken : taken + 1], batch.mask)
        if taken == 1:
            switches = voluntary_switches()
        wall, cpu = perf_counter(), process_time()
        batch = env.step(actions)
        walls[taken], cpus[taken] = perf_counter() - wall, process_time() - cpu
        taken += 1
    switches = voluntary_switches() - switches
    overhead = call_seconds(env)
    walls, cpus = (np.maximum(times[1:taken] - overhead, 0.0) for times in (walls, cpus))
    return StepCosts(walls, cpus, switches, step_bytes(batch))


def call_seconds(env: PerEnvBatch) -> float:
    """Overhead of one call of the batch, in seconds, which a larger batch shares."""
    no_actions = np.zeros((0, *env.spec.action_shape), env.spec.action_dtype)
    times = np.zeros(EMPTY_CALLS)
    for number in range(EMPTY_CALLS):
        begun = process_time()
        env.step_rows(0, 0, no_actions)
        times[number] = process_time() - begun
    return float(np.median(times))


def step_bytes(batch: StepBatch) -> int:
    """Bytes of one env's row of a batch."""
    return sum(array.nbytes for array in batch.arrays().values()) // len(batch)


def barrier_share(costs: FloatArray, lanes: int, per_lane: int) -> float:
    """The share of time lost when parallel lanes wait for the slowest of them.

    With one step per lane: the expected maximum of so many draws from the costs. With several, the
    sum of a lane is taken as normal, and the maximum is Blom's (1958) approximation.

    Args:
        costs: (steps,) measured seconds per step.
        lanes: number of workers or threads that run in parallel.
        per_lane: steps that each lane takes one after another.
    """
    if lanes < 2:
        return 0.0
    mean = float(costs.mean())
    if per_lane == 1:
        cdf = np.arange(len(costs) + 1) / len(costs)
        slowest = float(np.sort(costs) @ np.diff(cdf**lanes))
    else:
        largest = NormalDist().inv_cdf((lanes - 0.375) / (lanes + 0.25))
        slowest = mean + float(costs.std()) * largest / per_lane**0.5
    return 1.0 - mean / slowest if slowest > 0 else 0.0


def voluntary_switches() -> int:
    """Voluntary context switches of this thread so far."""
    # Where threads are not counted separately, the process: its other threads sleep meanwhile.
    who = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(who).ru_nvcsw
