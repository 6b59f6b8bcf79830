"""Metrics: metrics.jsonl, TensorBoard and Weights & Biases."""

import json
import math

import pytest

import hundredfold
from helpers.processes import run_forked
from helpers.training_runs import run_python
from hundredfold.config.presets import preset_settings
from hundredfold.core.errors import CheckpointError
from hundredfold.training.metrics import MetricsLog, drop_after, read_metrics
from hundredfold.training.run_folder import RunFolder

QUICK = {"num_envs": 4, "num_steps": 16, "epochs": 3, "eval_interval": 2}


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_non_finite_metrics_are_written_as_null(folder):
    log = MetricsLog(folder, preset_settings("corridor"))
    log.write({"epoch": 1, "total_steps": 10, "loss": math.nan, "bound": math.inf, "fine": 0.5})
    log.close()
    (row,) = read_metrics(folder)
    assert row == {"epoch": 1, "total_steps": 10, "loss": None, "bound": None, "fine": 0.5}


def test_an_incomplete_last_line_is_ignored_and_an_invalid_line_is_reported(folder):
    folder.metrics_file.write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    assert [row["epoch"] for row in read_metrics(folder)] == [1, 2]
    drop_after(folder, 1)
    assert folder.metrics_file.read_text() == '{"epoch": 1}\n'
    folder.metrics_file.write_text('{"epoch": 1}\nnonsense\n{"epoch": 3}\n')
    with pytest.raises(CheckpointError, match="line 2 of"):
        read_metrics(folder)


DAMAGED_LINES = {
    "a list": "[1, 2]",
    "no epoch": '{"total_steps": 4}',
    "text as epoch": '{"epoch": "2"}',
    "a list as value": '{"epoch": 2, "loss": [1]}',
    "a huge integer": '{"epoch": 2, "loss": 1' + "0" * 400 + "}",
    "nested": '{"epoch": 2, "loss": ' + "[" * 100_000,
    "no UTF-8": b"\xff\xfe".decode("latin-1"),
}


@pytest.mark.parametrize("line", DAMAGED_LINES.values(), ids=DAMAGED_LINES)
def test_a_damaged_line_is_named(folder, line):
    folder.metrics_file.write_bytes(b'{"epoch": 1}\n' + line.encode("latin-1") + b'\n{"epoch": 3}\n')
    with pytest.raises(CheckpointError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        read_metrics(folder)


def test_every_changed_bit_of_the_metrics_is_noticed_when_a_run_is_resumed(folder):
    log = MetricsLog(folder, preset_settings("corridor"))
    for epoch in (1, 2):
        log.write({"epoch": epoch, "total_steps": 64 * epoch, "loss": 0.25})
    seal = log.seal()
    log.write({"epoch": 3, "total_steps": 192, "loss": 0.5})  # after the checkpoint
    log.close()
    data = folder.metrics_file.read_bytes()
    for place in range(8 * seal.size):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        folder.metrics_file.write_bytes(changed)
        with pytest.raises(CheckpointError, match="damaged"):
            drop_after(folder, 2, seal)
    folder.metrics_file.write_bytes(data)
    drop_after(folder, 2, seal)
    assert MetricsLog(folder, preset_settings("corridor")).seal() == seal


def test_metrics_are_not_appended_to_a_linked_file(folder, tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    folder.metrics_file.symlink_to(target)
    with pytest.raises(CheckpointError, match="symbolic link"):
        MetricsLog(folder, preset_settings("corridor"))
    assert target.read_text() == "precious"


def test_a_run_writes_the_documented_metrics(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, **QUICK)
    always = {"epoch", "total_steps", "total_episodes", "policy_loss", "value_loss", "entropy"}
    always |= {"approx_kl", "clip_fraction", "explained_variance", "samples_per_second"}
    always |= {"wall_seconds", "time/collect", "time/update"}
    for row in run.metrics:
        assert always <= row.keys()
    evaluated_epochs = [row["epoch"] for row in run.metrics if "eval/return_mean" in row]
    assert evaluated_epochs == [2, 3]
    assert [row["total_steps"] for row in run.metrics] == [64, 128, 192]


def test_tensorboard_gets_the_same_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = hundredfold.train("corridor", save_dir=tmp_path, **QUICK)
    events = EventAccumulator(str(run.path)).Reload()
    logged = [(event.step, event.value) for event in events.Scalars("policy_loss")]
    expected = [(row["total_steps"], row["policy_loss"]) for row in run.metrics]
    assert [step for step, _ in logged] == [step for step, _ in expected]
    assert [value for _, value in logged] == pytest.approx([value for _, value in expected])


def test_resume_removes_tensorboard_events_after_the_checkpoint(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard.writer import SummaryWriter

    run = hundredfold.train("corridor", save_dir=tmp_path, save_interval=1, **QUICK)
    stale = SummaryWriter(str(run.path))
    stale.add_scalar("policy_loss", 99.0, 500)
    stale.close()
    hundredfold.train(resume=run.path, epochs=4)
    events = EventAccumulator(str(run.path)).Reload()
    assert 99.0 not in [event.value for event in events.Scalars("policy_loss")]


@pytest.mark.process
def test_wandb_writes_to_the_run_folder_when_offline(tmp_path):
    pytest.importorskip("wandb", reason="the extra [wandb] is missing")
    code = f"""
import hundredfold
hundredfold.train("corridor", save_dir={str(tmp_path)!r}, name="tracked", wandb=True, video_interval=2, **{QUICK!r})
"""
    run_python(code, expect=0, env={"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    files = list((tmp_path / "tracked" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1
    assert files[0].stat().st_size > 0
    # A video at the interval and one at the end.
    assert len(list(files[0].parent.glob("files/media/videos/*.mp4"))) == 2


@pytest.mark.process
def test_wandb_without_the_extra_prints_how_to_install_it(tmp_path):
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "wandb" else find(name, *rest)
from hundredfold.cli.main import main
sys.exit(main(["train", "corridor", "--wandb", "--save-dir", {str(tmp_path)!r}]))
"""
    done = run_forked(code, expect=1)
    assert "pip install 'hundredfold[wandb]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_package_versions_are_recorded(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, **QUICK)
    versions = json.loads((run.path / "versions.json").read_text())
    assert {"python", "hundredfold", "numpy", "torch", "gymnasium"} <= versions.keys()
