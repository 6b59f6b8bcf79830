"""Policies with a memory on CartPole with hidden velocities, compared with RecurrentPPO of sb3-contrib.

Positions alone do not tell where the pole is going: a policy must remember the step before. All systems train the
same number of samples per update, with equal learning rates, epochs, minibatches and network sizes, in this process
with one torch thread, and are evaluated alike: deterministic actions, 32 episodes, at the same intervals.
hundredfold has a gated recurrent unit, RecurrentPPO a long short-term memory of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

import gymnasium
import numpy as np
import torch

from benchmarks.learning import LearningResult, train_once
from benchmarks.measure import summarise
from benchmarks.tasks import EPISODES, Task, classic
from hundredfold.config.run import RunSettings
from hundredfold.core.batch import FloatArray
from hundredfold.core.errors import is_installed
from hundredfold.profiling.scaling import HUNDREDFOLD

ENV: Final = "benchmarks.memory:HiddenVelocities-v0"
TARGET: Final = 475.0
SAMPLES: Final = 150_000
NUM_ENVS: Final = 8
NUM_STEPS: Final = 128
EVALUATION_INTERVAL: Final = 4  # updates
MEMORY_SIZE: Final = 64
WITHOUT_MEMORY: Final = f"{HUNDREDFOLD}, no memory"
RECURRENT_PPO: Final = "sb3-contrib"


class HiddenVelocities(
    gymnasium.ObservationWrapper[FloatArray, Any, FloatArray], gymnasium.utils.RecordConstructorArgs
):
    """CartPole that shows the positions of cart and pole, not their velocities.

    Args:
        env: CartPole-v1.
    """

    def __init__(self, env: gymnasium.Env[FloatArray, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        whole = env.observation_space
        assert isinstance(whole, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(whole.low[[0, 2]], whole.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: FloatArray) -> FloatArray:
        """(2,) positions."""
        return observation[[0, 2]]


gymnasium.register(
    "HiddenVelocities-v0",
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    max_episode_steps=500,
    additional_wrappers=(HiddenVelocities.wrapper_spec(),),
)


def bench_memory(
    seeds: int, samples: int = SAMPLES, on_progress: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """A row per system: samples until CartPole is balanced without velocities, and steps per second.

    Args:
        seeds: Trainings of each system, in turn so that other load hits all alike.
        samples: Length of a training that does not reach the target.
        on_progress: Called with a line after every training.
    """
    with_memory, without = settings(samples), settings(samples, memory=False)
    systems: dict[str, Callable[[int], LearningResult]] = {
        HUNDREDFOLD: lambda seed: train_once(Task(TARGET, lambda: with_memory), "hundredfold", seed),
        WITHOUT_MEMORY: lambda seed: train_once(Task(TARGET, lambda: without), "hundredfold", seed),
    }
    if is_installed("sb3_contrib"):
        systems[RECURRENT_PPO] = lambda seed: train_recurrent_ppo(with_memory, seed)
    results: dict[str, list[LearningResult]] = {name: [] for name in systems}
    for seed in range(seeds):
        for name, train in systems.items():
            result = train(seed)
            results[name].append(result)
            on_progress(f"seed {seed}: {name}, best {result.best:.0f}, {result.samples:,} samples")
    return result_rows(results)


def result_rows(results: Mapping[str, Sequence[LearningResult]]) -> list[dict[str, Any]]:
    """Median and range over seeds, with ratios of the speed to that of hundredfold with memory."""
    rates = {name: summarise([run.steps_per_second for run in runs]).median for name, runs in results.items()}
    rows = []
    for name, runs in results.items():
        samples = summarise([float(run.samples) for run in runs])
        rows.append(
            {
                "system": name,
                "solved": f"{sum(run.solved for run in runs)} of {len(runs)}",
                "samples_to_target": samples.median,
                "low": samples.low,
                "high": samples.high,
                "best": summarise([run.best for run in runs]).median,
                "steps_per_second": rates[name],
                "ratio_to_hundredfold": rates[name] / rates[HUNDREDFOLD],
            }
        )
    return rows


def settings(samples: int, *, memory: bool = True) -> RunSettings:
    """Settings of hundredfold, with or without memory."""
    start = classic(ENV, "ppo", num_envs=NUM_ENVS, num_steps=NUM_STEPS, samples=samples, epochs=EVALUATION_INTERVAL)
    if not memory:
        return start
    return replace(start, network=replace(start.network, memory="gru", memory_size=MEMORY_SIZE))


def train_recurrent_ppo(run: RunSettings, seed: int) -> LearningResult:
    """Train RecurrentPPO with the settings of a run of hundredfold."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    samples_per_update = run.rollout.num_envs * run.rollout.num_steps
    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([lambda: gymnasium.make(ENV)] * run.rollout.num_envs),
        n_steps=run.rollout.num_steps,
        batch_size=samples_per_update // run.ppo.num_minibatches,
        n_epochs=run.ppo.update_epochs,
        learning_rate=run.ppo.learning_rate,
        clip_range=run.ppo.clip_range,
        gamma=run.ppo.gamma,
        gae_lambda=run.ppo.gae_lambda,
        ent_coef=run.ppo.entropy_coefficient,
        vf_coef=run.ppo.value_coefficient,
        max_grad_norm=run.ppo.max_gradient_norm,
        policy_kwargs={"net_arch": list(run.network.hidden_sizes), "lstm_hidden_size": MEMORY_SIZE},
        device="cpu",
        seed=seed,
    )
    evaluation_envs = DummyVecEnv([lambda: gymnasium.make(ENV)] * NUM_ENVS)
    seconds, best, solved_at, seconds_to_target = 0.0, -np.inf, None, 0.0
    chunk = EVALUATION_INTERVAL * samples_per_update
    total = 0
    while total < run.length.steps:
        begin = perf_counter()
        model.learn(chunk, reset_num_timesteps=False)
        seconds += perf_counter() - begin
        total += chunk
        evaluation_envs.seed(run.evaluation.eval_seed)
        mean = float(np.mean(evaluate_policy(model, evaluation_envs, EPISODES, warn=False)[0]))
        best = max(best, mean)
        if mean >= TARGET and solved_at is None:
            solved_at, seconds_to_target = total, seconds
    return LearningResult(
        samples=solved_at or total,
        solved=solved_at is not None,
        best=best,
        steps_per_second=total / seconds,
        seconds=seconds_to_target or seconds,
    )
