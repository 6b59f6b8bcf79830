"""Settings as arguments of RLlib, and those that it does not support."""

from __future__ import annotations

import math
from typing import Any

from hundredfold.backends.settings import usable_cores
from hundredfold.config.run import RunSettings
from hundredfold.core.errors import SettingsError


def reject_unsupported(settings: RunSettings) -> None:
    """Raise a SettingsError for settings without which another algorithm would be trained."""
    if settings.algo != "ppo":
        raise SettingsError(f"--engine rllib works with --algo ppo only; use the default engine for {settings.algo}.")
    if settings.ppo.separate_epochs:
        raise SettingsError(
            "num_value_epochs and num_policy_epochs need separate losses, and the PPO of RLlib has "
            "one loss; set both to 0 and use update_epochs, or use the default engine."
        )
    if getattr(settings.belief_model, "acceptance_model", "none") != "none":
        raise SettingsError(
            "belief models need per-step data that RLlib does not expose; use "
            "--acceptance-model none or the default engine."
        )
    if settings.rollout.policy_update_interval != 1:
        raise SettingsError(
            "RLlib updates after every epoch, but policy_update_interval is "
            f"{settings.rollout.policy_update_interval}; set it to 1 or use the default engine."
        )


def unsupported_notes(settings: RunSettings) -> list[str]:
    """What differs from the default engine, in whole sentences."""
    ppo, notes = settings.ppo, []
    if settings.network.normalise_observations:
        notes.append("normalise_observations: statistics of random actions are used throughout.")
    if ppo.normalise_values:
        notes.append("normalise_values is not supported: values are learned unscaled.")
    if not ppo.normalise_advantages:
        notes.append("normalise_advantages is always on: RLlib normalises over every batch.")
    if ppo.target_kl:
        notes.append("target_kl is not supported: updates do not stop early.")
    return notes


def ppo_kwargs(settings: RunSettings) -> dict[str, Any]:
    """Arguments of `PPOConfig.training`."""
    ppo, samples = settings.ppo, settings.rollout.samples_per_epoch
    total = settings.length.epochs * samples
    return {
        "train_batch_size_per_learner": samples,
        "minibatch_size": min(ppo.minibatch_size or -(-samples // ppo.num_minibatches), samples),
        "num_epochs": ppo.update_epochs,
        "lr": linear_schedule(ppo.learning_rate, total if ppo.anneal_learning_rate else 0),
        "gamma": ppo.gamma,
        "lambda_": ppo.gae_lambda,
        "clip_param": ppo.clip_range,
        "vf_clip_param": math.inf,
        "vf_loss_coeff": ppo.value_coefficient,
        "entropy_coeff": linear_schedule(ppo.entropy_coefficient, total if ppo.anneal_entropy else 0),
        "use_kl_loss": False,
        "grad_clip": ppo.max_gradient_norm,
    }


def linear_schedule(value: float, num_steps: int) -> float | list[list[float]]:
    """RLlib's notation of a value that falls to 0 over `num_steps`; 0 steps = constant."""
    return [[0, value], [num_steps, 0.0]] if num_steps else value


def num_env_runners(settings: RunSettings) -> tuple[int, str]:
    """Number of env runners, which must divide the number of envs.

    Returns:
        The number, and if it is not the one in the settings, the reason.
    """
    num_envs, wanted = settings.rollout.num_envs, settings.processes.workers
    cores = usable_cores()
    limit = wanted or cores
    # Only on this machine: the size of another cluster is not known yet.
    too_few_cores = not settings.ray.address and limit > cores
    limit = cores if too_few_cores else limit
    runners = next(count for count in range(min(limit, num_envs), 0, -1) if num_envs % count == 0)
    if runners == wanted or not wanted:
        return runners, ""
    reason = f"there are {cores} cores" if too_few_cores else f"{num_envs} envs do not split evenly"
    return runners, (
        f"{runners} env runners x {num_envs // runners} envs instead of {wanted} x "
        f"{num_envs / wanted:g}, because {reason}; an epoch stays "
        f"{settings.rollout.samples_per_epoch or num_envs:,} samples."
    )
