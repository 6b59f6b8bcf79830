"""What a run will be before it starts: its epochs, its memory, its time, and what to change.

Memory is counted on the arrays themselves, made for one env. Time is measured on two epochs of at
most 256 envs; where the device is not at hand it is modelled, and said to be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.config.devices import available_memory
from hundredfold.config.run import LengthSettings, RunSettings
from hundredfold.core.batch import Arrays, EnvSpec, State
from hundredfold.core.protocols import EnvFactory
from hundredfold.envs.registry import ENVS, env_factory
from hundredfold.rollout.replay_buffer import row_bytes
from hundredfold.rollout.rollout_buffer import RolloutBuffer
from hundredfold.training.build import build

# A policy that is updated less often than this has hardly begun to learn.
FEW_EPOCHS: Final = 50
ENOUGH_EPOCHS: Final = 100
# Share of the memory at hand that envs and rollout may take; networks and the system want theirs.
MEMORY_SHARE: Final = 0.5
MEASURED_ENVS: Final = 256
# The model of a CUDA device that is not here: what starting one gradient step costs, and how fast
# a mid-range card multiplies small matrices.
MODEL_STEP_SECONDS: Final = 1.2e-3
MODEL_FLOPS: Final = 5e12
# What DQN keeps, whatever the number of envs.
REPLAY: Final = ("replay", "last epoch's replay")
# Forward and backward through a weight cost about six operations per sample.
FLOPS_PER_WEIGHT: Final = 6.0


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that would suit the run better, and why."""

    setting: str
    present: Any
    advised: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one epoch by phase, and how they were found."""

    collect: float
    update: float
    update_is_modelled: bool

    @property
    def epoch(self) -> float:
        return self.collect + self.update


@dataclass(frozen=True, slots=True)
class Estimate:
    """Everything `hundredfold plan` tells."""

    settings: RunSettings
    gradient_steps: int  # of one epoch
    memory: dict[str, int]  # bytes by component
    largest_num_envs: int
    timing: Timing | None
    warnings: list[str]
    changes: list[Change]

    @property
    def advised(self) -> RunSettings:
        """The settings with every advice taken."""
        settings = self.settings
        for change in self.changes:
            settings = _with(settings, change.setting, change.advised)
        return settings


def estimate_run(
    settings: RunSettings, start: RunSettings, *, measure: bool = True, cuda: bool = False
) -> Estimate:
    """The plan of a run; `start` is where its settings began, `cuda` asks for that device."""
    factory = env_factory(settings.env, settings.env_settings)
    spec = _spec_of(factory)
    resolved = settings.resolved(spec)
    per_env = bytes_per_env(resolved, spec, factory)
    timing = None
    if measure:
        timing = measured(resolved, modelled_update=cuda and not torch.cuda.is_available())
    return Estimate(
        settings=resolved,
        gradient_steps=gradient_steps(resolved),
        memory={name: size * resolved.rollout.num_envs for name, size in per_env.items()},
        largest_num_envs=largest_num_envs(resolved, per_env),
        timing=timing,
        warnings=warnings_for(settings, resolved, spec),
        changes=advice(settings, resolved, start, spec),
    )


def warnings_for(asked: RunSettings, resolved: RunSettings, spec: EnvSpec) -> list[str]:
    """What a person should know before starting; `train` says the same."""
    episodes, epochs = asked.length.episodes, resolved.length.epochs
    if not episodes or spec.episode_steps is None:
        return []
    steps = resolved.rollout.samples_per_epoch
    found = []
    if epochs < FEW_EPOCHS:
        enough = -(-ENOUGH_EPOCHS * steps // spec.episode_steps)
        found.append(
            f"{episodes} episodes at {resolved.rollout.num_envs} envs are {epochs} epochs; "
            f"use --episodes {enough} for {ENOUGH_EPOCHS}"
        )
    if epochs * steps != episodes * spec.episode_steps:
        found.append(
            f"{episodes} episodes do not divide into epochs of {steps // spec.episode_steps}; "
            f"{epochs * steps // spec.episode_steps} are trained"
        )
    return found


def gradient_steps(settings: RunSettings) -> int:
    """Gradient steps of one epoch."""
    ppo, dqn, rollout = settings.ppo, settings.dqn, settings.rollout
    if settings.algo == "dqn":
        return rollout.samples_per_epoch * dqn.gradient_steps // dqn.train_frequency
    samples = rollout.samples_per_epoch * rollout.policy_update_interval
    size = _minibatch_size(ppo, samples)
    return _num_passes(ppo) * -(-samples // size) // rollout.policy_update_interval


# --- memory


def bytes_per_env(settings: RunSettings, spec: EnvSpec, factory: EnvFactory) -> dict[str, int]:
    """Bytes that one more env costs, by component."""
    sizes = (
        _replay_bytes(settings, spec) if settings.algo == "dqn" else _rollout_bytes(settings, spec)
    )
    if settings.env not in ENVS:
        return sizes
    env = factory(np.arange(1))
    try:
        env.reset(0)
        state = env.state()
    finally:
        env.close()
    plans = {name: array for name, array in state.items() if name.startswith("plans/")}
    if plans:
        sizes["oracle plans"] = _size(plans)
    # The last whole epoch is kept beside the running one, so that nothing is lost.
    return sizes | {"envs": _size(state) - _size(plans), "last epoch's snapshot": _size(state)}


def _replay_bytes(settings: RunSettings, spec: EnvSpec) -> dict[str, int]:
    num_envs = settings.rollout.num_envs
    replay = settings.dqn.rows_per_env(spec, num_envs) * row_bytes(spec)
    return dict.fromkeys(REPLAY, replay)


def _rollout_bytes(settings: RunSettings, spec: EnvSpec) -> dict[str, int]:
    steps = settings.rollout.num_steps * settings.rollout.policy_update_interval
    rollout = RolloutBuffer(spec, 1, steps)
    return {
        "observations": _size(rollout.observation),
        "masks": 0 if rollout.mask is None else rollout.mask.nbytes,
        "actions": rollout.actions.nbytes,
        "log-probabilities": rollout.log_probs.nbytes,
        "rewards and flags": rollout.rewards.nbytes
        + rollout.terminated.nbytes
        + rollout.ended.nbytes,
        # Values, advantages and targets, and the rows in shuffled order.
        "update": 3 * rollout.rewards.nbytes + _size(rollout.observation),
    }


def largest_num_envs(settings: RunSettings, per_env: dict[str, int]) -> int:
    """Envs that fit into the memory at hand; a replay takes its part however many there are."""
    room = int(MEMORY_SHARE * available_memory())
    if settings.algo == "ppo":
        return max(1, room // max(sum(per_env.values()), 1))
    replay = sum(per_env[name] for name in REPLAY) * settings.rollout.num_envs
    others = sum(size for name, size in per_env.items() if name not in REPLAY)
    # Every env's ring must hold more than one look ahead.
    rings = settings.dqn.replay_size // (settings.dqn.n_step + 2)
    return max(1, min((room - replay) // max(others, 1), rings))


def auto_num_envs(settings: RunSettings) -> tuple[int, str]:
    """What `--num-envs auto` means for these settings, and the reason."""
    factory = env_factory(settings.env, settings.env_settings)
    spec = _spec_of(factory)
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


def measured(settings: RunSettings, modelled_update: bool = False) -> Timing:
    """Seconds of an epoch: of the second of two, with one pass of PPO's update, scaled up."""
    rollout, ppo = settings.rollout, settings.ppo
    num_envs = min(rollout.num_envs, MEASURED_ENVS)
    one_pass = (
        replace(ppo, num_value_epochs=1, num_policy_epochs=1)
        if ppo.separate_epochs
        else replace(ppo, update_epochs=1)
    )
    at_once = min(settings.dqn.learning_starts, num_envs * rollout.num_steps)
    trial = replace(
        settings,
        length=LengthSettings(epochs=2),
        rollout=replace(rollout, num_envs=num_envs, policy_update_interval=1),
        ppo=one_pass,
        dqn=replace(settings.dqn, learning_starts=at_once),
        processes=replace(settings.processes, batch_envs=0),
    )
    parts = build(trial)
    try:
        parts.collector.start(settings.seed)
        seconds = [_epoch_seconds(parts, trial) for _ in range(2)]
    finally:
        parts.close()
    # The first epoch warmed up compilers and caches.
    collect, update = seconds[-1]
    growth = rollout.num_envs / num_envs
    share = _num_passes(ppo) / (2 if ppo.separate_epochs else 1) if settings.algo == "ppo" else 1.0
    if modelled_update:
        weights = sum(part.numel() for part in parts.learner.network.parameters())
        return Timing(collect * growth, modelled_seconds(settings, weights), True)
    return Timing(collect * growth, update * growth * share, False)


