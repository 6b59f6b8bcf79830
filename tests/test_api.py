"""The Python API: train, load, act, evaluate."""

import gymnasium
import numpy as np
import pytest
import torch

import hundredfold
from hundredfold.core.errors import CheckpointError, SettingsError, ShapeError

QUICK = {"num_envs": 4, "num_steps": 16, "epochs": 2}


@pytest.fixture(scope="module")
def corridor_run(tmp_path_factory):
    return hundredfold.train("corridor", save_dir=tmp_path_factory.mktemp("runs"), steps=20_000)


def test_a_loaded_policy_acts_on_one_observation_and_on_batches(corridor_run):
    policy = hundredfold.load(corridor_run.path)
    mask = [True, True, True]
    assert policy.act({"cell": [3]}, mask) == 1
    assert isinstance(policy.act({"cell": [3]}, mask), int)
    cells = np.arange(6)[:, None]
    assert policy.act({"cell": cells}, np.ones((6, 3), bool)).tolist() == [1] * 6
    assert policy.act([2], mask) == 1


def test_a_loaded_policy_never_takes_a_forbidden_action(corridor_run):
    policy = hundredfold.load(corridor_run.path)
    for deterministic in (True, False):
        for _ in range(20):
            assert policy.act([3], [True, False, False], deterministic=deterministic) == 0


def test_act_without_a_mask_on_a_masked_env_warns(corridor_run):
    policy = hundredfold.load(corridor_run.path)
    with pytest.warns(UserWarning, match="has masks, but act"):
        policy.act([3])


def test_invalid_observations_and_masks_are_rejected(corridor_run):
    policy = hundredfold.load(corridor_run.path)
    with pytest.raises(ShapeError, match=r"'cell' has shape \(2, 2\); expected \(1,\)"):
        policy.act([[1, 2], [3, 4]])
    with pytest.raises(ShapeError, match=r"lacks 'cell'"):
        policy.act({"position": [1]})
    with pytest.raises(ShapeError, match=r"expected 3 bools"):
        policy.act([1], [True, False])


def test_a_trained_run_has_metrics_and_a_policy(corridor_run):
    assert corridor_run.finished
    assert corridor_run.metrics[-1]["total_steps"] >= 20_000
    assert corridor_run.policy("last").epoch == corridor_run.metrics[-1]["epoch"]


def test_an_exported_policy_folder_is_small_and_gives_the_same_actions(corridor_run, tmp_path):
    path = hundredfold.export_policy_folder(corridor_run.path, tmp_path / "policy")
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert size < 40_000
    cells = {"cell": np.arange(6)[:, None]}
    mask = np.ones((6, 3), bool)
    expected = hundredfold.load(corridor_run.path).act(cells, mask)
    assert hundredfold.load(path).act(cells, mask).tolist() == expected.tolist()


def test_evaluation_of_a_solved_corridor_is_exact_and_equal_on_both_backends(corridor_run):
    evaluation = hundredfold.evaluate(corridor_run.path, episodes=60)
    repeated = hundredfold.evaluate(corridor_run.path, episodes=60, backend="serial")
    assert evaluation.returns.tolist() == repeated.returns.tolist()
    assert np.allclose(evaluation.returns, 1 - 0.1 * evaluation.lengths)
    assert evaluation.info["reached_exit"].all()
    assert set(np.round(evaluation.returns, 6)) <= {0.4, 0.5, 0.6}


def test_the_random_baseline_is_evaluated_without_a_run_and_scores_lower(corridor_run):
    trained = hundredfold.evaluate(corridor_run.path, episodes=60).summary()
    random = hundredfold.evaluate("corridor", policy="random", episodes=60).summary()
    assert random["ci_high"] < trained["ci_low"]


def test_evaluation_does_not_change_training(tmp_path):
    settings = {"num_envs": 4, "num_steps": 16, "epochs": 4, "save_dir": tmp_path}
    evaluated = hundredfold.train("corridor", name="evaluated", eval_interval=1, **settings)
    not_evaluated = hundredfold.train("corridor", name="not_evaluated", eval_interval=0, **settings)
    for one, other in zip(evaluated.metrics, not_evaluated.metrics, strict=True):
        assert one["policy_loss"] == other["policy_loss"]
        assert one["total_episodes"] == other["total_episodes"]


@pytest.mark.process
def test_train_accepts_a_function_that_makes_an_env(tmp_path):
    def make_env():
        return gymnasium.make("CartPole-v1")

    run = hundredfold.train(make_env, save_dir=tmp_path, name="mine", **QUICK)
    assert hundredfold.load(run.path).act(np.zeros(4, np.float32)) in (0, 1)
    evaluation = hundredfold.evaluate(run.path, episodes=3, make_env=make_env)
    assert len(evaluation.returns) == 3
    with pytest.raises(SettingsError, match=r"trained on a Python function .*make_env"):
        hundredfold.evaluate(run.path, episodes=3)
    assert hundredfold.train(make_env, resume=run.path).finished


@pytest.mark.parametrize("seed_episodes", [True, False])
def test_seed_episodes_decides_whether_every_episode_is_seeded(tmp_path, seed_episodes):
    seeds = []

    class RecordSeeds(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    def make_env():
        return RecordSeeds(gymnasium.make("CartPole-v1"))

    settings = QUICK | {"backend": "in_process", "seed_episodes": seed_episodes}
    hundredfold.train(make_env, save_dir=tmp_path, **settings)
    assert (None in seeds) is not seed_episodes
    assert any(seeds)


def test_train_without_an_env_or_run_is_rejected():
    with pytest.raises(SettingsError, match="needs an env, or resume"):
        hundredfold.train()


def test_load_of_a_folder_that_is_not_a_run_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match=r"not a run folder: it has no settings\.toml"):
        hundredfold.load(tmp_path)


def test_device_cuda_falls_back_to_the_cpu_with_a_warning(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.warns(UserWarning, match="no CUDA device"):
        hundredfold.train("corridor", save_dir=tmp_path, device="cuda", **QUICK)


def test_the_shift_penalty_is_chosen_when_a_policy_is_evaluated(corridor_run, tmp_path, monkeypatch):
    settings = {"preset": "default", "num_customers": 5, "num_envs": 8, "epochs": 2, "eval_interval": 0}
    run = hundredfold.train("dvrp", save_dir=tmp_path, name="offers", report=False, **settings)
    # Evaluation estimates no costs of offers.
    monkeypatch.setattr("hundredfold.envs.dvrp.sampled_futures.SampledFutures.final_costs", None)
    shifts = {
        penalty: hundredfold.evaluate(run.path, episodes=8, shift_penalty=penalty).info["shift_minutes_total"].mean()
        for penalty in (None, 0.0, 10.0)
    }
    assert shifts[10.0] == 0.0 < shifts[None] <= shifts[0.0]
    with pytest.raises(SettingsError, match=r"shift_penalty=0.1 changes nothing .* corridor"):
        hundredfold.evaluate(corridor_run.path, shift_penalty=0.1)
    with pytest.raises(SettingsError, match="policy random does not read it"):
        hundredfold.evaluate("dvrp", policy="random", shift_penalty=0.1)
