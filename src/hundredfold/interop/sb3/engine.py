"""Training engine `sb3`: algorithms of Stable-Baselines3, run folder and metrics of this package.

PPO becomes MaskablePPO if an env has masks. A callback ends each epoch: it copies the weights back,
evaluates, records and saves, and checks for signals between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.backends.auto_select import BackendChoice
from hundredfold.backends.call_checks import refuse_while_importing_main
from hundredfold.config.run import LengthSettings, RunSettings
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import EnvError, SettingsError
from hundredfold.core.failures import Failure
from hundredfold.core.protocols import Backend, EnvFactory
from hundredfold.envs.registry import ENVS
from hundredfold.interop.sb3 import require_contrib
from hundredfold.interop.sb3.envs import BackendVecEnv, make_third_party_envs
from hundredfold.interop.sb3.networks import FlatFeatureExtractor, copy_weights_back, policy_kwargs
from hundredfold.training.build import Components
from hundredfold.training.build import build as build_components
from hundredfold.training.engines import EpisodeTracker
from hundredfold.training.process_setup import Interrupted, Interruptible
from hundredfold.training.run import Run

# Metrics of Stable-Baselines3, and their names in this package.
METRIC_NAMES: Final = {
    "train/policy_gradient_loss": "policy_loss",
    "train/value_loss": "value_loss",
    "train/approx_kl": "approx_kl",
    "train/clip_fraction": "clip_fraction",
    "train/explained_variance": "explained_variance",
    "train/loss": "q_loss",
    "train/n_updates": "gradient_steps",
}

# Log interval of Stable-Baselines3, whose log is read but never printed.
NEVER: Final = 10**9

# Raised when a worker of SubprocVecEnv has died.
WORKER_DIED: Final = (EOFError, BrokenPipeError, ConnectionResetError)


@dataclass(slots=True)
class SB3Envs:
    """The vector env that Stable-Baselines3 steps."""

    vec_env: VecEnv
    backend: Backend  # runs the envs if `vec_env` is a BackendVecEnv

    @property
    def name(self) -> str:
        return type(self.vec_env).__name__

    def health(self) -> dict[str, int]:
        # Vector envs of Stable-Baselines3 have no failure counts.
        return self.backend.health() if isinstance(self.vec_env, BackendVecEnv) else {}

    @property
    def first_failure(self) -> Failure | None:
        return self.backend.first_failure

    def close(self) -> None:
        with suppress(*WORKER_DIED):
            self.vec_env.close()
        if isinstance(self.vec_env, SubprocVecEnv):
            for process in self.vec_env.processes:
                process.terminate()
                process.join()


def build(settings: RunSettings, make_envs: EnvFactory | None = None) -> Components:
    """Components of a run; built-in envs run on a backend, third-party envs in an SB3 vector env.

    The network of the learner has the weights of checkpoints; see `copy_weights_back`.
    """
    refuse_while_importing_main("choose a backend")
    if settings.machine.backend == "first_ready":
        # Stable-Baselines3 steps all envs together.
        settings = with_backend(settings, "processes")
    components = _build_components(settings, make_envs)
    spec = components.backend.spec
    try:
        reject_unsupported(settings, spec)
        if spec.has_mask:
            require_contrib()
        vec_env: VecEnv
        if spec.has_snapshots:
            vec_env = BackendVecEnv(components.backend, settings.seed)
        else:
            settings = settings.resolved(spec)
            in_processes = settings.machine.backend in ("auto", "processes")
            vec_env = make_third_party_envs(
                components.make_envs, settings, in_processes=in_processes and settings.rollout.num_envs > 1
            )
            backend = "processes" if isinstance(vec_env, SubprocVecEnv) else "in_process"
            components.choice = BackendChoice(backend, settings.processes, type(vec_env).__name__)
            components.settings = with_backend(settings, backend)
    except BaseException:
        components.close()
        raise
    components.external_envs = SB3Envs(vec_env, components.backend)
    return components


def train(run: Run) -> bool:
    """Train to the end; False if it was interrupted."""
    model = make_model(run.components)
    library = type(model).__module__.split(".")[0]
    run.display.print(f"  engine: {type(model).__name__} of {library}")
    for note in unsupported_notes(run.settings):
        run.display.print(f"  note: {note}")
    total_steps = run.num_epochs * run.settings.rollout.samples_per_epoch
    run.display.start_clock()
    with Interruptible() as signals:
        try:
            model.learn(total_steps, callback=RunCallback(run, signals), log_interval=NEVER)
        except Interrupted:
            run.save_last_complete()
            return False
        except WORKER_DIED as error:
            run.save_last_complete()
            if signals.requested:  # the same Ctrl-C reached the workers
                return False
            raise EnvError(
                "a worker of SubprocVecEnv died; the error of its env is printed above. The "
                "default engine restarts failed envs; --engine sb3 cannot."
            ) from error
        except Exception:
            run.save_last_complete()
            raise
    return True


def make_model(components: Components) -> OnPolicyAlgorithm | DQN:
    """The algorithm of Stable-Baselines3, with a network like that of the learner."""
    settings, spec, learner = components.settings, components.backend.spec, components.learner
    assert isinstance(learner.network, ActorCritic | QNetwork)
    common: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": vec_env_of(components),
        "policy_kwargs": policy_kwargs(learner.network, spec, settings.network),
        "seed": settings.seed % 2**32,
        "device": learner.device,
    }
    if settings.algo == "dqn":
        return DQN(**common, **dqn_kwargs(settings, spec))
    if not spec.has_mask:
        return PPO(**common, **ppo_kwargs(settings))
    from sb3_contrib import MaskablePPO

    model: OnPolicyAlgorithm = MaskablePPO(**common, **ppo_kwargs(settings))
    return model


class RunCallback(BaseCallback):
    """Records every step, and ends an epoch after the update that belongs to it."""

    def __init__(self, run: Run, signals: Interruptible) -> None:
        super().__init__()
        self.run, self.signals, self.vec_env = run, signals, vec_env_of(run.components)
        self.on_progress = run.progress_callback(signals)
        rollout = run.settings.rollout
        self.episodes = EpisodeTracker(rollout.num_envs)
        self.steps_per_epoch = rollout.num_steps
        # PPO updates between two rollouts, DQN during collection.
        is_on_policy = run.settings.algo == "ppo"
        self.steps_per_update = rollout.num_steps * rollout.policy_update_interval * is_on_policy
        self.epoch_awaits_update = False
        self.phase_start = time.perf_counter()

    def _on_training_start(self) -> None:
        self.phase_start = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self._end_phase("update")
        if self.epoch_awaits_update:
            self._update_input_stats()
            self._end_epoch()

    def _on_step(self) -> bool:
        if self.run.finished:  # a stop rule ended the run after the last update
            return False
        self._record_step()
        self.on_progress()
        if self.n_calls % self.steps_per_epoch == 0:
            self._end_phase("collect")
            if self.steps_per_update and self.n_calls % self.steps_per_update == 0:
                self.epoch_awaits_update = True
            else:
                self._end_epoch()
        # False stops DQN here, before it collects more; PPO still makes its last update.
        return not self.run.finished

    def _on_rollout_end(self) -> None:
        self._end_phase("collect")
        ppo = self.run.settings.ppo
        if self.run.settings.algo == "ppo" and ppo.anneal_entropy:
            done = self.n_calls - self.steps_per_update
            total = self.run.num_epochs * self.steps_per_epoch
            self.untyped_model.ent_coef = ppo.entropy_coefficient * (1 - done / total)

    def _on_training_end(self) -> None:
        self._on_rollout_start()

    def _record_step(self) -> None:
        rewards, ended = self.locals["rewards"], self.locals["dones"]
        if not isinstance(self.vec_env, BackendVecEnv):
            self.episodes.record(rewards, ended)
            return
        batch = self.vec_env.batch
        self.episodes.record(batch.reward, ended, batch.episode_info)
        for callback in self.run.step_callbacks:
            callback(batch)

    def _end_epoch(self) -> None:
        run, network = self.run, self.run.components.learner.network
        self.epoch_awaits_update = False
        assert isinstance(network, ActorCritic | QNetwork)
        copy_weights_back(self.model.policy, network)
        with run.timed("belief_model"):
            belief_metrics = run.update_belief_model()
        with run.timed("evaluate"):
            evaluation = run.evaluate_if_due(self.signals)
        run.end_epoch(self.episodes.drain(), {**self._metrics(), **belief_metrics, **evaluation})
        self.phase_start = time.perf_counter()

    def _metrics(self) -> dict[str, float]:
        """Metrics of the last update."""
        logged = self.model.logger.name_to_value
        metrics = {name: float(logged[sb3_name]) for sb3_name, name in METRIC_NAMES.items() if sb3_name in logged}
        if self.run.settings.algo == "dqn":
            return metrics | {"exploration": float(self.untyped_model.exploration_rate)}
        metrics.pop("q_loss", None)
        metrics.pop("gradient_steps", None)
        if "train/entropy_loss" in logged:
            metrics["entropy"] = -float(logged["train/entropy_loss"])
        return metrics

    def _update_input_stats(self) -> None:
        """Update the input normalisation with the last rollout, after its update."""
        policy = self.untyped_model.policy
        for extractor in {policy.pi_features_extractor, policy.vf_features_extractor}:
            assert isinstance(extractor, FlatFeatureExtractor)
            extractor.update_stats(self.untyped_model.rollout_buffer.observations)

    @property
    def untyped_model(self) -> Any:
        """The model, whose attributes depend on the algorithm."""
        return self.model

    def _end_phase(self, phase: str) -> None:
        now = time.perf_counter()
        self.run.seconds[phase] += now - self.phase_start
        self.phase_start = now


def vec_env_of(components: Components) -> VecEnv:
    """The vector env that Stable-Baselines3 steps."""
    envs = components.external_envs
    assert isinstance(envs, SB3Envs)
    return envs.vec_env


def with_backend(settings: RunSettings, backend: str) -> RunSettings:
    """The same settings with another backend."""
    return replace(settings, machine=replace(settings.machine, backend=backend))


def _build_components(settings: RunSettings, make_envs: EnvFactory | None) -> Components:
    """Components on all envs, or on a single one if they are third-party."""
    if make_envs is None and settings.env in ENVS:
        return build_components(settings)
    single = replace(
        with_backend(settings, "in_process"),
        rollout=replace(settings.rollout, num_envs=1, num_steps=max(settings.rollout.num_steps, 1)),
        length=LengthSettings(epochs=settings.rollout.policy_update_interval),
    )
    return build_components(single, make_envs)


# --- settings as arguments of Stable-Baselines3


def reject_unsupported(settings: RunSettings, spec: EnvSpec) -> None:
    """Raise a SettingsError for settings without which another algorithm would be trained."""
    if settings.algo == "pqn":
        raise SettingsError("Stable-Baselines3 has no PQN; use the default engine, or --algo dqn or ppo.")
    if settings.algo == "dqn":
        _reject_unsupported_dqn(settings, spec)
    elif settings.ppo.separate_epochs:
        raise SettingsError(
            "num_value_epochs and num_policy_epochs need separate losses, and the PPO of "
            "Stable-Baselines3 has one loss; set both to 0 and use update_epochs, or use the "
            "default engine."
        )
    if settings.network.architecture != "mlp" or settings.ppo.advantages != "gae":
        raise SettingsError(
            "Stable-Baselines3 learns from returns with a multilayer perceptron; use --architecture mlp and "
            "--advantages gae (for dvrp --preset returns), or the default engine."
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
