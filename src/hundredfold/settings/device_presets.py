"""Settings that follow from the device alone."""

from __future__ import annotations

from dataclasses import replace

from hundredfold.experience.rollout import RolloutSettings
from hundredfold.learners.dqn_settings import DQNSettings
from hundredfold.learners.networks import NetworkSettings
from hundredfold.learners.ppo import PPOSettings
from hundredfold.settings.devices import Device
from hundredfold.settings.run import Algorithm, EvaluationSettings, MachineSettings, RunSettings


def seed_004(start: RunSettings, algo: Algorithm, device: Device) -> RunSettings:
    """Settings by device from a fixed table; what it leaves open is as in Stable-Baselines3.

    A GPU is kept busy by 8 envs in processes, large batches and large networks; on a CPU one env
    and small networks do.
    """
    gpu = device.kind == "cuda"
    ppo = PPOSettings(
        minibatch_size=256 if gpu else 64,
        update_epochs=10 if gpu else 4,
        learning_rate=3e-4,
        anneal_learning_rate=False,
        entropy_coefficient=0.0,
        normalise_values=False,
    )
    dqn = DQNSettings(
        batch_size=128 if gpu else 32,
        replay_size=50_000 if gpu else 10_000,
        learning_rate=1e-4,
        train_frequency=4,
        gradient_steps=1,
        learning_starts=100,
        target_interval=2_500,  # gradient steps: 10,000 samples
        return_steps=1,
        double_q=False,
        exploration_fraction=0.1,
        exploration_end=0.05,
    )
    large = {"ppo": (256, 256), "dqn": (256, 256, 256)}
    hidden = large[algo] if gpu else (128, 128)
    rollout = RolloutSettings(num_envs=8 if gpu else 1, num_steps=512 if gpu else 256)
    # Epochs are small here: judge and save as often as others do, by samples.
    interval = max(1, 20_480 // rollout.samples_per_epoch)
    return replace(
        start,
        algo=algo,
        rollout=rollout,
        evaluation=EvaluationSettings(eval_interval=interval, eval_episodes=16),
        saving=replace(start.saving, save_interval=interval),
        ppo=ppo,
        dqn=dqn,
        network=NetworkSettings(hidden=hidden, activation="tanh" if algo == "ppo" else "relu"),
        machine=MachineSettings(backend="processes" if gpu else "in_process"),
    )
