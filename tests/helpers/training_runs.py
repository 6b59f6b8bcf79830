"""Training runs for tests: run them, kill them at a given moment, compare what they wrote."""

import json
import shutil
import sys
from pathlib import Path

from numpy.testing import assert_array_equal

from helpers.processes import run_process
from hundredfold.training.checkpoint import load_checkpoint
from hundredfold.training.run_folder import RunFolder

# A run that is killed by SIGKILL at a chosen moment.
KILLED_RUN = """
import os, signal, hundredfold
from hundredfold.training import run as run_module

def die(): os.kill(os.getpid(), signal.SIGKILL)

save = run_module.save_checkpoint
def save_then_die(folder, checkpoint):
    path = save(folder, checkpoint)
    if {moment!r} == "after saving" and checkpoint.epoch == 3: die()
    return path
run_module.save_checkpoint = save_then_die

record = run_module.Run.record
def record_then_die(self, *args):
    record(self, *args)
    if {moment!r} == "two epochs later" and self.counters.epoch == 5: die()
run_module.Run.record = record_then_die

hundredfold.train({env!r}, save_dir={save_dir!r}, name="killed", report=False, **{settings!r})
"""

# Metrics that depend on the speed of the machine only.
CLOCK = ("time/", "samples_per_second", "wall_seconds")


def read_metrics(path):
    """The metrics of all epochs without those that depend on the clock."""
    rows = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCK)} for row in rows]


def checkpoint_arrays(path, which="last"):
    """All arrays of a checkpoint under flat names."""
    checkpoint = load_checkpoint(RunFolder.open(Path(path)), which)
    return {f"{part}/{name}": array for part, arrays in checkpoint.parts.items() for name, array in arrays.items()}


def run_python(code, *, expect, **options):
    """Run code in a new Python process and check its exit code; a failure shows its output."""
    return run_process([sys.executable, "-c", code], expect=expect, **options)


def assert_same_run(one, other):
    """Equal metrics and equal last checkpoints, bit for bit."""
    assert read_metrics(one) == read_metrics(other)
    left, right = checkpoint_arrays(one), checkpoint_arrays(other)
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert_array_equal(array, right[name], err_msg=name)


def truncated_run(path, epoch):
    """A copy of the run as if its driver had died after this checkpoint."""
    half = path.with_name(f"{path.name}-half")
    shutil.copytree(path, half)
    for checkpoint in (half / "checkpoints").iterdir():
        if checkpoint.name.isdecimal() and int(checkpoint.name) > epoch:
            shutil.rmtree(checkpoint)
    return half


class PairedLearners:
    """Two learners that act on the same batches and must choose the same actions."""

    def __init__(self, one, other):
        self.learners = one, other

    def sample(self, observation, mask, uniforms):
        self.samples = [learner.policy.sample(observation, mask, uniforms) for learner in self.learners]
        return self.samples[0]

    def add_actions(self, batch, sample):
        one, other = self.samples
        assert_array_equal(one.actions, other.actions)
        assert_array_equal(one.log_probs, other.log_probs)
        for learner, own in zip(self.learners, self.samples, strict=True):
            learner.buffer.add_actions(batch, own)

    def add_transitions(self, batch):
        for learner in self.learners:
            learner.buffer.add_transitions(batch)
