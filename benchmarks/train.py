"""Training speed of PPO, DQN and PQN compared with Stable-Baselines3, with the same hyperparameters.

Both take the same number of env steps and of gradient steps, on batches and networks of the same
size, with one torch thread. Stable-Baselines3 steps Gymnasium's CartPole-v1 serially in this
process (its fastest way for so cheap an env); hundredfold steps its batch env, or the same
Gymnasium env. Whole training is measured: collecting and learning. PQN, which Stable-Baselines3
does not have, is compared with the DQN of both, each with its own number of gradient steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from benchmarks.measure import interleaved_rates, rate_row, ratio_rows
from hundredfold.algorithms.actor_critic import ACTIVATIONS, Activation, NetworkSettings
from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.config.presets import PQN_STEPS, preset_settings
from hundredfold.config.run import Algorithm, LengthSettings, MachineSettings, RunSettings
from hundredfold.core.errors import is_installed
from hundredfold.envs.registry import settings_class
from hundredfold.profiling.scaling import HUNDREDFOLD
from hundredfold.rollout.rollout_buffer import RolloutSettings
from hundredfold.training.build import build

# (env of hundredfold, number of envs): the batch env and the Gymnasium env, at usual sizes.
CASES: Final[dict[Algorithm, tuple[tuple[str, int], ...]]] = {
    "ppo": (("cartpole", 256), ("CartPole-v1", 64)),
    "dqn": (("cartpole", 64), ("CartPole-v1", 8)),
    "pqn": (("cartpole", 64), ("CartPole-v1", 32)),
}

HIDDEN: Final[dict[Algorithm, tuple[int, ...]]] = {"ppo": (64, 64), "dqn": (128, 128), "pqn": (128, 128)}
# Steps per env in one measurement of PPO.
NUM_STEPS: Final = 128
UPDATES_PER_REPEAT: Final = 3
# Samples in one measurement. DQN takes a gradient step for every other sample: fewer do.
DQN_SAMPLES: Final = 2_048
PQN_SAMPLES: Final = 32_768
DQN_SYSTEM: Final = "hundredfold, DQN"
PPO_SETTINGS = PPOSettings(
    learning_rate=3e-4, anneal_learning_rate=False, update_epochs=4, num_minibatches=4, entropy_coefficient=0.0
)
# One-step returns without double Q-learning, as in the DQN of Stable-Baselines3.
DQN_SETTINGS = DQNSettings(n_step=1, double_q=False)


def bench_train(
    repeats: int = 5,
    activation: Activation = "relu",
    algo: Algorithm = "ppo",
    on_progress: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Steps per second of whole training; a row per library and case."""
    network = NetworkSettings(hidden_sizes=HIDDEN[algo], activation=activation)
    return [
        row for env, num_envs in CASES[algo] for row in _case_rows(env, num_envs, algo, network, repeats, on_progress)
    ]


