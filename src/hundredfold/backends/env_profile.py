"""What one env is like: it is played for a moment, and what its steps cost is written down."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from time import perf_counter, process_time
from typing import Final

import numpy as np

from hundredfold.backends.processes.env_shards import (
    MIN_BLOCKED_FRACTION,
    MIN_SWITCHES_PER_STEP,
    voluntary_switches,
)
from hundredfold.core import rng
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.batch import FloatArray, StepBatch
from hundredfold.core.protocols import PerEnvBatch

# A probe ends after so many steps or so many seconds, whichever comes first; two steps it takes in
# any case, because a first step often loads and compiles.
PROBE_STEPS: Final = 500
PROBE_SECONDS: Final = 0.3
EMPTY_CALLS: Final = 20
PROBE_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """What some steps of one env cost."""

    seconds: FloatArray  # (steps,) from call to return
    cpu_seconds: FloatArray  # (steps,) in which this process was on a core
    switches: int  # how often it gave up its core by itself
    step_bytes: int  # what one step has to say; infos stay where they are until one is read

    @property
    def waits(self) -> bool:
        """Whether the env waits for something rather than computes.

        A busy machine takes cores away as well, but makes nobody give one up.
        """
        total = float(self.seconds.sum())
        gave_up = self.switches >= MIN_SWITCHES_PER_STEP * len(self.seconds)
        return gave_up and total - float(self.cpu_seconds.sum()) >= MIN_BLOCKED_FRACTION * total

    @property
    def costs(self) -> FloatArray:
        """(steps,) seconds of each step that nobody can spare it.

        Where it computes these are seconds on a core, which a busy machine does not stretch.
        """
        return self.seconds if self.waits else self.cpu_seconds

    @property
    def step_seconds(self) -> float:
        return float(self.costs.mean())

    @property
    def waiting_share(self) -> float:
        """The share of a step in which no core is used."""
        return max(0.0, 1.0 - float(self.cpu_seconds.sum()) / float(self.seconds.sum()))


def probe(env: PerEnvBatch, steps: int = PROBE_STEPS, seconds: float = PROBE_SECONDS) -> Probe:
    """Play random allowed actions in an env of one env; it is reset first."""
    spec, batch = env.spec, env.reset(PROBE_SEED)
    counts = np.arange((steps + 1) * spec.num_logits)
    luck = rng.uniforms(rng.seed_key(PROBE_SEED), counts).reshape(steps + 1, -1)
    # Drawn beforehand where no mask has a say: in between it would cool down the caches.
    actions = random_actions(spec, luck)
    walls, cpus = np.zeros(steps + 1), np.zeros(steps + 1)
    begun = perf_counter()
    taken = switches = 0
    while taken <= steps and (taken < 2 or perf_counter() - begun < seconds):
        chosen = actions[taken : taken + 1]
        if batch.mask is not None:
            chosen = random_actions(spec, luck[taken : taken + 1], batch.mask)
        if taken == 1:
            switches = voluntary_switches()
        wall, cpu = perf_counter(), process_time()
        batch = env.step(chosen)
        walls[taken], cpus[taken] = perf_counter() - wall, process_time() - cpu
        taken += 1
    switches = voluntary_switches() - switches
    spared = call_seconds(env)
    walls, cpus = (np.maximum(times[1:taken] - spared, 0.0) for times in (walls, cpus))
    return Probe(walls, cpus, switches, step_bytes(batch))


def call_seconds(env: PerEnvBatch) -> float:
    """What calling the env costs before any env is stepped: many envs share one call."""
    nobody = np.zeros((0, *env.spec.action_shape), env.spec.action_dtype)
    times = np.zeros(EMPTY_CALLS)
    for number in range(EMPTY_CALLS):
        begun = process_time()
        env.step_rows(0, 0, nobody)
        times[number] = process_time() - begun
    return float(np.median(times))


def step_bytes(batch: StepBatch) -> int:
    """Bytes that one env has to say after a step."""
    return sum(array.nbytes for array in batch.arrays().values()) // len(batch)


def barrier_share(costs: FloatArray, lanes: int, per_lane: int) -> float:
    """The share of time lost where `lanes` go side by side and wait for the slowest of them.

    Each lane plays `per_lane` steps of these costs, one after another. One step each: the mean of
    the largest of so many draws, from the costs themselves. Several: their sum is taken for normal.
    """
    if lanes < 2:
        return 0.0
    mean = float(costs.mean())
    if per_lane == 1:
        chances = np.arange(len(costs) + 1) / len(costs)
        slowest = float(np.sort(costs) @ np.diff(chances**lanes))
    else:
        # Blom's approximation of the largest of so many normal numbers.
        largest = NormalDist().inv_cdf((lanes - 0.375) / (lanes + 0.25))
        slowest = mean + float(costs.std()) * largest / per_lane**0.5
    return 1.0 - mean / slowest if slowest > 0 else 0.0
