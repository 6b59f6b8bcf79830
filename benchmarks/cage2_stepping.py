"""Stepping speed of cage2, with its true state read before and after every step.

A batch is compared with as many batches of one env, with a Python loop over envs of one env each,
and with a compiled loop over a single env, which has neither Python overhead nor memory traffic and
is the hardest reference. Speeds of other systems are recorded values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.measure import RepeatSummary, interleaved_rates, rate_row
from hundredfold.core.batch import IntArray
from hundredfold.core.numba_kernels import kernel
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network_tables import STANDARD_TABLES
from hundredfold.envs.cage2.step import step_rows
from hundredfold.profiling.scaling import HUNDREDFOLD

Row = dict[str, Any]
StepFunction = Callable[[int], None]  # steps every env this many times

SIZES: Final = (1, 100, 1000, 10_000)
HORIZON: Final = 100
NUM_PREDRAWN: Final = 128
# The columns of CybORG's true-state table.
TABLE: Final = ("known", "scanned", "access")
LOOP_ENVS: Final = 100

PYTHON_LOOP: Final = "Python loop over single envs"
COMPILED_LOOP: Final = "compiled loop over one env"

# Measured earlier on the same kind of machine (2 cores); neither is in a package registry. CybORG
# steps one env at a time. MiniCAGE is a simplified version of the game.
RECORDED: Final[tuple[Row, ...]] = (
    {"system": "CybORG", "num_envs": 1, "steps_per_second": 180.0, "steps_per_second_unread": 370.0},
    {"system": "MiniCAGE", "num_envs": 100, "steps_per_second": 28_000.0},
    {"system": "MiniCAGE", "num_envs": 1000, "steps_per_second": 54_000.0},
)


def bench_stepping(
    num_envs: Sequence[int] = SIZES, threads: Sequence[int] = (1, 2), repeats: int = 5, seconds: float = 0.1
) -> list[Row]:
    """Steps per second of batches, loops and recorded systems.

    Args:
        num_envs: batch sizes.
        threads: numbers of threads that step a batch.
        repeats: interleaved measurements of each.
        seconds: approximate duration of a measurement.
    """
    batches = {
        (envs, count, reads_state): _timed(_batch(envs, count, reads_state), envs, seconds)
        for envs in dict.fromkeys((1, *num_envs))
        for count in dict.fromkeys((1, *threads))
        for reads_state in (True, False)
    }
    subjects = {str(key): work for key, work in batches.items()}
    subjects[PYTHON_LOOP] = _timed(_python_loop(LOOP_ENVS), LOOP_ENVS, seconds)
    subjects[COMPILED_LOOP] = _timed(_compiled_loop(), 1, seconds)
    rates = interleaved_rates(subjects, repeats)

    one = rates[str((1, 1, True))].median
    rows = [
        _row(f"{HUNDREDFOLD}, {name}", rates[name], size, 1, reads_state=False)
        for name, size in ((PYTHON_LOOP, LOOP_ENVS), (COMPILED_LOOP, 1))
    ]
    for envs in dict.fromkeys(num_envs):
        for count in dict.fromkeys(threads):
            rate = rates[str((envs, count, True))]
            rows.append(
                _row(HUNDREDFOLD, rate, envs, count, reads_state=True)
                | {
                    "steps_per_second_unread": rates[str((envs, count, False))].median,
                    "efficiency": rate.median / (envs * one),
                    "ratio_to_python_loop": rate.median / rates[PYTHON_LOOP].median,
                    "ratio_to_compiled_loop": rate.median / rates[COMPILED_LOOP].median,
                }
            )
    return rows + _recorded_rows(rows)


def _timed(step: StepFunction, num_envs: int, seconds: float) -> Callable[[], int]:
    """A function that steps for about `seconds` and returns the number of env steps."""
    step(1)  # compiles
    steps, elapsed = 1, 0.0
    while elapsed < seconds / 2:
        steps = max(2 * steps, int(steps * seconds / max(elapsed, 1e-6))) if elapsed else steps
        begin = time.perf_counter()
        step(steps)
        elapsed = time.perf_counter() - begin

    def work() -> int:
        step(steps)
        return steps * num_envs

    return work


def _batch(num_envs: int, threads: int, reads_state: bool) -> StepFunction:
    """A batch with random blue actions and all red agents."""
    env = _env(num_envs, threads)
    actions = _random_actions(num_envs)
    table = [env.out.true_state[name] for name in TABLE] if reads_state else []

    def step(steps: int) -> None:
        for index in range(steps):
            for array in table:
                array.copy()
            env.step(actions[index % NUM_PREDRAWN])
            for array in table:
                array.copy()

    return step


def _python_loop(num_envs: int) -> StepFunction:
    """Batches of one env each, stepped one after another."""
    envs = [_env(1, threads=1) for _ in range(num_envs)]
    actions = _random_actions(num_envs)[:, :, None]

    def step(steps: int) -> None:
        for index in range(steps):
            for env, action in zip(envs, actions[index % NUM_PREDRAWN], strict=True):
                env.step(action)

    return step


def _compiled_loop() -> StepFunction:
    """A single env stepped inside compiled code, without Python between two steps."""
    env = _env(1, threads=1)
    actions = _random_actions(10_000).ravel()

    def step(steps: int) -> None:
        for first in range(0, steps, len(actions)):
            step_single_env(env.pointers, actions[: min(len(actions), steps - first)])

    return step


@kernel
def step_single_env(pointers: Any, actions: Any) -> None:
    """Step a batch of one env once per action."""
    for index in range(len(actions)):
        step_rows(pointers, actions[index : index + 1], 0, 1)


def _env(num_envs: int, threads: int) -> Cage2:
    env = Cage2(np.arange(num_envs), Cage2Settings(horizons=(HORIZON,), batch_threads=threads))
    env.reset(seed=0)
    return env


def _random_actions(num_envs: int) -> IntArray:
    return np.random.default_rng(0).integers(0, len(STANDARD_TABLES.action_kind), (NUM_PREDRAWN, num_envs))


def _row(system: str, rate: RepeatSummary, num_envs: int, threads: int, reads_state: bool) -> Row:
    return rate_row(system, rate, num_envs=num_envs, threads=threads) | {
        "episodes_per_second": rate.median / HORIZON,
        "true_state": "read twice" if reads_state else "not read",
    }


def _recorded_rows(rows: Sequence[Row]) -> list[Row]:
    """Recorded systems, with their ratio to a batch of the same size (of 100 envs for CybORG)."""
    recorded_rows: list[Row] = []
    for recorded in RECORDED:
        size = max(recorded["num_envs"], LOOP_ENVS)
        row: Row = {**recorded, "threads": 1, "source": "recorded"}
        for other in rows:
            if (other["system"], other["num_envs"], other["threads"]) == (HUNDREDFOLD, size, 1):
                row["ratio_to_hundredfold"] = row["steps_per_second"] / other["steps_per_second"]
        recorded_rows.append(row)
    return recorded_rows
