"""Helpers for tests that train: short runs, what they left behind, processes that die on cue."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from numpy.testing import assert_array_equal

from hundredfold.training.checkpoint import load_checkpoint
from hundredfold.training.run_folder import RunFolder

# A training that dies by SIGKILL at a chosen moment.
KILLED_RUN = """
import os, signal, hundredfold
from hundredfold.training import run as books

def die(): os.kill(os.getpid(), signal.SIGKILL)

save = books.save_checkpoint
def save_then_die(folder, checkpoint):
    path = save(folder, checkpoint)
    if {moment!r} == "after saving" and checkpoint.epoch == 3: die()
    return path
books.save_checkpoint = save_then_die

record = books.Run.record
def record_then_die(self, *args):
    record(self, *args)
    if {moment!r} == "two epochs later" and self.counters.epoch == 5: die()
books.Run.record = record_then_die

hundredfold.train({env!r}, save_dir={save_dir!r}, name="killed", report=False, **{settings!r})
"""

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


def assert_same_run(one, other):
    """Equal metrics and equal last checkpoints, bit for bit."""
    assert metrics_of(one) == metrics_of(other)
    left, right = state_of(one), state_of(other)
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert_array_equal(array, right[name], err_msg=name)


class Twice:
    """Policy and experience of two learners that live through one story and must agree on it."""

    def __init__(self, one, other):
        self.learners = one, other

    def sample(self, observation, mask, uniforms):
        self.choices = [
            learner.policy.sample(observation, mask, uniforms) for learner in self.learners
        ]
        return self.choices[0]

    def add_actions(self, batch, choice):
        one, other = self.choices
        assert_array_equal(one.actions, other.actions)
        assert_array_equal(one.log_probs, other.log_probs)
        for learner, own in zip(self.learners, self.choices, strict=True):
            learner.buffer.add_actions(batch, own)

    def add_transitions(self, batch):
        for learner in self.learners:
            learner.buffer.add_transitions(batch)


def wait_until(condition, seconds=30):
    """Look every now and then until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.01)
