"""Sharing the rows of a large batch among threads; the kernels release the interpreter lock.

Plain threads that sleep while they wait, rather than Numba's own: those spin, and on a machine
where somebody else uses a core, one step of 100 envs took 24 ms instead of 0.01.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from hundredfold.core.batch import Array, IntArray
from hundredfold.worlds.cage2.step import step_rows

MIN_ROWS: Final = 1000
"""Rows that are worth waking a thread for: 50 us of work against 30 us to hand it over."""


class SharedStep:
    """Steps a batch of so many rows with up to so many threads, the calling one included."""

    def __init__(self, rows: int, threads: int) -> None:
        self.rows = rows
        self.parts = max(1, min(threads, rows // MIN_ROWS))
        self.pool: ThreadPoolExecutor | None = None
        self.owner = os.getpid()

    def __call__(self, board: Array, actions: IntArray) -> int:
        """As `step_rows` for all rows."""
        if self.parts == 1:
            return step_rows(board, actions, 0, self.rows)  # type: ignore[no-any-return]
        edges = [part * self.rows // self.parts for part in range(self.parts + 1)]
        pool = self._pool()
        others = [
            pool.submit(step_rows, board, actions, edges[part], edges[part + 1])
            for part in range(1, self.parts)
        ]
        results = [step_rows(board, actions, 0, edges[1]), *(other.result() for other in others)]
        # A refusal is the same from everybody; troubles add up.
        return results[0] if results[0] < 0 else sum(results)

    def close(self) -> None:
        """Let the threads go; another step would start new ones."""
        if self.pool is not None and self.owner == os.getpid():
            self.pool.shutdown()
        self.pool = None

    def _pool(self) -> ThreadPoolExecutor:
        # A forked process inherits the pool but not its threads.
        if self.pool is None or self.owner != os.getpid():
            self.pool = ThreadPoolExecutor(self.parts - 1, thread_name_prefix="cage2")
            self.owner = os.getpid()
        return self.pool
