"""Training speed: our PPO and DQN beside Stable-Baselines3's, with the same hyperparameters.

Both do the same number of steps and of gradient steps, on batches of the same size, with networks
of the same size on one torch thread. Stable-Baselines3 always runs Gymnasium's CartPole-v1, one env
after another in this process (its fastest way for so small an env); ours runs the batch env, or
the same Gymnasium env through the adapter. What is measured is whole training: collecting and
learning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from hundredfold.algorithms.actor_critic import ACTIVATIONS, Activation, NetworkSettings
from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.config.run import Algorithm, LengthSettings, MachineSettings, RunSettings
from hundredfold.core.errors import is_installed
from hundredfold.envs.registry import settings_class
from hundredfold.profiling.measure import OURS, rate_rows, rates_in_turns
from hundredfold.rollout.rollout_buffer import RolloutSettings
from hundredfold.training.build import build

# (our env, number of envs): the batch env at full width, the adapter at a usual size.
CASES: Final[dict[Algorithm, tuple[tuple[str, int], ...]]] = {
    "ppo": (("cartpole", 256), ("CartPole-v1", 64)),
    "dqn": (("cartpole", 64), ("CartPole-v1", 8)),
}

HIDDEN: Final[dict[Algorithm, tuple[int, ...]]] = {"ppo": (64, 64), "dqn": (128, 128)}
# Steps of every env in one turn. DQN takes a gradient step for every other sample: fewer will do.
NUM_STEPS: Final = 128
UPDATES_PER_TURN: Final = 3
DQN_SAMPLES: Final = 2_048
PPO_SETTINGS = PPOSettings(
    learning_rate=3e-4,
    anneal_learning_rate=False,
    update_epochs=4,
    num_minibatches=4,
    entropy_coefficient=0.0,
)
# One step ahead and a single network to judge it, which is all that the peer's DQN does.
DQN_SETTINGS = DQNSettings(n_step=1, double_q=False)


def bench_train(
    repeats: int = 5,
    activation: Activation = "relu",
    algo: Algorithm = "ppo",
    on_progress: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Steps per second of whole training; a row per system and case."""
    network = NetworkSettings(hidden_sizes=HIDDEN[algo], activation=activation)
    return [
        row
        for env, num_envs in CASES[algo]
        for row in _case_rows(env, num_envs, algo, network, repeats, on_progress)
    ]


def _case_rows(
    env: str,
    num_envs: int,
    algo: Algorithm,
    network: NetworkSettings,
    repeats: int,
    on_progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    contestants = {OURS: _ours(env, num_envs, algo, network)}
    if is_installed("stable_baselines3"):
        peer = _stable_baselines_ppo if algo == "ppo" else _stable_baselines_dqn
        contestants["stable-baselines3"] = peer(num_envs, network)
    rates = rates_in_turns(
        contestants, repeats, lambda name: on_progress(f"{algo}, {env}, {num_envs} envs: {name}")
    )
    rows = rate_rows(rates, algo=algo, num_envs=num_envs, threads=1, activation=network.activation)
    return [{"env": env if row["system"] == OURS else "CartPole-v1", **row} for row in rows]


def _ours(env: str, num_envs: int, algo: Algorithm, network: NetworkSettings) -> Callable[[], int]:
    """Train for a turn; returns the number of steps."""
    num_steps = NUM_STEPS if algo == "ppo" else DQN_SAMPLES // num_envs
    updates = UPDATES_PER_TURN if algo == "ppo" else 1
    settings = RunSettings(
        env=env,
        algo=algo,
        length=LengthSettings(epochs=1_000_000),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        ppo=PPO_SETTINGS,
        dqn=DQN_SETTINGS,
        network=network,
        machine=MachineSettings(device="cpu", threads=1),
        env_settings=settings_class(env)(),
    )
    parts = build(settings)
    parts.collector.start(settings.seed)

    def play() -> int:
        torch.set_num_threads(1)
        for _ in range(updates):
            parts.collector.collect(parts.learner.policy, parts.learner.buffer, num_steps)
            parts.learner.update()
        return updates * settings.rollout.samples_per_epoch

    return play


def _stable_baselines_ppo(num_envs: int, network: NetworkSettings) -> Callable[[], int]:
    """The same for Stable-Baselines3; no Monitor around the envs, which spares it some time."""
    from stable_baselines3 import PPO

    samples = num_envs * NUM_STEPS
    return _playing(
        PPO(
            "MlpPolicy",
            _cart_poles(num_envs),
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
            policy_kwargs=_built_like(network),
            device="cpu",
            seed=0,
        ),
        UPDATES_PER_TURN * samples,
    )


def _stable_baselines_dqn(num_envs: int, network: NetworkSettings) -> Callable[[], int]:
    """The same for its DQN: as many gradient steps per sample, in bouts of the same size."""
    from stable_baselines3 import DQN

    return _playing(
        DQN(
            "MlpPolicy",
            _cart_poles(num_envs),
            learning_rate=DQN_SETTINGS.learning_rate,
            buffer_size=DQN_SETTINGS.replay_size,
            learning_starts=DQN_SETTINGS.learning_starts,
            batch_size=DQN_SETTINGS.batch_size,
            gamma=DQN_SETTINGS.gamma,
            train_freq=DQN_SETTINGS.train_frequency // num_envs,
            gradient_steps=DQN_SETTINGS.gradient_steps,
            target_update_interval=DQN_SETTINGS.train_frequency,
            max_grad_norm=DQN_SETTINGS.max_gradient_norm,
            policy_kwargs=_built_like(network),
            device="cpu",
            seed=0,
        ),
        DQN_SAMPLES,
    )


def _cart_poles(num_envs: int) -> Any:
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(num_envs)])


def _built_like(network: NetworkSettings) -> dict[str, Any]:
    return {
        "net_arch": list(network.hidden_sizes),
        "activation_fn": ACTIVATIONS[network.activation],
    }


def _playing(model: Any, samples: int) -> Callable[[], int]:
    """Let a model of theirs train for as long as ours."""

    def play() -> int:
        torch.set_num_threads(1)
        model.learn(samples, reset_num_timesteps=False)
        return samples

    return play
