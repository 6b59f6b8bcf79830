"""Training with a belief model: its parameters reach the envs, and resume is bit-exact."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.processes import run_forked
from helpers.training_runs import KILLED_RUN, assert_same_run, checkpoint_arrays
from hundredfold.api import belief_params
from hundredfold.core.errors import CheckpointError, SettingsError
from hundredfold.training.build import load_belief_model
from hundredfold.training.checkpoint import load_checkpoint, save_checkpoint
from hundredfold.training.run_folder import RunFolder

pytestmark = pytest.mark.process

SMALL = {
    "preset": "returns",
    "epochs": 6,
    "num_envs": 6,
    "num_customers": 5,
    "lns_iterations": 0,
    "oracle_threads": 1,
    "hidden_sizes": (16,),
    "eval_interval": 2,
    "eval_episodes": 4,
    "save_interval": 3,
    "acceptance_refit_interval": 30,
    "embedding_epochs": 2,
}


def train(tmp_path, name="run", **settings):
    return hundredfold.train("dvrp", save_dir=tmp_path, name=name, report=False, **{**SMALL, **settings})


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance_model": "bayes", "acceptance_refit": "inline", "mask_mode": "threshold"},
        {"acceptance_model": "bayes", "acceptance_refit": "background", "mask_mode": "soft"},
        {"acceptance_model": "embedding", "acceptance_refit": "background", "mask_mode": "sampled_type"},
    ],
    ids=lambda changes: "-".join(changes.values()),
)
def test_resume_after_sigkill_is_bit_exact_with_belief_masks(tmp_path, changes):
    whole = train(tmp_path, "whole", **changes)
    code = KILLED_RUN.format(env="dvrp", save_dir=str(tmp_path), settings={**SMALL, **changes}, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed", report=False)
    assert resumed.finished
    assert_same_run(whole.path, resumed.path)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_every_backend_gives_the_same_run(tmp_path, backend):
    in_process = train(tmp_path, "in_process", epochs=3, backend="in_process")
    other = train(tmp_path, "other", epochs=3, backend=backend)
    assert_same_run(in_process.path, other.path)


def test_epsilon_is_annealed_and_refits_follow_the_interval(tmp_path):
    metrics = train(tmp_path, acceptance_refit_interval=60).metrics
    assert [row["epsilon"] for row in metrics] == pytest.approx([0.2, 0.16, 0.12, 0.08, 0.04, 0.0])
    # 30 steps an epoch and a refit every 60: after the second, fourth and sixth epoch.
    assert [row["acceptance/refits"] for row in metrics] == [0, 1, 1, 2, 2, 3]
    assert all("acceptance/loss" in row for row in metrics[1::2])
    assert all(0 <= row["type_accuracy"] <= 1 for row in metrics[1::2])


@pytest.mark.parametrize("mode", ["threshold", "sampled_type", "soft", "privileged"])
def test_the_probability_ratio_starts_at_one_under_belief_masks(tmp_path, mode):
    metrics = train(tmp_path, mask_mode=mode, epsilon_start=0.5, epsilon_end=0.5).metrics
    assert max(row["first_ratio_error"] for row in metrics) < 1e-5


def test_belief_params_reach_the_envs(tmp_path):
    run = train(tmp_path)
    params = belief_params(run.path, "last")
    env = {
        name.removeprefix("env/beliefs/"): array
        for name, array in checkpoint_arrays(run.path).items()
        if name.startswith("env/beliefs/")
    }
    assert_array_equal(env["customers"][0, :, :4], params["type_probabilities"])
    assert_array_equal(env["customers"][-1, :, 4], params["response_counts"])
    assert_array_equal(env["accept_given_type"][3], params["accept_given_type"])
    assert params["response_counts"].sum() > 0
    assert np.abs(params["type_probabilities"] - params["type_probabilities"][0]).max() > 0.01
    assert params["epsilon"] == 0.0
    assert not params["sample_types"]


def test_a_run_without_a_belief_model_has_no_params(tmp_path):
    run = train(tmp_path, acceptance_model="none", mask_mode="none", acceptance_hint=False)
    assert belief_params(run.path) is None
    assert "epsilon" not in run.metrics[-1]


@pytest.mark.parametrize(
    ("preset", "named"),
    [
        ("default", "observation=offers, mask_mode=threshold"),
        ("returns", "acceptance_hint=True, mask_mode=threshold"),
        ("meta-train-64", "mask_mode=sampled_type"),
    ],
)
def test_inputs_of_an_acceptance_model_are_refused_without_one(tmp_path, preset, named):
    with pytest.raises(SettingsError, match=f"^{named} need an acceptance model"):
        hundredfold.train("dvrp", preset=preset, acceptance_model="none", save_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", ["meta-train-64", "meta-train-256"])
def test_meta_train_presets_train(tmp_path, preset):
    quick = {"num_value_epochs": 2, "num_policy_epochs": 1, "epochs": 2, "eval_interval": 1}
    run = hundredfold.train(
        "dvrp", save_dir=tmp_path, **{**SMALL, **quick, "preset": preset, "acceptance_refit_interval": 60}
    )
    assert run.finished
    assert (run.path / "report.html").exists()


def test_a_belief_model_of_another_version_is_named(tmp_path):
    folder = RunFolder.open(train(tmp_path, epochs=1).path)
    checkpoint = load_checkpoint(folder)
    checkpoint.epoch += 1
    del checkpoint.parts["belief_model"]["response_counts"]
    save_checkpoint(folder, checkpoint)
    with pytest.raises(CheckpointError, match=r"has no 'response_counts'.*another version"):
        load_belief_model(folder, "last")
