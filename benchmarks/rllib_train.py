"""Collecting and training with Ray actors, compared with RLlib's env runners, on cage2.

Both step the same env in as many Ray processes, with the same network, batch, minibatches and
update epochs; RLlib gets the env through its vector entry point, a batch per runner. In-process
collecting with as many threads as there are actors is measured as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.measure import interleaved_rates, ratio_rows
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.backends.settings import RaySettings
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings, MachineSettings, RunSettings
from hundredfold.distributed import placement
from hundredfold.profiling.scaling import HUNDREDFOLD
from hundredfold.rollout.rollout_buffer import RolloutSettings
from hundredfold.training.build import Components, build

NUM_ENVS = 512
NUM_STEPS = 50
PPO_SETTINGS = PPOSettings(learning_rate=3e-4, anneal_learning_rate=False, update_epochs=4, num_minibatches=8)


def bench_rllib(repeats: int = 5, workers: int = 2, on_progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Samples per second of collecting and of training; a row per library."""
    placement.load_ray()
    from hundredfold.interop.rllib import engine

    on_ray = _settings(workers)
    with ExitStack() as stack:
        # Room for all systems at once; they are measured in turn.
        placement.connect(RaySettings(object_store_mb=400), 2 * workers + 1)
        stack.callback(placement.disconnect)
        actors = _started(stack, on_ray)
        in_process = _started(stack, _in_process(on_ray, workers))
        rllib: Any = engine.build(replace(on_ray, engine="rllib"), None)
        stack.callback(rllib.close)
        algorithm = engine.make_algorithm(rllib)
        stack.callback(algorithm.stop)
        collecting = {
            HUNDREDFOLD: lambda: _collect(actors),
            f"{HUNDREDFOLD} in_process": lambda: _collect(in_process, threads=workers),
            "rllib": lambda: _sample(algorithm),
        }
        training = {HUNDREDFOLD: lambda: _train(actors), "rllib": lambda: _train_rllib(algorithm)}
        return [
            {"env": "cage2", "work": work, **row}
            for work, subjects in (("collecting", collecting), ("training", training))
            for row in ratio_rows(
                interleaved_rates(subjects, repeats, partial(_report, on_progress, work)),
                num_envs=NUM_ENVS,
                workers=workers,
            )
        ]


def _report(on_progress: Callable[[str], None], work: str, name: str) -> None:
    on_progress(f"{work}: {name}")


def _settings(workers: int) -> RunSettings:
    start = preset_settings("cage2")
    return replace(
        start,
        length=LengthSettings(epochs=1_000_000),
        rollout=RolloutSettings(num_envs=NUM_ENVS, num_steps=NUM_STEPS),
        network=NetworkSettings(hidden_sizes=(64, 64)),
        ppo=PPO_SETTINGS,
        machine=MachineSettings(backend="ray", device="cpu"),
        processes=replace(start.processes, workers=workers),
    )


def _in_process(settings: RunSettings, threads: int) -> RunSettings:
    return replace(
        settings,
        machine=MachineSettings(backend="in_process", device="cpu", threads=threads),
        env_settings=replace(settings.env_settings, batch_threads=threads),
    )


def _started(stack: ExitStack, settings: RunSettings) -> Components:
    components = build(settings)
    stack.callback(components.close)
    components.collector.start(settings.seed)
    return components


def _collect(components: Components, threads: int = 1) -> int:
    torch.set_num_threads(threads)
    buffer: Any = components.learner.buffer
    components.collector.collect(components.learner.policy, buffer, NUM_STEPS)
    buffer.clear()
    return NUM_ENVS * NUM_STEPS


def _train(components: Components) -> int:
    torch.set_num_threads(1)
    components.collector.collect(components.learner.policy, components.learner.buffer, NUM_STEPS)
    components.learner.update()
    return NUM_ENVS * NUM_STEPS


def _sample(algorithm: Any) -> int:
    from ray.rllib.execution import rollout_ops

    # RLlib declares fewer results than it returns.
    rllib: Any = rollout_ops
    episodes, *_ = rllib.synchronous_parallel_sample(
        worker_set=algorithm.env_runner_group,
        max_env_steps=NUM_ENVS * NUM_STEPS,
        sample_timeout_s=600.0,
        _uses_new_env_runners=True,
        _return_metrics=True,
    )
    return sum(len(episode) for episode in episodes)


def _train_rllib(algorithm: Any) -> int:
    torch.set_num_threads(1)
    result = algorithm.train()
    return int(result["env_runners"]["num_env_steps_sampled"])
