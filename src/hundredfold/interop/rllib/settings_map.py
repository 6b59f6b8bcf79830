"""Our settings in the words of RLlib, and what it has no words for."""

from __future__ import annotations

import math
from typing import Any, Final

from hundredfold.backends.settings import usable_cores
from hundredfold.config.run import RunSettings
from hundredfold.core.errors import SettingsError

OURS: Final = "leave --engine away"


def ppo_options(settings: RunSettings) -> dict[str, Any]:
    """Arguments of its PPO."""
    ppo, samples = settings.ppo, settings.rollout.samples_per_epoch
    total = settings.length.epochs * samples
    return {
        "train_batch_size_per_learner": samples,
        "minibatch_size": min(ppo.minibatch_size or -(-samples // ppo.num_minibatches), samples),
        "num_epochs": ppo.update_epochs,
        "lr": falling(ppo.learning_rate, total if ppo.anneal_learning_rate else 0),
        "gamma": ppo.gamma,
        "lambda_": ppo.gae_lambda,
        "clip_param": ppo.clip_range,
        "vf_clip_param": math.inf,
        "vf_loss_coeff": ppo.value_coefficient,
        "entropy_coeff": falling(ppo.entropy_coefficient, total if ppo.anneal_entropy else 0),
        "use_kl_loss": False,
        "grad_clip": ppo.max_gradient_norm,
    }


def falling(value: float, steps: int) -> float | list[list[float]]:
    """A schedule as RLlib has it: down to 0 over so many steps, or none at all."""
    return [[0, value], [steps, 0.0]] if steps else value


def runners_for(settings: RunSettings) -> tuple[int, str]:
    """How many env runners share the envs evenly, and why not more."""
    num_envs, asked = settings.rollout.num_envs, settings.processes.workers
    cores = usable_cores()
    most = asked or cores
    # Somebody else's cluster knows its own size; on this machine runners share our cores.
    crowded = not settings.ray.address and most > cores
    most = cores if crowded else most
    runners = next(count for count in range(min(most, num_envs), 0, -1) if num_envs % count == 0)
    if runners == asked or not asked:
        return runners, ""
    why = f"there are {cores} cores" if crowded else f"{num_envs} envs do not split evenly"
    return runners, (
        f"{runners} env runners x {num_envs // runners} envs instead of {asked} x "
        f"{num_envs / asked:g}, because {why}; an epoch stays "
        f"{settings.rollout.samples_per_epoch or num_envs:,} samples."
    )


def refuse_what_it_lacks(settings: RunSettings) -> None:
    """Settings that would train something else than what was asked for."""
    if settings.algo != "ppo":
        raise SettingsError(f"--engine rllib trains ppo; for {settings.algo} {OURS}.")
    if settings.ppo.separate_epochs:
        raise SettingsError(
            "num_value_epochs and num_policy_epochs are separate passes, and the PPO of RLlib has "
            f"one loss; set both to 0 and use update_epochs, or {OURS}."
        )
    if getattr(settings.belief_model, "acceptance_model", "none") != "none":
        raise SettingsError(
            "belief models need per-step data that RLlib does not expose; use "
            f"--acceptance-model none, or {OURS}."
        )
    if settings.rollout.policy_update_interval != 1:
        raise SettingsError(
            f"RLlib learns after every epoch; set policy_update_interval to 1, or {OURS}."
        )


def notes_on(settings: RunSettings) -> list[str]:
    """What this engine does otherwise than ours, in whole sentences."""
    ppo, notes = settings.ppo, []
    if settings.network.normalise_observations:
        notes.append("normalise_observations: inputs keep the scales that random actions showed.")
    if ppo.normalise_values:
        notes.append("normalise_values has no counterpart: values are learned unscaled.")
    if not ppo.normalise_advantages:
        notes.append("normalise_advantages is always on: RLlib scales them over every batch.")
    if ppo.target_kl:
        notes.append("target_kl has no counterpart: every update makes all its passes.")
    return notes
