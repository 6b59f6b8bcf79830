"""Unmodified Stable-Baselines3 on built-in envs, through their Gymnasium ids."""

import gymnasium
import numpy as np
import pytest

import hundredfold  # registers the ids

stable_baselines3 = pytest.importorskip("stable_baselines3", reason="the extra [sb3] is missing")


def test_sb3_ppo_learns_cartpole():
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env("hundredfold/CartPole-v0", n_envs=8, seed=0)
    options = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 1e-3}
    model = PPO("MlpPolicy", envs, **options, seed=0, device="cpu")
    model.learn(8 * 128)
    before = np.mean([info["r"] for info in model.ep_info_buffer])
    model.learn(4 * 8 * 128, reset_num_timesteps=False)
    after = np.mean([info["r"] for info in list(model.ep_info_buffer)[-20:]])
    assert model.num_timesteps == 5 * 8 * 128
    assert after > 1.5 * before


def test_maskable_ppo_uses_the_action_masks():
    contrib = pytest.importorskip("sb3_contrib", reason="the extra [sb3] is missing")
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env("hundredfold/Corridor-v0", n_envs=4, seed=0)
    model = contrib.MaskablePPO("MultiInputPolicy", envs, n_steps=32, batch_size=64, seed=0)
    model.learn(2 * 4 * 32)
    assert model.num_timesteps == 256


def test_importing_hundredfold_registers_the_ids():
    assert hundredfold.__version__
    assert "hundredfold/CartPole-v0" in gymnasium.registry