def modelled_seconds(settings: RunSettings, weights: int) -> float:
    """Seconds of an update on a CUDA device nobody has measured."""
    steps = gradient_steps(settings)
    rows = steps * settings.dqn.batch_size
    if settings.algo == "ppo":
        rows = settings.rollout.samples_per_epoch * _num_passes(settings.ppo)
    return steps * MODEL_STEP_SECONDS + FLOPS_PER_WEIGHT * weights * rows / MODEL_FLOPS


def _epoch_seconds(parts: Any, settings: RunSettings) -> tuple[float, float]:
    learner = parts.learner
    learned = learner.learning_seconds
    begin = time.perf_counter()
    parts.collector.collect(learner.policy, learner.buffer, settings.rollout.num_steps)
    middle = time.perf_counter()
    learner.update()
    learned = learner.learning_seconds - learned
    return middle - begin - learned, time.perf_counter() - middle + learned


# --- advice


def advice(
    asked: RunSettings, resolved: RunSettings, start: RunSettings, spec: EnvSpec
) -> list[Change]:
    """Changes for a run whose epochs are larger or smaller than those its settings were made for.

    Only what the user has left at its starting point is advised on.
    """
    changes: list[Change] = []
    if asked.length.episodes and resolved.length.epochs < FEW_EPOCHS and spec.episode_steps:
        reason = f"{resolved.length.epochs} epochs are too few to learn from"
        enough = -(-ENOUGH_EPOCHS * resolved.rollout.samples_per_epoch // spec.episode_steps)
        changes.append(Change("episodes", asked.length.episodes, enough, reason))
    begun = replace(start, length=LengthSettings(epochs=1)).resolved(spec)
    before = begun.rollout.samples_per_epoch
    growth = resolved.rollout.samples_per_epoch / before
    # DQN takes its gradient steps per sample, whatever the size of an epoch.
    if growth <= 1.0 or resolved.algo != "ppo":
        return changes
    ppo, first = resolved.ppo, start.ppo
    times = f"{growth:.3g} times the samples per update"
    size = _minibatch_size(first, before)
    wider = _minibatch_size(ppo, resolved.rollout.samples_per_epoch)
    if (ppo.minibatch_size, ppo.num_minibatches) == (first.minibatch_size, first.num_minibatches):
        if first.minibatch_size:
            wider = _power_of_two(size * growth**0.5)
            reason = f"{times}: share them between larger and more minibatches"
            changes.append(Change("minibatch_size", size, wider, reason))
        faster = _rounded(min(first.learning_rate * (wider / size) ** 0.5, 3e-3))
        if ppo.learning_rate == first.learning_rate and faster != first.learning_rate:
            reason = f"minibatches of {wider} instead of {size} have steadier gradients"
            changes.append(Change("learning_rate", first.learning_rate, faster, reason))
    passes: Sequence[str] = (
        ("num_value_epochs", "num_policy_epochs") if ppo.separate_epochs else ("update_epochs",)
    )
    if resolved.rollout.samples_per_epoch // wider <= before // size:
        return changes
    for name in passes:
        present = getattr(ppo, name)
        fewer = max(1, round(present * growth**-0.2))
        if present == getattr(first, name) and fewer < present:
            reason = f"{times}: each pass makes more gradient steps, so fewer will do"
            changes.append(Change(name, present, fewer, reason))
    return changes


def _with(settings: RunSettings, name: str, value: Any) -> RunSettings:
    if name == "episodes":
        return replace(settings, length=LengthSettings(episodes=value))
    return replace(settings, ppo=replace(settings.ppo, **{name: value}))


def _num_passes(ppo: PPOSettings) -> int:
    if ppo.separate_epochs:
        return ppo.num_value_epochs + ppo.num_policy_epochs
    return ppo.update_epochs


def _minibatch_size(ppo: PPOSettings, samples: int) -> int:
    return ppo.minibatch_size or -(-samples // ppo.num_minibatches)


def _power_of_two(number: float) -> int:
    return int(2 ** round(np.log2(number)))


def _rounded(number: float) -> float:
    """Two digits are as much as a learning rate deserves."""
    return float(f"{number:.1e}")


def _spec_of(factory: EnvFactory) -> EnvSpec:
    env = factory(np.arange(1))
    try:
        return env.spec
    finally:
        env.close()


def _size(arrays: State | Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
