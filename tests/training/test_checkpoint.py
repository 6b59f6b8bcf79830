"""Checkpoints are whole or absent, and a damaged one is told from a sound one."""

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


def checkpoint(epoch):
    arrays = {
        "numbers": np.arange(6.0).reshape(2, 3) + epoch,
        "keys": np.array([2**63 + 1], np.uint64),
        "flags": np.array([True, False]),
        "count": np.array(epoch),
    }
    return Checkpoint(epoch, {"epoch": epoch, "wall_seconds": 1.5}, SPEC, {"learner": arrays})


def test_what_was_saved_comes_back_to_the_last_bit(folder):
    save_checkpoint(folder, checkpoint(3))
    found = load_checkpoint(folder)
    assert found.epoch == 3
    assert found.counters == {"epoch": 3, "wall_seconds": 1.5}
    assert found.spec.action_nvec == SPEC.action_nvec
    assert found.spec.observation["cell"].categories == (6,)
    for name, array in checkpoint(3).parts["learner"].items():
        assert found.parts["learner"][name].dtype == array.dtype
        assert found.parts["learner"][name].shape == array.shape
        assert_array_equal(found.parts["learner"][name], array)


def test_last_best_and_numbered_checkpoints_are_found(folder):
    for epoch in (1, 2, 3):
        save_checkpoint(folder, checkpoint(epoch))
    assert load_checkpoint(folder, "best").epoch == 3
    mark_best(folder, 2, 17.5)
    assert best_epoch(folder) == (2, 17.5)
    assert load_checkpoint(folder, "best").epoch == 2
    assert load_checkpoint(folder, "1").epoch == 1
    with pytest.raises(
        CheckpointError, match=r"no checkpoint '7'; it has last, best and \[1, 2, 3"
    ):
        load_checkpoint(folder, "7")


def test_the_last_few_and_the_best_are_kept(folder):
    for epoch in range(1, 8):
        save_checkpoint(folder, checkpoint(epoch))
    mark_best(folder, 2, 1.0)
    prune(folder, keep_last=3)
    assert saved_epochs(folder) == [2, 5, 6, 7]


def test_leftovers_of_a_killed_process_are_not_checkpoints(folder):
    save_checkpoint(folder, checkpoint(1))
    (folder.checkpoints / ".000002.99").mkdir()
    (folder.checkpoints / ".000002.99" / "learner.safetensors").write_bytes(b"half")
    assert saved_epochs(folder) == [1]
    remove_leftovers(folder)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["000001"]


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": lambda path: flip_a_byte(path / "learner.safetensors"),
    "a cut-off file": lambda path: os.truncate(path / "learner.safetensors", 10),
    "a missing file": lambda path: (path / "learner.safetensors").unlink(),
    "a broken manifest": lambda path: (path / "manifest.json").write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_refused_with_advice(folder, damage):
    path = save_checkpoint(folder, checkpoint(4))
    damage(path)
    with pytest.raises(CheckpointError, match=r"damaged or missing\. Delete .*000004 to resume"):
        load_checkpoint(folder)


@pytest.mark.parametrize("text", ["[]", '{"format": 99}', '{"weights": 1}'])
def test_a_foreign_manifest_is_refused(folder, text):
    path = save_checkpoint(folder, checkpoint(4))
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a checkpoint of this version"):
        load_checkpoint(folder)


def test_a_damaged_best_file_is_named_and_no_checkpoint_is_in_danger(folder):
    save_checkpoint(folder, checkpoint(1))
    folder.best_file.write_text("{")
    with pytest.raises(CheckpointError, match=r"best\.json is damaged; delete it"):
        load_checkpoint(folder, "best")
    assert load_checkpoint(folder, "last").epoch == 1


def test_a_manifest_that_lacks_everything_is_damaged(folder):
    path = save_checkpoint(folder, checkpoint(4))
    (path / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder)


def test_nothing_is_ever_unpickled(folder):
    """A pickle in place of the arrays is refused before any of its code could run."""
    import hashlib
    import pickle

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(folder.path / "sprung"),))

    path = save_checkpoint(folder, checkpoint(4))
    data = pickle.dumps(Trap())
    (path / "learner.safetensors").write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["checksums"]["learner"] = hashlib.sha256(data).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder)
    assert not (folder.path / "sprung").exists()


def test_a_full_disk_loses_nothing_that_was_saved(folder):
    """The kernel refuses files over 20 kB, as a full disk would; the older checkpoint stays."""
    save_checkpoint(folder, checkpoint(1))
    big = checkpoint(2)
    big.parts["learner"]["numbers"] = np.zeros(100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot save epoch 2 .*Saved checkpoints: 1\."):
            save_checkpoint(folder, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["000001"]
    assert load_checkpoint(folder).epoch == 1


def test_a_disk_that_fills_up_while_training_ends_the_run_with_what_was_saved(tmp_path):
    code = f"""
import sys
from hundredfold.cli.main import main
from hundredfold.training import run as books
record = books.Run.record
def on_a_full_disk(self, *args):
    if self.counters.epoch == 3: self.metrics.file = open("/dev/full", "wb", buffering=0)
    record(self, *args)
books.Run.record = on_a_full_disk
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


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = run_python(
        "import sys; from hundredfold.cli.main import main; sys.exit(main(['train', 'corridor', "
        f"'--epochs', '1', '--save-dir', {str(tmp_path / 'file')!r}]))",
        expect=2,
    )
    assert "cannot write a run folder" in done.stderr
    assert "--save-dir" in done.stderr
