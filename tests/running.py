"""Helpers for tests that train: short runs, what they left behind, processes that die on cue."""

import json
import os
import subprocess
import sys
from pathlib import Path

from hundredfold.training.checkpoint import load_checkpoint
from hundredfold.training.run_folder import RunFolder

# Metrics that depend on the machine's speed and on nothing else.
CLOCK = ("time/", "samples_per_second", "wall_seconds")


def metrics_of(path):
    """All epochs of a run without what the clock had to say."""
    rows = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCK)} for row in rows]


def state_of(path, which="last"):
    """Every array of a checkpoint under one flat name, the wall clock left out."""
    checkpoint = load_checkpoint(RunFolder.open(Path(path)), which)
    return {
        f"{part}/{name}": array
        for part, arrays in checkpoint.parts.items()
        for name, array in arrays.items()
    }


def run_python(code, *, expect, timeout=120, **options):
    """A Python process of its own; returns it when it ended as expected, else shows its words."""
    env = {**os.environ, **options.pop("env", {})}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=env,
        check=False,
        **options,
    )
    assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
