"""Tasks for comparing learners: an env, a target return, and settings for all libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.config.presets import PQN_STEPS, preset_settings
from hundredfold.config.run import Algorithm, EvaluationSettings, LengthSettings, MachineSettings, RunSettings
from hundredfold.envs.registry import settings_class
from hundredfold.rollout.rollout_buffer import RolloutSettings

EPISODES: Final = 32


@dataclass(frozen=True, slots=True)
class Task:
    """An env and the return that counts as solved."""

    target: float  # mean return of the deterministic policy over EPISODES episodes
    settings: Callable[[], RunSettings]


def classic(env: str, algo: Algorithm, *, num_envs: int, num_steps: int, samples: int, epochs: int) -> RunSettings:
    """Small networks on a CPU, in this process, for cheap envs; evaluated every `epochs` epochs.

    Hyperparameters that both libraries have are equal. hundredfold keeps two features that
    Stable-Baselines3 does not have: value normalisation in PPO, double Q-learning in DQN.
    """
    return RunSettings(
        env=env,
        algo=algo,
        length=LengthSettings(steps=samples),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        ppo=PPOSettings(
            learning_rate=1e-3, anneal_learning_rate=False, update_epochs=4, num_minibatches=4, entropy_coefficient=0.0
        ),
        dqn=DQNSettings(),
        network=NetworkSettings(
            hidden_sizes=(64, 64) if algo == "ppo" else (128, 128),
            # The defaults of Stable-Baselines3: tanh for PPO, ReLU for DQN.
            activation="tanh" if algo == "ppo" else "relu",
        ),
        evaluation=EvaluationSettings(eval_interval=epochs, eval_episodes=EPISODES),
        machine=MachineSettings(backend="in_process", device="cpu", threads=1),
        env_settings=settings_class(env)(),
    )


def lunarlander() -> RunSettings:
    """Long rollouts, a high gamma, small minibatches, as in tuned settings of other libraries."""
    start = classic("LunarLander-v3", "ppo", num_envs=16, num_steps=1024, samples=1_000_000, epochs=2)
    ppo = replace(
        start.ppo, learning_rate=3e-4, gamma=0.999, gae_lambda=0.98, minibatch_size=64, entropy_coefficient=0.01
    )
    return replace(start, ppo=ppo)


def pqn(env: str, *, epochs: int) -> RunSettings:
    """PQN with the settings of `hundredfold train ENV --algo pqn`, in this process."""
    start = preset_settings(env, algo="pqn")
    return replace(
        start,
        rollout=RolloutSettings(num_envs=32, num_steps=PQN_STEPS),
        evaluation=EvaluationSettings(eval_interval=epochs, eval_episodes=EPISODES),
        machine=MachineSettings(backend="in_process", device="cpu", threads=1),
    )


def cage2() -> RunSettings:
    """Masked cage2, far from convergence: compares early learning."""
    start = preset_settings("cage2")
    return replace(
        start,
        length=LengthSettings(steps=384_000),
        rollout=RolloutSettings(num_envs=64, num_steps=100),
        ppo=replace(start.ppo, anneal_learning_rate=False, anneal_entropy=False),
        evaluation=EvaluationSettings(eval_interval=5, eval_episodes=180),
        machine=MachineSettings(backend="in_process", device="cpu", threads=1),
    )


TASKS: Final[dict[tuple[str, Algorithm], Task]] = {
    ("cartpole", "ppo"): Task(
        475.0, lambda: classic("CartPole-v1", "ppo", num_envs=8, num_steps=128, samples=80_000, epochs=4)
    ),
    ("cartpole", "dqn"): Task(
        475.0, lambda: classic("CartPole-v1", "dqn", num_envs=8, num_steps=312, samples=50_000, epochs=1)
    ),
    ("acrobot", "ppo"): Task(
        -100.0, lambda: classic("Acrobot-v1", "ppo", num_envs=16, num_steps=128, samples=200_000, epochs=4)
    ),
    ("acrobot", "dqn"): Task(
        -100.0, lambda: classic("Acrobot-v1", "dqn", num_envs=8, num_steps=256, samples=100_000, epochs=2)
    ),
    ("cartpole", "pqn"): Task(475.0, lambda: pqn("CartPole-v1", epochs=8)),
    ("acrobot", "pqn"): Task(-100.0, lambda: pqn("Acrobot-v1", epochs=8)),
    ("lunarlander", "ppo"): Task(200.0, lunarlander),
    ("lunarlander", "dqn"): Task(
        200.0, lambda: classic("LunarLander-v3", "dqn", num_envs=8, num_steps=512, samples=500_000, epochs=4)
    ),
    ("cage2", "ppo"): Task(-20.0, cage2),
}
