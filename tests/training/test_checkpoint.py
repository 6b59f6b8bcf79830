"""Checkpoints are written atomically, and damaged ones are detected."""

import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.processes import run_forked
from hundredfold.core.batch import ActionInputs, ArraySpec, EnvSpec
from hundredfold.core.errors import CheckpointError
from hundredfold.core.files import read_sealed_json, sealed_json
from hundredfold.envs.corridor import Corridor
from hundredfold.training import checkpoint as checkpoint_module
from hundredfold.training.checkpoint import (
    Checkpoint,
    best_epoch,
    load_checkpoint,
    load_last_whole,
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


SPECS = {
    "discrete": SPEC,
    "described actions": EnvSpec(
        name="described",
        observation={"features": ArraySpec((3, 2), "float32"), "bias": ArraySpec((3,), "float32")},
        action_nvec=(3,),
        has_mask=True,
        episode_steps=7,
        logit_bias="bias",
        action_inputs=ActionInputs("features", "context", "probability", "penalty", 1),
    ),
    "continuous": EnvSpec(
        name="box",
        observation={"observation": ArraySpec((2,), "float64")},
        continuous_action=ArraySpec((2,), "float32", (-1.5, float("-inf")), (2.0, float("inf"))),
    ),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_spec_is_read_as_it_was_saved(folder, spec):
    save_checkpoint(folder, replace(make_checkpoint(1), spec=spec))
    loaded = load_checkpoint(folder).spec
    names = ("name", "action_nvec", "has_mask", "episode_steps", "logit_bias", "action_inputs", "continuous_action")
    assert [getattr(loaded, name) for name in names] == [getattr(spec, name) for name in names]
    shapes = {name: (array.shape, array.dtype, array.categories) for name, array in loaded.observation.items()}
    assert shapes == {name: (array.shape, array.dtype, array.categories) for name, array in spec.observation.items()}


def test_only_the_parts_named_are_read(folder):
    parts = {name: {"number": np.array(index)} for index, name in enumerate(("learner", "collector", "env"))}
    path = save_checkpoint(folder, replace(make_checkpoint(1), parts=parts))
    (path / "env.safetensors").unlink()
    assert load_checkpoint(folder, parts={"learner", "collector"}).parts.keys() == {"learner", "collector"}
    with pytest.raises(CheckpointError, match=r"env\.safetensors"):
        load_checkpoint(folder)


def test_a_checkpoint_is_written_anew_over_an_old_one_and_over_leftovers(folder):
    save_checkpoint(folder, make_checkpoint(5))
    leftover = folder.checkpoints / f".000005.{os.getpid()}"
    leftover.mkdir()
    (leftover / "old.safetensors").write_bytes(b"half")
    newer = make_checkpoint(5)
    newer.parts = {"collector": newer.parts["learner"]}
    path = save_checkpoint(folder, newer)
    assert {file.name for file in path.iterdir()} == {"collector.safetensors", "manifest.json"}
    assert not leftover.exists()


def test_files_and_folders_are_synced_before_a_checkpoint_counts(folder, monkeypatch):
    """After a power cut the new name must not point to data that were never written."""
    synced, fsync, rename = [], os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(Path, "rename", lambda path, new: (synced.append("renamed"), rename(path, new))[1])
    path = save_checkpoint(folder, make_checkpoint(3))
    temporary = folder.checkpoints / f".000003.{os.getpid()}"
    files = [str(temporary / name) for name in ("learner.safetensors", "manifest.json")]
    assert synced == [*files, str(temporary), "renamed", str(path.parent)]


def test_no_more_is_read_of_a_part_than_was_saved(folder, monkeypatch):
    path = save_checkpoint(folder, make_checkpoint(3))
    limits = []
    monkeypatch.setattr(
        checkpoint_module, "read_bounded", lambda file, limit: (limits.append(limit), file.read_bytes())[1]
    )
    load_checkpoint(folder)
    assert limits == [(path / "learner.safetensors").stat().st_size]


def test_only_a_part_that_is_too_large_does_not_fit_into_memory(folder, monkeypatch):
    path = save_checkpoint(folder, make_checkpoint(3))
    monkeypatch.setattr(checkpoint_module, "available_memory", lambda: 100)
    with pytest.raises(CheckpointError, match=r"does not fit into memory: it has .* bytes; expected at most 100"):
        load_checkpoint(folder)
    (path / "learner.safetensors").unlink()
    with pytest.raises(CheckpointError, match="damaged or missing"):
        load_checkpoint(folder)


def test_the_format_has_a_number(folder):
    """It changes when older versions cannot read a checkpoint any more."""
    manifest = read_sealed_json(save_checkpoint(folder, make_checkpoint(1)) / "manifest.json")
    assert manifest["format"] == 2


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
    "a nested manifest": lambda path: (path / "manifest.json").write_text('{"a":' * 100_000),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "a manifest of a terabyte": lambda path: os.truncate(path / "manifest.json", 2**40),
    "a part of a terabyte": lambda path: os.truncate(path / "learner.safetensors", 2**40),
    "a linked part": lambda path: link_elsewhere(path / "learner.safetensors"),
    "a pipe": lambda path: replace_by_pipe(path / "learner.safetensors"),
}


def link_elsewhere(path):
    path.symlink_to(path.rename(path.parents[2] / "elsewhere"))


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_rejected_with_advice(folder, damage):
    path = save_checkpoint(folder, make_checkpoint(4))
    damage(path)
    with pytest.raises(CheckpointError, match=r"000004.* (is damaged or missing|cannot be read)"):
        load_checkpoint(folder)


def test_every_changed_bit_of_a_checkpoint_is_noticed(folder):
    """One bit in each byte of each file, and every bit of the manifest's seal."""
    path = save_checkpoint(folder, make_checkpoint(4))
    tried = 0
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        places = [8 * byte + byte % 8 for byte in range(len(data))]
        if file.name == "manifest.json":
            places += range(8 * data.rindex(b"sha256"), 8 * len(data))
        for place in places:
            changed = bytearray(data)
            changed[place // 8] ^= 1 << place % 8
            file.write_bytes(changed)
            with pytest.raises(CheckpointError):
                load_checkpoint(folder)
            tried += 1
        file.write_bytes(data)
    assert tried > 1500
    assert load_checkpoint(folder).epoch == 4


def test_every_changed_bit_of_the_best_file_is_noticed(folder):
    mark_best(folder, 40, 17.5)
    data = folder.best_file.read_bytes()
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        folder.best_file.write_bytes(changed)
        with pytest.raises(CheckpointError, match="damaged"):
            best_epoch(folder)


def reseal(path, change):
    """Change a manifest as somebody would who knows the format."""
    manifest = read_sealed_json(path / "manifest.json")
    change(manifest)
    (path / "manifest.json").write_text(sealed_json(manifest))


ABSURD = {
    "huge shape": lambda table: table["spec"]["observation"]["cell"].update(shape=[10**12, 10**12]),
    "wide shape": lambda table: table["spec"]["observation"]["cell"].update(shape=[2**16, 2**16]),
    "long empty shape": lambda table: table["spec"]["observation"]["cell"].update(shape=[0, 2**31 + 1]),
    "shape just too large": lambda table: table["spec"]["observation"]["cell"].update(shape=[2**31 + 1]),
    "many actions": lambda table: table["spec"].update(action_nvec=[10**15]),
    "negative shape": lambda table: table["spec"]["observation"]["cell"].update(shape=[-1]),
    "text in a shape": lambda table: table["spec"]["observation"]["cell"].update(shape=["1"]),
    "unknown dtype": lambda table: table["spec"]["observation"]["cell"].update(dtype="float9000"),
    "text as counter": lambda table: table["counters"].update(epoch="4"),
    "fraction as counter": lambda table: table["counters"].update(epoch=4.5),
    "true as counter": lambda table: table["counters"].update(epoch=True),
    "negative counter": lambda table: table["counters"].update(epoch=-1),
    "huge counter": lambda table: table["counters"].update(epoch=10**40),
    "negative seconds": lambda table: table["counters"].update(wall_seconds=-1.0),
    "list of counters": lambda table: table.update(counters=[1, 2]),
    "path as part": lambda table: table["checksums"].update({"../../secret": "0"}),
    "text as size": lambda table: table["sizes"].update(learner="many"),
    "no spec": lambda table: table.pop("spec"),
}


@pytest.mark.parametrize("change", ABSURD.values(), ids=ABSURD)
def test_absurd_values_with_a_valid_checksum_are_rejected(folder, change):
    path = save_checkpoint(folder, make_checkpoint(4))
    reseal(path, change)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder)


def test_the_first_format_is_still_read(folder):
    """Checkpoints that were written before manifests had a checksum of their own."""
    path = save_checkpoint(folder, make_checkpoint(4))
    manifest = read_sealed_json(path / "manifest.json")
    del manifest["sizes"], manifest["metrics"]
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 1}, indent=2))
    folder.best_file.write_text('{"epoch": 4, "score": 1.5}\n')
    assert load_checkpoint(folder, "best").epoch == 4


