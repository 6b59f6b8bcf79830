"""How fast the cage2 env steps, with its true state read before and after every step.

Four ways to look at the same number. A batch is held against as many envs as it has, each as fast
as a batch of one; against a plain Python loop over envs of one env; and against a compiled loop
over a single env, which pays neither Python nor memory traffic and is the hardest yardstick. Last,
what other systems reach, as recorded elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import IntArray
from hundredfold.core.numba_kernels import entry_kernel
from hundredfold.envs.cage2.blue_actions import NUM_ACTIONS
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.step import step_rows

Row = dict[str, Any]

SIZES: Final = (1, 100, 1000, 10_000)
HORIZON: Final = 100
NUM_ACTION_ROWS: Final = 128
# The columns of the original's true-state table.
TABLE: Final = ("known", "scanned", "access")
LOOP_ENVS: Final = 100

PYTHON_LOOP: Final = "loop of one-env envs"
COMPILED_LOOP: Final = "compiled loop of one env"

# Measured on another occasion on the same kind of machine (2 cores); neither is in a package
# registry. CybORG steps one env at a time. MiniCAGE plays a simplified game.
RECORDED_ELSEWHERE: Final[tuple[Row, ...]] = (
    {
        "system": "CybORG",
        "num_envs": 1,
        "steps_per_second": 180.0,
        "steps_per_second_unread": 370.0,
    },
    {"system": "MiniCAGE", "num_envs": 100, "steps_per_second": 28_000.0},
    {"system": "MiniCAGE", "num_envs": 1000, "steps_per_second": 54_000.0},
)


@dataclass(slots=True)
class Subject:
    """Something that steps envs, and how fast it did, repeat by repeat."""

    num_envs: int
    threads: int
    play: Callable[[int], None]  # plays this many steps of every env
    yardstick: str = ""
    reads: bool = True  # whether the true state is read
    rates: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> None:
        """Play for about this long and note the env steps per second."""
        steps, spent = 1, 0.0
        while True:
            began = time.perf_counter()
            self.play(steps)
            spent = time.perf_counter() - began
            if spent >= seconds / 2:
                break
            steps = max(2 * steps, int(steps * seconds / max(spent, 1e-6)))
        self.rates.append(steps * self.num_envs / spent)

    @property
    def median(self) -> float:
        return float(np.median(self.rates))


def bench_stepping(
    num_envs: Sequence[int] = SIZES,
    threads: Sequence[int] = (1, 2),
    repeats: int = 5,
    seconds: float = 0.1,
) -> list[Row]:
    """Rows of medians with their spread; repeats go round all contenders in turn."""
    batches = [
        batch_subject(envs, count, reads)
        for envs in dict.fromkeys((1, *num_envs))
        for count in dict.fromkeys((1, *threads))
        for reads in (True, False)
    ]
    loops = [python_loop(LOOP_ENVS), compiled_loop()]
    subjects = [*batches, *loops]
    for subject in subjects:
        subject.play(1)  # compiles
    for _ in range(repeats):
        for subject in subjects:
            subject.measure(seconds)

    one = next(c for c in batches if (c.num_envs, c.threads, c.reads) == (1, 1, True))
    in_python, compiled = loops
    rows = [_loop_row(loop) for loop in loops]
    for read, unread in zip(batches[::2], batches[1::2], strict=True):
        if read.num_envs in num_envs and read.threads in threads:
            rows.append(
                _rates(read)
                | {
                    "steps_per_second_unread": unread.median,
                    "efficiency": read.median / (read.num_envs * one.median),
                    "ratio_to_python_loop": read.median / in_python.median,
                    "ratio_to_compiled_loop": read.median / compiled.median,
                }
            )
    return rows + _recorded_rows(rows)


def batch_subject(num_envs: int, threads: int, reads: bool) -> Subject:
    """One env of many envs, random blue actions, all red agents."""
    env = _env(num_envs, threads)
    actions = _random_actions(num_envs)
    table = [env.out.true_state[name] for name in TABLE]

    def play(steps: int) -> None:
        for step in range(steps):
            for array in table:
                array.copy()
            env.step(actions[step % NUM_ACTION_ROWS])
            for array in table:
                array.copy()

    def play_unread(steps: int) -> None:
        for step in range(steps):
            env.step(actions[step % NUM_ACTION_ROWS])

    return Subject(num_envs, threads, play if reads else play_unread, reads=reads)


def python_loop(num_envs: int) -> Subject:
    """As many envs as envs, stepped one after another by a plain loop."""
    envs = [_env(1, threads=1) for _ in range(num_envs)]
    actions = _random_actions(num_envs)[:, :, None]

    def play(steps: int) -> None:
        for step in range(steps):
            for env, action in zip(envs, actions[step % NUM_ACTION_ROWS], strict=True):
                env.step(action)

    return Subject(num_envs, 1, play, PYTHON_LOOP, reads=False)


def compiled_loop() -> Subject:
    """A single env stepped inside compiled code: no Python between two steps."""
    env = _env(1, threads=1)
    actions = _random_actions(10_000).ravel()

    def play(steps: int) -> None:
        for first in range(0, steps, len(actions)):
            play_alone(env.pointers, actions[: min(len(actions), steps - first)])

    return Subject(1, 1, play, COMPILED_LOOP, reads=False)


@entry_kernel
def play_alone(boards: Any, actions: Any) -> None:
    """Step an env of one env once per action."""
    for step in range(len(actions)):
        step_rows(boards, actions[step : step + 1], 0, 1)


def _env(num_envs: int, threads: int) -> Cage2:
    env = Cage2(np.arange(num_envs), Cage2Settings(horizons=(HORIZON,), batch_threads=threads))
    env.reset(seed=0)
    return env


def _random_actions(num_envs: int) -> IntArray:
    return np.random.default_rng(0).integers(0, NUM_ACTIONS, (NUM_ACTION_ROWS, num_envs))


def _rates(subject: Subject) -> Row:
    return {
        "system": "hundredfold",
        "num_envs": subject.num_envs,
        "threads": subject.threads,
        "steps_per_second": subject.median,
        "low": min(subject.rates),
        "high": max(subject.rates),
        "repeats": len(subject.rates),
        "episodes_per_second": subject.median / HORIZON,
        "true_state": "read twice" if subject.reads else "not read",
    }


def _loop_row(loop: Subject) -> Row:
    return _rates(loop) | {"system": f"hundredfold, {loop.yardstick}"}


def _recorded_rows(ours: Sequence[Row]) -> list[Row]:
    """The others' figures; `ratio_to_ours` against our batch of that size (100 for CybORG)."""
    rows: list[Row] = []
    for recorded in RECORDED_ELSEWHERE:
        size = max(recorded["num_envs"], LOOP_ENVS)
        row: Row = {**recorded, "threads": 1, "source": "recorded elsewhere"}
        for mine in ours:
            if (mine["system"], mine["num_envs"], mine["threads"]) == ("hundredfold", size, 1):
                row["ratio_to_ours"] = row["steps_per_second"] / mine["steps_per_second"]
        rows.append(row)
    return rows
