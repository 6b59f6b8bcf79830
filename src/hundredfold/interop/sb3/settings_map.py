"""Settings as arguments of Stable-Baselines3, and those that it does not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hundredfold.config.run import RunSettings
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import SettingsError


def reject_unsupported(settings: RunSettings, spec: EnvSpec) -> None:
    """Raise a SettingsError for settings without which another algorithm would be trained."""
    if settings.algo == "dqn":
        _reject_unsupported_dqn(settings, spec)
    elif settings.ppo.separate_epochs:
        raise SettingsError(
            "num_value_epochs and num_policy_epochs need separate losses, and the PPO of "
            "Stable-Baselines3 has one loss; set both to 0 and use update_epochs, or use the "
            "default engine."
        )
    if spec.logit_bias is not None:
        raise SettingsError(
            f"{spec.name} adds {spec.logit_bias!r} to the policy's logits, which policies of "
            "Stable-Baselines3 do not support; use another mask_mode or the default engine."
        )


def unsupported_notes(settings: RunSettings) -> list[str]:
    """What differs from the default engine, in whole sentences."""
    notes = []
    if settings.algo == "ppo":
        if settings.ppo.normalise_values:
            notes.append("normalise_values is not supported: values are learned unscaled.")
        if settings.ppo.normalise_advantages:
            notes.append("advantages are normalised per minibatch, not over the whole rollout.")
        return notes
    if settings.dqn.double_q:
        notes.append("double_q is not supported: the target network also selects the next action.")
    frequency, num_envs = settings.dqn.train_frequency, settings.rollout.num_envs
    if frequency % num_envs:
        notes.append(
            f"train_frequency {frequency} is not a multiple of {num_envs} envs: updates come "
            f"every {_steps_between_updates(settings) * num_envs} samples."
        )
    return notes


def ppo_kwargs(settings: RunSettings) -> dict[str, Any]:
    """Arguments of PPO and MaskablePPO."""
    ppo, rollout = settings.ppo, settings.rollout
    steps = rollout.num_steps * rollout.policy_update_interval
    samples = steps * rollout.num_envs
    return {
        "learning_rate": _learning_rate(settings),
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
        # Both libraries stop at 1.5 times this.
        "target_kl": ppo.target_kl or None,
    }


def dqn_kwargs(settings: RunSettings, spec: EnvSpec) -> dict[str, Any]:
    """Arguments of DQN, whose `train_freq` counts steps of all envs at once, not samples."""
    dqn, num_envs = settings.dqn, settings.rollout.num_envs
    samples_per_gradient_step = dqn.train_frequency / dqn.gradient_steps
    return {
        "learning_rate": dqn.learning_rate,
        "buffer_size": (dqn.rows_per_env(spec, num_envs) - 1) * num_envs,
        "learning_starts": dqn.learning_starts,
        "batch_size": dqn.batch_size,
        "tau": dqn.tau,
        "gamma": dqn.gamma,
        "train_freq": _steps_between_updates(settings),
        "gradient_steps": dqn.gradient_steps,
        "n_steps": dqn.n_step,
        "target_update_interval": max(round(dqn.target_interval * samples_per_gradient_step), 1),
        # Stable-Baselines3 divides by it.
        "exploration_fraction": max(dqn.exploration_fraction, 1e-9),
        "exploration_initial_eps": dqn.exploration_start,
        "exploration_final_eps": dqn.exploration_end,
        "max_grad_norm": dqn.max_gradient_norm,
    }


def _reject_unsupported_dqn(settings: RunSettings, spec: EnvSpec) -> None:
    dqn = settings.dqn
    if spec.has_mask:
        raise SettingsError(
            f"{spec.name} has action masks and the DQN of Stable-Baselines3 ignores them: it would "
            "take forbidden actions and learn from their values. Use the default engine, or "
            "--algo ppo, which --engine sb3 trains with MaskablePPO."
        )
    unsupported = {
        "dueling": (dqn.dueling, "its networks have a single head"),
        "epsilon_alpha": (dqn.epsilon_alpha > 0, "all envs explore with the same epsilon"),
        "loss mse": (dqn.loss == "mse", "its loss is the Huber loss"),
        "normalise_observations": (settings.network.normalise_observations, "it has no input normalisation"),
    }
    for name, (is_used, reason) in unsupported.items():
        if is_used:
            raise SettingsError(
                f"{name} is not supported by the DQN of Stable-Baselines3 ({reason}); turn it off "
                "or use the default engine."
            )


def _learning_rate(settings: RunSettings) -> float | Callable[[float], float]:
    """Constant, or linear to 0 over the updates of the run; the first one has the full rate."""
    if not settings.ppo.anneal_learning_rate:
        return settings.ppo.learning_rate
    num_updates = settings.length.epochs // settings.rollout.policy_update_interval

    def learning_rate(remaining: float) -> float:
        # Called after a rollout, when its update already counts as done.
        return settings.ppo.learning_rate * min(remaining + 1 / num_updates, 1.0)

    return learning_rate


def _steps_between_updates(settings: RunSettings) -> int:
    return max(round(settings.dqn.train_frequency / settings.rollout.num_envs), 1)
