"""Training speed: our PPO beside Stable-Baselines3's, with the same hyperparameters.

Both do the same number of steps, minibatches and passes with networks of the same size on one
torch thread. Stable-Baselines3 always runs Gymnasium's CartPole-v1, one env after another in this
process (its fastest way for so small an env); ours runs the batch world, or the same Gymnasium env
through the adapter. What is measured is whole training: collecting and learning.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from typing import Any

import torch

from hundredfold.bench.measure import OURS, rate_rows, rates_in_turns
from hundredfold.experience.rollout import RolloutSettings
from hundredfold.learners.networks import ACTIVATIONS, Activation, NetworkSettings
from hundredfold.learners.ppo import PPOSettings
from hundredfold.settings.run import LengthSettings, MachineSettings, RunSettings
from hundredfold.training.build import build
from hundredfold.worlds import settings_class

# (our world, number of envs): the batch world at full width, the adapter at a usual size.
CASES = (("cartpole", 256), ("CartPole-v1", 64))

NUM_STEPS = 128
UPDATES_PER_REPEAT = 3
PPO_SETTINGS = PPOSettings(
    learning_rate=3e-4,
    anneal_learning_rate=False,
    update_epochs=4,
    num_minibatches=4,
    entropy_coefficient=0.0,
)


def bench_train(
    repeats: int = 5, activation: Activation = "relu", tick: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Steps per second of whole training; a row per system and case."""
    network = NetworkSettings(hidden=(64, 64), activation=activation)
    return [
        row
        for world, num_envs in CASES
        for row in _case_rows(world, num_envs, network, repeats, tick)
    ]


def _case_rows(
    world: str,
    num_envs: int,
    network: NetworkSettings,
    repeats: int,
    tick: Callable[[str], None],
) -> list[dict[str, Any]]:
    contestants = {OURS: _ours(world, num_envs, network)}
    if util.find_spec("stable_baselines3") is not None:
        contestants["stable-baselines3"] = _stable_baselines(num_envs, network)
    rates = rates_in_turns(
        contestants, repeats, lambda name: tick(f"{world}, {num_envs} envs: {name}")
    )
    rows = rate_rows(rates, num_envs=num_envs, threads=1, activation=network.activation)
    return [{"env": world if row["system"] == OURS else "CartPole-v1", **row} for row in rows]


def _ours(world: str, num_envs: int, network: NetworkSettings) -> Callable[[], int]:
    """Train a few updates; returns the number of steps."""
    settings = RunSettings(
        world=world,
        length=LengthSettings(epochs=1_000_000),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=NUM_STEPS),
        ppo=PPO_SETTINGS,
        network=network,
        machine=MachineSettings(device="cpu", threads=1),
        world_settings=settings_class(world)(),
    )
    parts = build(settings)
    parts.collector.start(settings.seed)

    def play() -> int:
        torch.set_num_threads(1)
        for _ in range(UPDATES_PER_REPEAT):
            parts.collector.collect(parts.learner.policy, parts.learner.experience, NUM_STEPS)
            parts.learner.update()
        return UPDATES_PER_REPEAT * settings.rollout.samples_per_epoch

    return play


def _stable_baselines(num_envs: int, network: NetworkSettings) -> Callable[[], int]:
    """The same for Stable-Baselines3; no Monitor around the envs, which spares it some time."""
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    samples = num_envs * NUM_STEPS
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(num_envs)]),
        n_steps=NUM_STEPS,
        batch_size=samples // PPO_SETTINGS.num_minibatches,
        n_epochs=PPO_SETTINGS.update_epochs,
        learning_rate=PPO_SETTINGS.learning_rate,
        clip_range=PPO_SETTINGS.clip,
        gamma=PPO_SETTINGS.gamma,
        gae_lambda=PPO_SETTINGS.gae_lambda,
        ent_coef=PPO_SETTINGS.entropy_coefficient,
        vf_coef=PPO_SETTINGS.value_coefficient,
        max_grad_norm=PPO_SETTINGS.max_gradient_norm,
        policy_kwargs={
            "net_arch": list(network.hidden),
            "activation_fn": ACTIVATIONS[network.activation],
        },
        device="cpu",
        seed=0,
    )

    def play() -> int:
        torch.set_num_threads(1)
        model.learn(UPDATES_PER_REPEAT * samples, reset_num_timesteps=False)
        return UPDATES_PER_REPEAT * samples

    return play
