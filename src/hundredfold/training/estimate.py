"""Estimate of a run before it starts: epochs, memory, time and recommended settings.

Memory is counted on arrays made for one env; that of third-party envs and of worker processes is measured.
Time is measured on two epochs of at most 256 envs; updates on a CUDA device that is not present are modelled,
and marked as such.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import psutil
import torch

from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.algorithms.pqn import PQNSettings
from hundredfold.config.devices import available_memory
from hundredfold.config.run import LengthSettings, RunSettings
from hundredfold.core.batch import EnvSpec, without_prefix
from hundredfold.core.formatting import format_count
from hundredfold.core.protocols import EnvFactory
from hundredfold.envs.registry import ENVS
from hundredfold.rollout.replay_buffer import row_bytes
from hundredfold.rollout.rollout_buffer import RolloutBuffer
from hundredfold.training.build import Components, build, training_factory
from hundredfold.training.memory import measured_env_bytes, size_of, spec_of, state_of

# Fewer updates than the first number are too few to learn from, the second number is enough.
FEW_EPOCHS, ENOUGH_EPOCHS = 50, 100
# The same when every update learns from the decisions of all epochs before it; the preset trains so long.
FEW_EPOCHS_OF_FUTURES, ENOUGH_EPOCHS_OF_FUTURES = 30, 40
# Share of the available memory for envs and buffers; the rest is for networks and the system.
MEMORY_SHARE: Final = 0.5
MEASURED_ENVS: Final = 256
# Model of an absent CUDA device: overhead of one gradient step, and the speed of a mid-range card
# on small matrices.
MODEL_STEP_SECONDS: Final = 1.2e-3
MODEL_FLOPS: Final = 5e12
# Memory of DQN that does not depend on the number of envs.
REPLAY: Final = ("replay buffer", "snapshot of the replay buffer")
# Forward and backward pass: about six operations per weight and sample.
FLOPS_PER_WEIGHT: Final = 6.0
ENVS_MEMORY: Final = "envs"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommended setting, and why."""

    setting: str
    present: Any
    recommended: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one epoch by phase."""

    collect: float
    update: float
    update_is_modelled: bool
    worker_bytes: int = 0  # memory of the worker processes alone, with their envs

    @property
    def epoch(self) -> float:
        return self.collect + self.update


@dataclass(frozen=True, slots=True)
class Estimate:
    """Result of `hundredfold estimate`."""

    settings: RunSettings
    gradient_steps: int  # of one epoch
    memory: dict[str, int]  # bytes by component
    largest_num_envs: int
    timing: Timing | None
    warnings: list[str]
    recommendations: list[Recommendation]

    @property
    def recommended(self) -> RunSettings:
        """The settings with all recommendations applied."""
        settings = self.settings
        for item in self.recommendations:
            settings = _with(settings, item.setting, item.recommended)
        return settings


def estimate_run(settings: RunSettings, start: RunSettings, *, measure: bool = True, cuda: bool = False) -> Estimate:
    """Estimate a run.

    Args:
        settings: Run settings.
        start: Settings of the preset they started from.
        measure: Measure two epochs.
        cuda: The run is for a CUDA device; modelled where there is none.
    """
    factory = training_factory(settings)
    spec = spec_of(factory)
    resolved = settings.resolved(spec)
    per_env = bytes_per_env(resolved, spec, factory)
    timing = None
    memory = {name: size * resolved.rollout.num_envs for name, size in per_env.items()}
    if measure:
        timing = measure_epoch(resolved, modelled_update=cuda and not torch.cuda.is_available())
        if timing.worker_bytes:
            # Envs that run in workers are counted once, with the other memory of their processes.
            in_trial = min(resolved.rollout.num_envs, MEASURED_ENVS) * per_env[ENVS_MEMORY]
            memory[ENVS_MEMORY] += timing.worker_bytes - in_trial
    return Estimate(
        settings=resolved,
        gradient_steps=gradient_steps(resolved),
        memory=memory,
        largest_num_envs=largest_num_envs(resolved, per_env),
        timing=timing,
        warnings=warnings_for(settings, resolved, spec),
        recommendations=recommend(settings, resolved, start, spec),
    )


def few_epochs(settings: RunSettings) -> int:
    """Number of epochs below which a run is too short to learn from."""
    return FEW_EPOCHS_OF_FUTURES if _learns_from_futures(settings) else FEW_EPOCHS


def enough_epochs(settings: RunSettings) -> int:
    """Number of epochs that is recommended where a run is too short."""
    return ENOUGH_EPOCHS_OF_FUTURES if _learns_from_futures(settings) else ENOUGH_EPOCHS


def _learns_from_futures(settings: RunSettings) -> bool:
    return settings.algo == "ppo" and settings.ppo.advantages == "futures"


def warnings_for(requested: RunSettings, resolved: RunSettings, spec: EnvSpec) -> list[str]:
    """Warnings about the length of a run; `train` prints the same."""
    episodes, epochs = requested.length.episodes, resolved.length.epochs
    if not episodes or spec.episode_steps is None:
        return []
    steps = resolved.rollout.samples_per_epoch
    warnings = []
    if epochs < few_epochs(resolved):
        enough = enough_epochs(resolved)
        warnings.append(
            f"{episodes} episodes at {resolved.rollout.num_envs} envs are {format_count(epochs, 'epoch')}, too few to "
            f"learn from; use --episodes {-(-enough * steps // spec.episode_steps)} for {enough} epochs"
        )
    if epochs * steps != episodes * spec.episode_steps:
        warnings.append(
            f"{episodes} episodes do not divide into epochs of {steps // spec.episode_steps}; "
            f"{epochs * steps // spec.episode_steps} are trained"
        )
    return warnings


def gradient_steps(settings: RunSettings) -> int:
    """Gradient steps of one epoch."""
    learner, rollout = settings.learner, settings.rollout
    if isinstance(learner, DQNSettings):
        return rollout.samples_per_epoch * learner.gradient_steps // learner.train_frequency
    samples = rollout.samples_per_epoch * rollout.policy_update_interval
    size = _minibatch_size(learner, samples)
    return _num_passes(learner) * -(-samples // size) // rollout.policy_update_interval


# --- memory


def bytes_per_env(settings: RunSettings, spec: EnvSpec, factory: EnvFactory) -> dict[str, int]:
    """Bytes per env, by component."""
    sizes = _replay_bytes(settings, spec) if settings.algo == "dqn" else _rollout_bytes(settings, spec)
    if settings.env not in ENVS:
        return sizes | {ENVS_MEMORY: measured_env_bytes(factory)}
    state = state_of(factory)
    groups: dict[str, int] = {}
    for prefix, label in ENVS[settings.env].memory_groups.items():
        if group := without_prefix(prefix, state):
            groups[label] = size_of(group)
    # The last complete epoch is kept as a snapshot.
    return sizes | groups | {ENVS_MEMORY: size_of(state) - sum(groups.values()), "last snapshot": size_of(state)}


def _replay_bytes(settings: RunSettings, spec: EnvSpec) -> dict[str, int]:
    num_envs = settings.rollout.num_envs
    replay = settings.dqn.rows_per_env(spec, num_envs) * row_bytes(spec)
    return dict.fromkeys(REPLAY, replay)


def _rollout_bytes(settings: RunSettings, spec: EnvSpec) -> dict[str, int]:
    steps = settings.rollout.num_steps * settings.rollout.policy_update_interval
    rollout = RolloutBuffer(spec, 1, steps)
    return {
        "observations": size_of(rollout.observation),
        "masks": 0 if rollout.mask is None else rollout.mask.nbytes,
        "actions": rollout.actions.nbytes,
        "log-probabilities": rollout.log_probs.nbytes,
        "rewards and flags": rollout.rewards.nbytes + rollout.terminated.nbytes + rollout.ended.nbytes,
        # Values, advantages and targets, and the shuffled rows.
        "update": 3 * rollout.rewards.nbytes + size_of(rollout.observation),
    }


def largest_num_envs(settings: RunSettings, per_env: dict[str, int]) -> int:
    """Number of envs that fit into memory; the replay buffer does not depend on it."""
    room = int(MEMORY_SHARE * available_memory())
    if settings.algo != "dqn":
        return max(1, room // max(sum(per_env.values()), 1))
    replay = sum(per_env[name] for name in REPLAY) * settings.rollout.num_envs
    others = sum(size for name, size in per_env.items() if name not in REPLAY)
    # Every env's ring must hold more than one n-step return.
    rings = settings.dqn.replay_size // (settings.dqn.n_step + 2)
    return max(1, min((room - replay) // max(others, 1), rings))


def auto_num_envs(settings: RunSettings) -> tuple[int, str]:
    """Value of `--num-envs auto` for these settings, and the reason."""
    factory = training_factory(settings)
    spec = spec_of(factory)
    any_length = replace(settings, length=LengthSettings(epochs=1)).resolved(spec)
    most = largest_num_envs(any_length, bytes_per_env(any_length, spec, factory))
    steps = settings.length.steps
    if settings.length.episodes and spec.episode_steps:
        steps = settings.length.episodes * spec.episode_steps
    if not steps:
        return most, f"{most:,} envs fit into memory"
    by_length = max(1, steps // (FEW_EPOCHS * any_length.rollout.num_steps))
    if by_length < most:
        return by_length, f"{FEW_EPOCHS} epochs of the run's length; {most:,} would fit into memory"
    return most, f"{most:,} envs fit into memory"


# --- time


def measure_epoch(settings: RunSettings, modelled_update: bool = False) -> Timing:
    """Seconds of an epoch, from the second of two with one pass of an update of PPO or PQN, scaled up."""
    rollout, ppo = settings.rollout, settings.ppo
    num_envs = min(rollout.num_envs, MEASURED_ENVS)
    one_pass = (
        replace(ppo, num_value_epochs=1, num_policy_epochs=1) if ppo.separate_epochs else replace(ppo, update_epochs=1)
    )
    learning_starts = min(settings.dqn.learning_starts, num_envs * rollout.num_steps)
    trial = replace(
        settings,
        length=LengthSettings(epochs=2),
        rollout=replace(rollout, num_envs=num_envs, policy_update_interval=1),
        ppo=one_pass,
        dqn=replace(settings.dqn, learning_starts=learning_starts),
        pqn=replace(settings.pqn, update_epochs=1),
        processes=replace(settings.processes, batch_envs=0),
    )
    components = build(trial)
    try:
        components.collector.start(settings.seed)
        seconds = [_epoch_seconds(components, trial) for _ in range(2)]
        worker_bytes = sum(child.memory_full_info().uss for child in psutil.Process().children(recursive=True))
    finally:
        components.close()
    # The first epoch compiles kernels and fills caches.
    collect, update = seconds[-1]
    growth = rollout.num_envs / num_envs
    passes = _num_passes(settings.learner) / _num_passes(trial.learner)
    if modelled_update:
        weights = sum(weight.numel() for weight in components.learner.network.parameters())
        return Timing(collect * growth, modelled_seconds(settings, weights), True, worker_bytes)
    return Timing(collect * growth, update * growth * passes, False, worker_bytes)


def modelled_seconds(settings: RunSettings, weights: int) -> float:
    """Modelled seconds of an update on a CUDA device."""
    steps, learner = gradient_steps(settings), settings.learner
    if isinstance(learner, DQNSettings):
        rows = steps * learner.batch_size
    else:
        rows = settings.rollout.samples_per_epoch * _num_passes(learner)
    return steps * MODEL_STEP_SECONDS + FLOPS_PER_WEIGHT * weights * rows / MODEL_FLOPS


def _epoch_seconds(components: Components, settings: RunSettings) -> tuple[float, float]:
    learner = components.learner
    learned = learner.learning_seconds
    begin = time.perf_counter()
    components.collector.collect(learner.policy, learner.buffer, settings.rollout.num_steps)
    middle = time.perf_counter()
    learner.update()
    learned = learner.learning_seconds - learned
    return middle - begin - learned, time.perf_counter() - middle + learned


# --- recommendations


def recommend(requested: RunSettings, resolved: RunSettings, start: RunSettings, spec: EnvSpec) -> list[Recommendation]:
    """Recommended settings for epochs larger than those that the preset was made for.

    Only settings that still have the preset's value are changed.
    """
    changes: list[Recommendation] = []
    if requested.length.episodes and resolved.length.epochs < few_epochs(resolved) and spec.episode_steps:
        reason = f"{resolved.length.epochs} epochs are too few to learn from"
        enough = -(-enough_epochs(resolved) * resolved.rollout.samples_per_epoch // spec.episode_steps)
        changes.append(Recommendation("episodes", requested.length.episodes, enough, reason))
    preset = replace(start, length=LengthSettings(epochs=1)).resolved(spec)
    before = preset.rollout.samples_per_epoch
    growth = resolved.rollout.samples_per_epoch / before
    # DQN takes gradient steps per sample, whatever the size of an epoch; PQN has no such experience.
    if growth <= 1.0 or resolved.algo != "ppo":
        return changes
    ppo, first = resolved.ppo, start.ppo
    times = f"{growth:.3g} times the samples per update"
    size = _minibatch_size(first, before)
    wider = _minibatch_size(ppo, resolved.rollout.samples_per_epoch)
    if (ppo.minibatch_size, ppo.num_minibatches) == (first.minibatch_size, first.num_minibatches):
        if first.minibatch_size:
            wider = _power_of_two(size * growth**0.5)
            reason = f"{times}: larger and more minibatches"
            changes.append(Recommendation("minibatch_size", size, wider, reason))
        faster = _rounded(min(first.learning_rate * (wider / size) ** 0.5, 3e-3))
        if ppo.learning_rate == first.learning_rate and faster != first.learning_rate:
            reason = f"minibatches of {wider} instead of {size} have less gradient noise"
            changes.append(Recommendation("learning_rate", first.learning_rate, faster, reason))
    passes: Sequence[str] = ("num_value_epochs", "num_policy_epochs") if ppo.separate_epochs else ("update_epochs",)
    if resolved.rollout.samples_per_epoch // wider <= before // size:
        return changes
    for name in passes:
        present = getattr(ppo, name)
        fewer = max(1, round(present * growth**-0.2))
        if present == getattr(first, name) and fewer < present:
            reason = f"{times}: each pass makes more gradient steps, so fewer passes suffice"
            changes.append(Recommendation(name, present, fewer, reason))
    return changes


def _with(settings: RunSettings, name: str, value: Any) -> RunSettings:
    if name == "episodes":
        return replace(settings, length=LengthSettings(episodes=value))
    return replace(settings, ppo=replace(settings.ppo, **{name: value}))


def _num_passes(learner: PPOSettings | DQNSettings | PQNSettings) -> int:
    if isinstance(learner, DQNSettings):
        return 1
    if isinstance(learner, PPOSettings) and learner.separate_epochs:
        return learner.num_value_epochs + learner.num_policy_epochs
    return learner.update_epochs


def _minibatch_size(learner: PPOSettings | PQNSettings, samples: int) -> int:
    given = learner.minibatch_size if isinstance(learner, PPOSettings) else 0
    return given or -(-samples // learner.num_minibatches)


def _power_of_two(number: float) -> int:
    return int(2 ** round(np.log2(number)))


def _rounded(number: float) -> float:
    """Two significant digits."""
    return float(f"{number:.1e}")
