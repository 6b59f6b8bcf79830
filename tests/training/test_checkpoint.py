"""Checkpoints are written atomically, and damaged ones are detected."""

import json
import os
import resource
import signal

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.training_runs import run_python
from hundredfold.core.errors import CheckpointError
from hundredfold.envs.corridor import Corridor
from hundredfold.training.checkpoint import (
    Checkpoint,
    best_epoch,
    load_checkpoint,
    mark_best,
    prune,
    remove_leftovers,
    save_checkpoint,
    saved_epochs,
)
from hundredfold.training.run_folder import RunFolder

SPEC = Corridor(np.arange(1)).spec


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return RunFolder(tmp_path)


def make_checkpoint(epoch):
    arrays = {
        "numbers": np.arange(6.0).reshape(2, 3) + epoch,
        "keys": np.array([2**63 + 1], np.uint64),
        "flags": np.array([True, False]),
        "count": np.array(epoch),
    }
    return Checkpoint(epoch, {"epoch": epoch, "wall_seconds": 1.5}, SPEC, {"learner": arrays})


def test_a_checkpoint_round_trip_is_bit_exact(folder):
    save_checkpoint(folder, make_checkpoint(3))
    loaded = load_checkpoint(folder)
    assert loaded.epoch == 3
    assert loaded.counters == {"epoch": 3, "wall_seconds": 1.5}
    assert loaded.spec.action_nvec == SPEC.action_nvec
    assert loaded.spec.observation["cell"].categories == (6,)
    for name, array in make_checkpoint(3).parts["learner"].items():
        assert loaded.parts["learner"][name].dtype == array.dtype
        assert loaded.parts["learner"][name].shape == array.shape
        assert_array_equal(loaded.parts["learner"][name], array)


def test_checkpoints_load_by_last_best_and_epoch(folder):
    for epoch in (1, 2, 3):
        save_checkpoint(folder, make_checkpoint(epoch))
    assert load_checkpoint(folder, "best").epoch == 3
    mark_best(folder, 2, 17.5)
    assert best_epoch(folder) == (2, 17.5)
    assert load_checkpoint(folder, "best").epoch == 2
    assert load_checkpoint(folder, "1").epoch == 1
    with pytest.raises(CheckpointError, match=r"no checkpoint '7'; it has last, best and \[1, 2, 3"):
        load_checkpoint(folder, "7")


def test_prune_keeps_the_last_few_and_the_best(folder):
    for epoch in range(1, 8):
        save_checkpoint(folder, make_checkpoint(epoch))
    mark_best(folder, 2, 1.0)
    prune(folder, keep_last=3)
    assert saved_epochs(folder) == [2, 5, 6, 7]


def test_temporary_folders_of_a_killed_process_are_ignored_and_removed(folder):
    save_checkpoint(folder, make_checkpoint(1))
    (folder.checkpoints / ".000002.99").mkdir()
    (folder.checkpoints / ".000002.99" / "learner.safetensors").write_bytes(b"half")
    assert saved_epochs(folder) == [1]
    remove_leftovers(folder)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["000001"]


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": lambda path: flip_bit(path / "learner.safetensors"),
    "a truncated file": lambda path: os.truncate(path / "learner.safetensors", 10),
    "a missing file": lambda path: (path / "learner.safetensors").unlink(),
    "a broken manifest": lambda path: (path / "manifest.json").write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_rejected_with_advice(folder, damage):
    path = save_checkpoint(folder, make_checkpoint(4))
    damage(path)
    with pytest.raises(CheckpointError, match=r"damaged or missing\. Delete .*000004 to resume"):
        load_checkpoint(folder)


@pytest.mark.parametrize("text", ["[]", '{"format": 99}', '{"weights": 1}'])
def test_a_manifest_of_another_format_is_rejected(folder, text):
    path = save_checkpoint(folder, make_checkpoint(4))
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a checkpoint of this version"):
        load_checkpoint(folder)


def test_a_damaged_best_file_is_reported_and_checkpoints_still_load(folder):
    save_checkpoint(folder, make_checkpoint(1))
    folder.best_file.write_text("{")
    with pytest.raises(CheckpointError, match=r"best\.json is damaged; delete it"):
        load_checkpoint(folder, "best")
    assert load_checkpoint(folder, "last").epoch == 1


def test_an_incomplete_manifest_is_rejected(folder):
    path = save_checkpoint(folder, make_checkpoint(4))
    (path / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder)


def test_checkpoints_are_never_unpickled(folder):
    """A pickle in place of the arrays is rejected before any of its code runs."""
    import hashlib
    import pickle

    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(folder.path / "executed"),))

    path = save_checkpoint(folder, make_checkpoint(4))
    data = pickle.dumps(Payload())
    (path / "learner.safetensors").write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["checksums"]["learner"] = hashlib.sha256(data).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder)
    assert not (folder.path / "executed").exists()


def test_a_full_disk_keeps_the_saved_checkpoints(folder):
    """A file size limit of 20 kB stands in for a full disk; the older checkpoint stays."""
    save_checkpoint(folder, make_checkpoint(1))
    large = make_checkpoint(2)
    large.parts["learner"]["numbers"] = np.zeros(100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot save epoch 2 .*Saved checkpoints: 1\."):
            save_checkpoint(folder, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous_handler)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["000001"]
    assert load_checkpoint(folder).epoch == 1


@pytest.mark.process
def test_a_disk_that_fills_during_training_stops_the_run_and_it_can_be_resumed(tmp_path):
    code = f"""
import sys
from hundredfold.cli.main import main
from hundredfold.training import run as run_module
record = run_module.Run.record
def record_on_full_disk(self, *args):
    if self.counters.epoch == 3: self.metrics.file = open("/dev/full", "wb", buffering=0)
    record(self, *args)
run_module.Run.record = record_on_full_disk
sys.exit(main(["train", "corridor", "--epochs", "6", "--num-envs", "4", "--num-steps", "8",
    "--save-interval", "1", "--eval-interval", "0", "--save-dir", {str(tmp_path)!r},
    "--name", "full"]))
"""
    done = run_python(code, expect=1)
    assert "No space left on device" in done.stderr
    assert "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert saved_epochs(RunFolder.open(tmp_path / "full")) == [1, 2, 3]
    assert hundredfold.train(resume=tmp_path / "full").finished


@pytest.mark.process
def test_a_save_dir_that_is_not_writable_is_reported(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = run_python(
        "import sys; from hundredfold.cli.main import main; sys.exit(main(['train', 'corridor', "
        f"'--epochs', '1', '--save-dir', {str(tmp_path / 'file')!r}]))",
        expect=2,
    )
    assert "cannot write a run folder" in done.stderr
    assert "--save-dir" in done.stderr
