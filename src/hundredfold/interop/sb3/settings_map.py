"""Our settings in the words of Stable-Baselines3, and what it has no words for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hundredfold.config.run import RunSettings
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import SettingsError

OURS = "leave --engine away"


def refuse_what_it_lacks(settings: RunSettings, spec: EnvSpec) -> None:
    """Settings that would train something else than what was asked for."""
    if settings.algo == "dqn":
        _refuse_for_dqn(settings, spec)
    elif settings.ppo.separate_epochs:
        raise SettingsError(
            "num_value_epochs and num_policy_epochs are separate passes, and the PPO of "
            f"Stable-Baselines3 has one loss; set both to 0 and use update_epochs, or {OURS}."
        )
    if spec.logit_bias is not None:
        raise SettingsError(
            f"{spec.name} adds {spec.logit_bias!r} to a policy's logits, which the policies of "
            f"Stable-Baselines3 have no place for; choose another mask_mode, or {OURS}."
        )


def notes_on(settings: RunSettings) -> list[str]:
    """What this engine does otherwise than ours, in whole sentences."""
    notes = []
    if settings.algo == "ppo":
        if settings.ppo.normalise_values:
            notes.append("normalise_values has no counterpart: values are learned unscaled.")
        if settings.ppo.normalise_advantages:
            notes.append("advantages are scaled in every minibatch, not over the whole rollout.")
        return notes
    if settings.dqn.double_q:
        notes.append("double_q has no counterpart: its DQN values the next action by one network.")
    frequency, num_envs = settings.dqn.train_frequency, settings.rollout.num_envs
    if frequency % num_envs:
        notes.append(
            f"train_frequency {frequency} is no multiple of {num_envs} envs: it learns every "
            f"{_steps_between_bouts(settings) * num_envs} samples."
        )
    return notes


def ppo_options(settings: RunSettings) -> dict[str, Any]:
    """Arguments of its PPO and MaskablePPO."""
    ppo, rollout = settings.ppo, settings.rollout
    steps = rollout.num_steps * rollout.policy_update_interval
    samples = steps * rollout.num_envs
    return {
        "learning_rate": _falling(settings) if ppo.anneal_learning_rate else ppo.learning_rate,
        "n_steps": steps,
        "batch_size": min(ppo.minibatch_size or -(-samples // ppo.num_minibatches), samples),
        "n_epochs": ppo.update_epochs,
        "gamma": ppo.gamma,
        "gae_lambda": ppo.gae_lambda,
        "clip_range": ppo.clip_range,
        "ent_coef": ppo.entropy_coefficient,
        "vf_coef": ppo.value_coefficient,
        "max_grad_norm": ppo.max_gradient_norm,
        "normalize_advantage": ppo.normalise_advantages,
        # Both stop at 1.5 times this.
        "target_kl": ppo.target_kl or None,
    }


def dqn_options(settings: RunSettings, spec: EnvSpec) -> dict[str, Any]:
    """Arguments of its DQN, which counts steps of all envs at once where we count samples."""
    dqn, num_envs = settings.dqn, settings.rollout.num_envs
    samples_per_gradient_step = dqn.train_frequency / dqn.gradient_steps
    return {
        "learning_rate": dqn.learning_rate,
        "buffer_size": (dqn.rows_per_env(spec, num_envs) - 1) * num_envs,
        "learning_starts": dqn.learning_starts,
        "batch_size": dqn.batch_size,
        "tau": dqn.tau,
        "gamma": dqn.gamma,
        "train_freq": _steps_between_bouts(settings),
        "gradient_steps": dqn.gradient_steps,
        "n_steps": dqn.n_step,
        "target_update_interval": max(round(dqn.target_interval * samples_per_gradient_step), 1),
        # It divides by this share.
        "exploration_fraction": max(dqn.exploration_fraction, 1e-9),
        "exploration_initial_eps": dqn.exploration_start,
        "exploration_final_eps": dqn.exploration_end,
        "max_grad_norm": dqn.max_gradient_norm,
    }


def _refuse_for_dqn(settings: RunSettings, spec: EnvSpec) -> None:
    dqn = settings.dqn
    if spec.has_mask:
        raise SettingsError(
            f"{spec.name} has action masks and the DQN of Stable-Baselines3 knows none: it would "
            f"take forbidden actions and learn from their values. Use our DQN ({OURS}), or "
            "--algo ppo, which this engine trains with MaskablePPO."
        )
    trouble = {
        "dueling": (dqn.dueling, "its networks have one head"),
        "epsilon_alpha": (dqn.epsilon_alpha > 0, "all its envs explore alike"),
        "loss mse": (dqn.loss == "mse", "its loss is Huber's"),
        "normalise_observations": (
            settings.network.normalise_observations,
            "its replay keeps no scale of inputs",
        ),
    }
    for name, (asked_for, reason) in trouble.items():
        if asked_for:
            raise SettingsError(
                f"{name} cannot be had with the DQN of Stable-Baselines3 ({reason}); "
                f"turn it off, or {OURS}."
            )


def _falling(settings: RunSettings) -> Callable[[float], float]:
    """Down to 0 over the run, by the update, as ours: the first one has the full rate."""
    updates = settings.length.epochs // settings.rollout.policy_update_interval

    def rate(left: float) -> float:
        # It asks after a rollout, when the update that learns from it counts as done.
        return settings.ppo.learning_rate * min(left + 1 / updates, 1.0)

    return rate


def _steps_between_bouts(settings: RunSettings) -> int:
    return max(round(settings.dqn.train_frequency / settings.rollout.num_envs), 1)