def test_the_newest_whole_checkpoint_is_found_and_damaged_ones_are_moved_aside(folder):
    for epoch in (1, 2, 3, 4):
        save_checkpoint(folder, make_checkpoint(epoch))
    flip_bit(folder.checkpoints / "000003" / "learner.safetensors")
    flip_bit(folder.checkpoints / "000004" / "manifest.json")
    checkpoint, problems = load_last_whole(folder)
    assert checkpoint.epoch == 2
    assert [text.split(" is damaged")[0] for text in problems] == [
        "the checkpoint of epoch 4",
        "the checkpoint of epoch 3",
    ]
    assert saved_epochs(folder) == [1, 2]
    assert (folder.checkpoints / "000004.damaged").is_dir()


def test_without_a_whole_checkpoint_nothing_is_moved(folder):
    save_checkpoint(folder, make_checkpoint(1))
    flip_bit(folder.checkpoints / "000001" / "manifest.json")
    with pytest.raises(CheckpointError, match="no checkpoint that can be read"):
        load_last_whole(folder)
    assert saved_epochs(folder) == [1]


def test_linked_checkpoints_are_neither_read_nor_deleted(tmp_path):
    elsewhere = tmp_path / "home"
    (elsewhere / "000001").mkdir(parents=True)
    (elsewhere / ".profile").write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    folder = RunFolder(run)
    for use in (saved_epochs, remove_leftovers, load_checkpoint, RunFolder.claim):
        with pytest.raises(CheckpointError, match="symbolic link"):
            use(folder)
    assert (elsewhere / ".profile").exists()


@pytest.mark.parametrize("text", ['{"format": 99}', '{"format": "2.0"}'])
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
    reseal(
        path,
        lambda table: table.update(
            checksums={"learner": hashlib.sha256(data).hexdigest()}, sizes={"learner": len(data)}
        ),
    )
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
        assert [path.name for path in folder.checkpoints.iterdir()] == ["000001"]
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
    done = run_forked(code, expect=1)
    assert "No space left on device" in done.stderr
    assert "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert saved_epochs(RunFolder.open(tmp_path / "full")) == [1, 2, 3]
    assert hundredfold.train(resume=tmp_path / "full").finished


@pytest.mark.process
def test_a_save_dir_that_is_not_writable_is_reported(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = run_forked(
        "import sys; from hundredfold.cli.main import main; sys.exit(main(['train', 'corridor', "
        f"'--epochs', '1', '--save-dir', {str(tmp_path / 'file')!r}]))",
        expect=2,
    )
    assert "cannot write a run folder" in done.stderr
    assert "--save-dir" in done.stderr
