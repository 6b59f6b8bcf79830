"""Compile the kernels of the envs that take longest, each once, in parallel.

Compiled kernels are cached on disk. `make test` runs this first: otherwise several test processes, and
the workers that they start, would each compile the same kernels at the same time.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from helpers.cases import ENV_CASES
from helpers.trajectories import record_trajectory
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.config.presets import preset_settings
from hundredfold.envs.dvrp.env import Dvrp

# The default training estimates the cost of every offer by sampled futures, with kernels of its own.
WITH_FUTURES = partial(Dvrp, settings=replace(preset_settings("dvrp").env_settings, num_customers=5))
ENVS = {"dvrp with futures": WITH_FUTURES} | {name: ENV_CASES[name] for name in ("cage2", "cage2_own", "dvrp")}


def compile_kernels(name: str) -> None:
    """Play one env for a few episodes, and restore a snapshot of it."""
    with closing(InProcessBackend(ENVS[name], 2)) as backend:
        record_trajectory(backend, seed=1, steps=25)
        backend.restore(backend.state())


if __name__ == "__main__":
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_kernels, ENVS))
