"""Costs of collecting rollouts with Ray, and the throughput they predict for many more envs.

One actor is measured on this machine: samples per second, bytes per sample, the time to add samples
to the rollout buffer and to learn from them, and the time to broadcast the policy. The learner
consumes a limited number of samples per second; beyond that more actors add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any, Final

from hundredfold.backends.settings import RaySettings
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings, MachineSettings
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.rollout.rollout_buffer import RolloutBuffer
from hundredfold.training.build import Components, build

PREDICTED_SIZES: Final = (1_000, 10_000, 100_000)
# Usable bytes per second of a 10 Gbit network.
NETWORK_BYTES: Final = 1.0e9


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs of one actor and the learner; rates in samples per second."""

    num_steps: int
    actor_rate: float  # collected by one actor
    learner_rate: float  # learned from
    adding_rate: float  # added to the rollout buffer
    sample_bytes: float
    broadcast_bytes: int
    broadcast_seconds: float

    @property
    def intake_rate(self) -> float:
        """Samples per second that the driver consumes: adds to the buffer and learns from."""
        return 1 / (1 / self.learner_rate + 1 / self.adding_rate)

    def predicted(self, num_envs: int) -> dict[str, float]:
        """Prediction for one epoch with as many actors as saturate the learner (policy lag 1)."""
        samples = num_envs * self.num_steps
        learning = samples / self.intake_rate
        actors = max(1, math.ceil(samples / self.actor_rate / learning))
        return {
            "num_envs": num_envs,
            "actors_to_saturate": actors,
            "epoch_seconds": learning,
            "samples_per_second": self.intake_rate,
            "fragment_megabytes": samples * self.sample_bytes / actors / 1e6,
            "driver_megabytes": 2 * samples * self.sample_bytes / 1e6,
            "network_share": samples * self.sample_bytes / learning / NETWORK_BYTES,
            "broadcast_share": self.broadcast_seconds / learning,
        }


def bench_ray(
    env: str = "cage2", num_envs: int = 512, repeats: int = 5, on_progress: Callable[[str], None] = print
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the measured costs, and rows of the prediction."""
    start = preset_settings(env)
    settings = replace(
        start,
        length=LengthSettings(epochs=1_000_000),
        rollout=replace(start.rollout, num_envs=num_envs),
        machine=MachineSettings(backend="ray", device="cpu"),
        processes=replace(start.processes, workers=1),
        ray=RaySettings(object_store_mb=1_000),
        belief_model=None,
    )
    on_progress(f"{env}: {num_envs} envs in one actor")
    with closing(build(settings)) as components:
        costs = _measure(components, repeats)
    row = {
        "env": env,
        "num_envs": num_envs,
        "num_steps": costs.num_steps,
        "actor_samples_per_second": costs.actor_rate,
        "learner_samples_per_second": costs.learner_rate,
        "adding_samples_per_second": costs.adding_rate,
        "bytes_per_sample": costs.sample_bytes,
        "fragment_bytes": costs.sample_bytes * num_envs * costs.num_steps,
        "broadcast_bytes": costs.broadcast_bytes,
        "broadcast_seconds": costs.broadcast_seconds,
        "repeats": repeats,
    }
    return [row], [{"env": env, **costs.predicted(count)} for count in PREDICTED_SIZES]


def _measure(components: Components, repeats: int) -> Costs:
    """Medians over some epochs, after one that does not count."""
    collector, learner = components.collector, components.learner
    assert isinstance(collector, RayCollector)
    rollout = learner.buffer
    assert isinstance(rollout, RolloutBuffer)
    num_steps, samples = components.settings.rollout.num_steps, rollout.num_envs * rollout.num_steps
    collector.start(0)
    collecting, learning, adding, sending = [], [], [], []
    for epoch in range(repeats + 1):
        before = collector.policy_seconds + collector.env_seconds
        collector.collect(learner.policy, rollout, num_steps)
        spent = collector.policy_seconds + collector.env_seconds - before
        begin = perf_counter()
        other = RolloutBuffer(components.backend.spec, rollout.num_envs, num_steps)
        other.add_steps(slice(0, rollout.num_envs), rollout.arrays, rollout.observation, None)
        added = perf_counter()
        learner.update()
        if epoch:
            collecting.append(spent)
            adding.append(added - begin)
            learning.append(perf_counter() - added)
            sending.append(collector.broadcast_seconds)
    weights = [parameter.nbytes for parameter in learner.network.parameters()]
    return Costs(
        num_steps=num_steps,
        actor_rate=samples / median(collecting),
        learner_rate=samples / median(learning),
        adding_rate=samples / median(adding),
        sample_bytes=collector.fragment_bytes / samples,
        broadcast_bytes=sum(weights),
        broadcast_seconds=median(sending),
    )