def bench_threads(repeats: int = 5, on_progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Steps per second of training cage2 with its preset, with one torch thread and one per core; a row each.

    One training goes on with both numbers in turn, an epoch at a time.
    """
    counts = sorted({1, os.cpu_count() or 1})
    settings = replace(preset_settings("cage2"), machine=MachineSettings(device="cpu", threads=1))
    components = build(settings)
    components.collector.start(settings.seed)

    def epoch(threads: int) -> int:
        torch.set_num_threads(threads)
        components.collector.collect(components.learner.policy, components.learner.buffer, settings.rollout.num_steps)
        components.learner.update()
        return settings.rollout.samples_per_epoch

    rates = interleaved_rates({str(count): partial(epoch, count) for count in counts}, repeats, on_progress)
    one = rates["1"].median
    common = {"env": "cage2", "algo": "ppo", "num_envs": settings.rollout.num_envs}
    return [
        rate_row(HUNDREDFOLD, rates[str(count)], threads=count, **common)
        | {"ratio_to_one_thread": rates[str(count)].median / one}
        for count in counts
    ]


def _case_rows(
    env: str, num_envs: int, algo: Algorithm, network: NetworkSettings, repeats: int, on_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    subjects = {HUNDREDFOLD: _hundredfold(env, num_envs, algo, network)}
    if algo == "pqn":
        subjects[DQN_SYSTEM] = _hundredfold(env, num_envs, "dqn", network)
    if is_installed("stable_baselines3"):
        make = _stable_baselines_ppo if algo == "ppo" else _stable_baselines_dqn
        subjects["stable-baselines3" if algo != "pqn" else "stable-baselines3, DQN"] = make(num_envs, network)
    rates = interleaved_rates(subjects, repeats, lambda name: on_progress(f"{algo}, {env}, {num_envs} envs: {name}"))
    rows = ratio_rows(rates, algo=algo, num_envs=num_envs, threads=1, activation=network.activation)
    return [{"env": env if row["system"].startswith(HUNDREDFOLD) else "CartPole-v1", **row} for row in rows]


def _hundredfold(env: str, num_envs: int, algo: Algorithm, network: NetworkSettings) -> Callable[[], int]:
    """A function that trains for some updates and returns the number of env steps."""
    num_steps = {"ppo": NUM_STEPS, "dqn": DQN_SAMPLES // num_envs, "pqn": PQN_STEPS}[algo]
    updates = {"ppo": UPDATES_PER_REPEAT, "dqn": 1, "pqn": PQN_SAMPLES // (PQN_STEPS * num_envs)}[algo]
    if algo == "pqn":  # as its preset
        network = replace(network, normalise_observations=True)
    settings = RunSettings(
        env=env,
        algo=algo,
        length=LengthSettings(epochs=1_000_000),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        ppo=PPO_SETTINGS,
        dqn=DQN_SETTINGS,
        pqn=preset_settings(env, algo="pqn").pqn,
        network=network,
        machine=MachineSettings(device="cpu", threads=1),
        env_settings=settings_class(env)(),
    )
    components = build(settings)
    components.collector.start(settings.seed)

    def work() -> int:
        torch.set_num_threads(1)
        for _ in range(updates):
            components.collector.collect(components.learner.policy, components.learner.buffer, num_steps)
            components.learner.update()
        return updates * settings.rollout.samples_per_epoch

    return work


def _stable_baselines_ppo(num_envs: int, network: NetworkSettings) -> Callable[[], int]:
    """PPO of Stable-Baselines3; without Monitor wrappers, which would cost it time."""
    from stable_baselines3 import PPO

    samples = num_envs * NUM_STEPS
    return _training(
        PPO(
            "MlpPolicy",
            _cartpole_envs(num_envs),
            n_steps=NUM_STEPS,
            batch_size=samples // PPO_SETTINGS.num_minibatches,
            n_epochs=PPO_SETTINGS.update_epochs,
            learning_rate=PPO_SETTINGS.learning_rate,
            clip_range=PPO_SETTINGS.clip_range,
            gamma=PPO_SETTINGS.gamma,
            gae_lambda=PPO_SETTINGS.gae_lambda,
            ent_coef=PPO_SETTINGS.entropy_coefficient,
            vf_coef=PPO_SETTINGS.value_coefficient,
            max_grad_norm=PPO_SETTINGS.max_gradient_norm,
            policy_kwargs=_policy_kwargs(network),
            device="cpu",
            seed=0,
        ),
        UPDATES_PER_REPEAT * samples,
    )


def _stable_baselines_dqn(num_envs: int, network: NetworkSettings) -> Callable[[], int]:
    """DQN of Stable-Baselines3, with as many gradient steps per sample and per round."""
    from stable_baselines3 import DQN

    return _training(
        DQN(
            "MlpPolicy",
            _cartpole_envs(num_envs),
            learning_rate=DQN_SETTINGS.learning_rate,
            buffer_size=DQN_SETTINGS.replay_size,
            learning_starts=DQN_SETTINGS.learning_starts,
            batch_size=DQN_SETTINGS.batch_size,
            gamma=DQN_SETTINGS.gamma,
            train_freq=DQN_SETTINGS.train_frequency // num_envs,
            gradient_steps=DQN_SETTINGS.gradient_steps,
            target_update_interval=DQN_SETTINGS.train_frequency,
            max_grad_norm=DQN_SETTINGS.max_gradient_norm,
            policy_kwargs=_policy_kwargs(network),
            device="cpu",
            seed=0,
        ),
        DQN_SAMPLES,
    )


def _cartpole_envs(num_envs: int) -> Any:
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(num_envs)])


def _policy_kwargs(network: NetworkSettings) -> dict[str, Any]:
    return {"net_arch": list(network.hidden_sizes), "activation_fn": ACTIVATIONS[network.activation]}


def _training(model: Any, samples: int) -> Callable[[], int]:
    """A function that trains a model of Stable-Baselines3 for some samples."""

    def work() -> int:
        torch.set_num_threads(1)
        model.learn(samples, reset_num_timesteps=False)
        return samples

    return work
